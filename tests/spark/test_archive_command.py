"""`ottla archive --engine spark` as a separate program: existing records, new records, Ctrl-C, the end."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from tests.cli.commands import program, run_program
from tests.spark.archive_kills import fill
from tests.waiting import eventually

from ottla.cluster import LocalCluster
from ottla.lake.lake import Lake
from ottla.produce.producer import Producer
from ottla.testing import FakeKafka

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]
_SECONDS = 240.0


@pytest.mark.long
def test_it_archives_what_is_there_then_follows_until_ctrl_c(kafka: LocalCluster, tmp_path: Path) -> None:
    topic, path = "spark-archive-command", tmp_path / "lake"
    fill(kafka.bootstrap, topic, 3000)
    command = ("archive", topic, "--to", str(path), "--engine", "spark", "--master", "local[2]", "--json")
    connect = ("--bootstrap", kafka.bootstrap)
    ended = run_program(*command, *connect)
    assert ended.returncode == 0, ended.stderr.decode()[-3000:]
    assert json.loads(ended.stdout)["records"] == 3000
    with program(*command, *connect, "--follow", "--every", "300ms") as running:
        assert running.stdout is not None
        with Producer(kafka.bootstrap) as producer:
            producer.send_many(topic, [b"later"] * 50)
        eventually(lambda: sum(Lake.open(path).positions().values()) == 3050, "the rest", seconds=_SECONDS)
        running.send_signal(signal.SIGINT)
        assert running.wait(_SECONDS) == 130
        report = json.loads(running.stdout.read())
    assert (report["records"], report["interrupted"]) == (50, True)
    assert ds.dataset(path, format="parquet", partitioning="hive").count_rows() == 3050
    assert os.listdir(path / "_ottla" / "staging") == []


@pytest.mark.long
def test_following_outlives_an_outage(fake_kafka: FakeKafka, tmp_path: Path) -> None:
    fake_kafka.create_topic("a")
    path = tmp_path / "lake"

    def send() -> None:
        with Producer(fake_kafka.bootstrap) as producer:
            producer.send_many("a", [b"value"] * 20)

    send()
    command = ("archive", "a", "--to", str(path), "--engine", "spark", "--master", "local[2]", "--follow")
    with program(*command, "--every", "300ms", "--timeout", "1", "--bootstrap", fake_kafka.bootstrap) as running:
        eventually(lambda: path.exists() and _archived(path) == 20, "the first", seconds=_SECONDS)
        fake_kafka.all_down()
        assert running.stderr is not None
        lines = iter(running.stderr.readline, b"")
        assert any(b"held up:" in line for line in lines)
        assert running.poll() is None
        fake_kafka.all_up()
        send()
        eventually(lambda: _archived(path) == 40, "the rest", seconds=_SECONDS)
        running.send_signal(signal.SIGINT)
        assert running.wait(_SECONDS) == 130


def _archived(path: Path) -> int:
    archive_lake = Lake.find(path)
    return 0 if archive_lake is None else sum(archive_lake.positions().values())
