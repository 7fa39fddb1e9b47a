"""Transactions that brokers abort by their timeout, before and after the batch is recorded."""

from __future__ import annotations

import time
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
_TIMEOUT = "kafka.transaction.timeout.ms"
# Long enough to prepare and record a batch, also where others use the processors.
_SHORT = {_TIMEOUT: "4000"}


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


def _run_again(play: Play) -> None:
    """The batch, with all the time that it needs."""
    play.options[_TIMEOUT] = "60000"
    play.run(0, ROWS)


def test_a_batch_whose_tasks_took_too_long_is_refused_as_a_whole(hasty: LocalCluster, tmp_path: Path) -> None:
    play = _play(hasty, tmp_path, "timeout-before", **_SHORT)
    messages = play.tasks(0, ROWS)
    _await_timeout(hasty, messages)
    with pytest.raises(TransactionFailed, match=r"2 of 2 transactions were aborted.*Raise kafka\.transaction\.timeout"):
        play.commit(messages, 0)
    with Log(hasty.bootstrap) as log:
        assert log.committed("timeout-before") == []
        _run_again(play)
        assert log.committed("timeout-before") == [b"a", b"b", b"c"]


def test_a_recorded_batch_whose_transactions_timed_out_before_the_restart_is_written_again(
    hasty: LocalCluster, tmp_path: Path
) -> None:
    play = _play(hasty, tmp_path, "timeout-all", **_SHORT)
    messages = play.tasks(0, ROWS)
    with dying(two_phase, "commit_all"):
        play.commit(messages, 0)
    _await_timeout(hasty, messages)
    _run_again(play)
    with Log(hasty.bootstrap) as log:
        assert log.committed("timeout-all") == [b"a", b"b", b"c"]


def test_what_timed_out_of_a_batch_that_was_half_ended_is_written_again(hasty: LocalCluster, tmp_path: Path) -> None:
    play = _play(hasty, tmp_path, "timeout-half", **_SHORT)
    messages = play.tasks(0, ROWS)
    with dying(coordinator, "end", after=1):
        play.commit(messages, 0)
    _await_timeout(hasty, messages)
    _run_again(play)
    with Log(hasty.bootstrap) as log:
        assert log.committed("timeout-half") == [b"a", b"b", b"c"]
