"""A killed batch write leaves transactions open; the next one ends them."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from unittest import mock

import pyarrow as pa
import pytest
from tests.spark.sink_play import SCHEMA, _Context
from tests.transactions.reading import Log

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.errors import ConfigError
from ottla.spark import sink, sink_task
from ottla.spark.sink import BatchWriter
from ottla.spark.sink_options import batch_settings, stream_settings
from ottla.spark.transactional_ids import id_scheme

_numbers = itertools.count()


@pytest.fixture
def driver() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for a driver."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_write_is_over_when_its_driver_is_gone_and_not_before(driver: subprocess.Popen[bytes]) -> None:
    with mock.patch.object(os, "getppid", return_value=driver.pid):
        ids = id_scheme(None)
    other = id_scheme(None)
    assert ids.prefix.startswith(ids.scope)
    assert ids.prefix != other.prefix
    assert not other.is_over(f"{ids.prefix}0-0")
    driver.kill()
    driver.wait()
    assert other.is_over(f"{ids.prefix}0-0")
    for foreign in (f"{ids.scope}x", f"{ids.prefix}", f"{ids.prefix}0-0-0"):
        assert not other.is_over(foreign)


def test_the_number_of_a_dead_driver_that_another_process_has_now_says_nothing() -> None:
    ids = id_scheme(None)
    assert id_scheme(None).is_over(f"{ids.scope}{os.getpid()}.1-{'0' * 32}-0-0")


def test_a_name_that_is_given_finds_its_own_ids_only() -> None:
    ids = id_scheme("nightly")
    assert ids.is_over("nightly-3-0")
    assert not ids.is_over("nightly-2-3-0")


def test_a_name_is_for_batch_writes_in_transactions(tmp_path: object) -> None:
    options = {"kafka.bootstrap.servers": "x:1", "topic": "t", "kafka.transactional.id": "nightly"}
    assert batch_settings(options).name == "nightly"
    with pytest.raises(ConfigError, match="is for delivery=exactly-once"):
        batch_settings({**options, "delivery": "at-least-once"})
    with pytest.raises(ConfigError, match=r"is for df\.write"):
        stream_settings({**options, "checkpointLocation": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"is for df\.write"):
        batch_settings({**options, "commitLog": str(tmp_path)})


def _writer(kafka: LocalCluster, topic: str, **options: str) -> BatchWriter:
    writer = sink.batch_writer({"kafka.bootstrap.servers": kafka.bootstrap, "topic": topic, **options}, SCHEMA)
    assert isinstance(writer, BatchWriter)
    return writer


def _prepare(writer: BatchWriter, value: str) -> None:
    rows = pa.RecordBatch.from_pydict({"value": pa.array([value], pa.string())})
    with mock.patch.object(sink_task, "TaskContext", mock.Mock(get=lambda: _Context("", 0, 0, 0))):
        writer.write(iter([rows]))


@pytest.mark.broker
@pytest.mark.parametrize("name", [None, "nightly"])
def test_the_next_write_ends_what_a_killed_one_left_open(
    kafka: LocalCluster, driver: subprocess.Popen[bytes], name: str | None
) -> None:
    topic = f"write-runs-{next(_numbers)}"
    options = {} if name is None else {"kafka.transactional.id": f"{name}-{topic}"}
    with Admin(kafka.bootstrap) as admin, Log(kafka.bootstrap) as log:
        admin.create_topic(topic, partitions=1)
        with mock.patch.object(os, "getppid", return_value=driver.pid):
            _prepare(_writer(kafka, topic, **options), "of a write that will be killed")
        alive = _writer(kafka, f"{topic}")
        _prepare(alive, "of one that runs at the same time")
        driver.kill()
        driver.wait()
        _writer(kafka, topic, **options)
        assert log.visible(topic) == []
        with mock.patch.object(sink_task, "TaskContext", mock.Mock(get=lambda: _Context("", 0, 0, 1))):
            rows = pa.RecordBatch.from_pydict({"value": pa.array(["more"], pa.string())})
            messages = [alive.write(iter([rows]))]
        alive.commit(messages)
        assert log.committed(topic) == [b"more"]  # the reader waits for every transaction before it
