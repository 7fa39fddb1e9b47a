"""The main job: records written while a leader is killed are all there, once, and the command says so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

from ottla.admin import Admin, OffsetSpec
from ottla.cli.moving import read, write
from ottla.cluster import LocalCluster
from ottla.errors import DeadlineExceeded
from ottla.model import Fingerprint, OffsetRange, TopicPartition
from ottla.net.cluster import Cluster
from ottla.testing import FakeKafka, When
from ottla.wire.columns import Columns, from_arrow
from ottla.wire.encode import BatchLimits, NewBatch, encode

TOPIC = "moved"


def _columns(count: int) -> Columns:
    return from_arrow(pa.array([b"value %d" % i for i in range(count)]))


def _batches(columns: Columns, partition: int, partitions: int) -> Iterator[NewBatch]:
    rows = np.arange(partition, columns.count, partitions, dtype=np.int64)
    return encode(columns, now_ms=1, limits=BatchLimits(max_bytes=4000), rows=rows, fingerprint=True)


def _ranges(admin: Admin, partitions: int) -> list[OffsetRange]:
    wanted = [TopicPartition(TOPIC, p) for p in range(partitions)]
    stops = admin.list_offsets(wanted, OffsetSpec.LATEST)
    return [OffsetRange(TOPIC, tp.partition, 0, stops[tp].offset) for tp in wanted]


def _expected(columns: Columns) -> Fingerprint:
    batches = encode(columns, now_ms=1, fingerprint=True)
    return sum((batch.fingerprint or Fingerprint() for batch in batches), Fingerprint())


def test_lost_acknowledgements_and_moved_leaders_double_nothing() -> None:
    with FakeKafka(brokers=3, topics={TOPIC: 3}, auto_create=None) as kafka, Cluster(kafka.bootstrap) as cluster:
        columns = _columns(3000)
        cut = kafka.cut("Produce", times=4, when=When.AFTER_HANDLING)
        moves = iter(range(1, 4))

        def progress(done: int) -> None:
            if done > 1000 and (broker := next(moves, None)) is not None:
                kafka.move_leader(TOPIC, 0, to=broker)

        written = write(cluster, TOPIC, {p: _batches(columns, p, 3) for p in range(3)}, progress=progress)
        seen = read(cluster, _ranges(Admin(cluster), 3), progress=lambda done: None)
    assert cut.hits == 4
    assert written.failures > 0
    assert written.fingerprint == seen.fingerprint == _expected(columns)


def test_a_refusal_that_another_try_would_repeat_is_raised() -> None:
    with FakeKafka(topics={TOPIC: 1}, auto_create=None, max_message_bytes=500) as kafka:
        with Cluster(kafka.bootstrap) as cluster, pytest.raises(Exception, match="MESSAGE_TOO_LARGE") as refused:
            write(cluster, TOPIC, {0: _batches(_columns(1000), 0, 1)}, progress=lambda done: None)
        assert "hint" in str(refused.value)
        assert kafka.records(TOPIC, 0) == []


def test_a_range_that_the_log_does_not_have_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.cli.moving._STUCK_SECONDS", 1.0)
    with FakeKafka(topics={TOPIC: 1}, auto_create=None) as kafka, Cluster(kafka.bootstrap) as cluster:
        write(cluster, TOPIC, {0: _batches(_columns(10), 0, 1)}, progress=lambda done: None)
        with pytest.raises(DeadlineExceeded, match=r"reading moved-0\[0, 11\) .*\n.*has nothing at offset 10"):
            read(cluster, [OffsetRange(TOPIC, 0, 0, 11)], progress=lambda done: None)


@pytest.mark.broker
def test_the_client_moves_to_the_new_leader_when_the_old_one_is_killed(kafka: LocalCluster) -> None:
    columns = _columns(60_000)
    with Cluster(kafka.bootstrap) as cluster, Admin(cluster) as admin:
        admin.create_topic(TOPIC, partitions=3, replicas=3)
        victim = cluster.leader(TOPIC, 0).id
        killed: list[int] = []

        def progress(done: int) -> None:
            if done > 20_000 and not killed:
                kafka.kill(victim)
                killed.append(done)

        try:
            written = write(cluster, TOPIC, {p: _batches(columns, p, 3) for p in range(3)}, progress=progress)
            seen = read(cluster, _ranges(admin, 3), progress=lambda done: None)
            assert cluster.leader(TOPIC, 0).id != victim
        finally:
            kafka.restart(victim)
            admin.delete_topics(TOPIC)
    assert killed
    assert written.failures > 0
    assert written.fingerprint == seen.fingerprint == _expected(columns)


@pytest.mark.broker
def test_the_demo_ends_with_a_proof_and_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ottla.cli", "demo", "--records", "50000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=_environment(tmp_path), check=False)
    assert done.returncode == 0, done.stderr
    written, seen = re.findall(r"fingerprint (?:written|read) +(\S+)", done.stdout)
    assert written == seen
    assert written.startswith("50000:")
    assert "killed with SIGKILL" in done.stdout
    assert "how to go on" in done.stdout
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or ())]
    assert not list(tmp_path.iterdir())


def _environment(temporary: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(temporary)}


def test_the_demo_refuses_a_silly_number() -> None:
    command = [sys.executable, "-m", "ottla.cli", "demo", "--records", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--records" in done.stderr
