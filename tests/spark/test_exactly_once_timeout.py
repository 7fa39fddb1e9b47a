"""Transactions that brokers abort by their timeout, before and after the batch is recorded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.datasource import WriterCommitMessage
from tests.spark.sink_play import Play, dying
from tests.transactions.reading import Log

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.errors import TransactionFailed
from ottla.net import Cluster
from ottla.produce import coordinator
from ottla.spark import two_phase
from ottla.spark.sink import TaskResult

pytestmark = pytest.mark.broker
ROWS = {0: ["a", "b"], 1: ["c"]}
_SECONDS = 30.0


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A broker that looks for expired transactions all the time, not every ten seconds."""
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
    with LocalCluster("impatient", brokers=1, dir=tmp_path_factory.mktemp("impatient"), settings=settings) as cluster:
        yield cluster


def _play(cluster: LocalCluster, folder: Path, topic: str, **options: str) -> Play:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(topic, partitions=2)
    return Play(cluster.bootstrap, topic, folder, **options)


def _await_timeout(cluster: LocalCluster, messages: list[WriterCommitMessage]) -> None:
    deadline = time.monotonic() + _SECONDS
    with Cluster(cluster.bootstrap) as client:
        for message in messages:
            assert isinstance(message, TaskResult)
            assert message.share is not None
            assert message.share.prepared is not None
            while coordinator.is_ongoing(client, message.share.prepared):
                assert time.monotonic() < deadline
                time.sleep(0.05)


def test_a_batch_whose_tasks_took_too_long_is_refused_as_a_whole(impatient: LocalCluster, tmp_path: Path) -> None:
    play = _play(impatient, tmp_path, "timeout-before", **{"kafka.transaction.timeout.ms": "1000"})
    messages = play.tasks(0, ROWS)
    _await_timeout(impatient, messages)
    with pytest.raises(TransactionFailed, match=r"2 of 2 transactions were aborted.*Raise kafka\.transaction\.timeout"):
        play.commit(messages, 0)
    with Log(impatient.bootstrap) as log:
        assert log.committed("timeout-before") == []
        play.run(0, ROWS)
        assert log.committed("timeout-before") == [b"a", b"b", b"c"]


def test_a_recorded_batch_whose_transactions_timed_out_before_the_restart_is_written_again(
    impatient: LocalCluster, tmp_path: Path
) -> None:
    play = _play(impatient, tmp_path, "timeout-all", **{"kafka.transaction.timeout.ms": "1000"})
    messages = play.tasks(0, ROWS)
    with dying(two_phase, "commit_all"):
        play.commit(messages, 0)
    _await_timeout(impatient, messages)
    play.run(0, ROWS)
    with Log(impatient.bootstrap) as log:
        assert log.committed("timeout-all") == [b"a", b"b", b"c"]


def test_what_timed_out_of_a_batch_that_was_half_ended_is_written_again(
    impatient: LocalCluster, tmp_path: Path
) -> None:
    play = _play(impatient, tmp_path, "timeout-half", **{"kafka.transaction.timeout.ms": "1000"})
    messages = play.tasks(0, ROWS)
    with dying(coordinator, "end", after=1):
        play.commit(messages, 0)
    _await_timeout(impatient, messages)
    play.run(0, ROWS)
    with Log(impatient.bootstrap) as log:
        assert log.committed("timeout-half") == [b"a", b"b", b"c"]
