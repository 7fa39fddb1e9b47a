"""A broker that is away costs what it knows, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.admin.members import fill
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.config import Timeouts
from ottla.model import TopicPartition
from ottla.net import Cluster
from ottla.operations.lag import Evaluator, Poller, Selection, State, Status

pytestmark = [pytest.mark.broker, pytest.mark.slow]

TOPIC = "lag-away"


@pytest.fixture(scope="module")
def topic(kafka: LocalCluster) -> Iterator[str]:
    """A partition on each broker, with ten records, and a group that has read four."""
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic(TOPIC, assignments=[[1], [2], [3]])
        fill(kafka.bootstrap, TOPIC, {0: 10, 1: 10, 2: 10})
        for number in range(9):
            admin.groups.set_offsets(f"lag-away-{number}", {TopicPartition(TOPIC, index): 4 for index in range(3)})
        yield TOPIC


@pytest.mark.parametrize("fault", ["kill", "freeze"])
def test_the_others_are_shown_and_what_is_missing_is_said(kafka: LocalCluster, topic: str, fault: str) -> None:
    selection = Selection(frozenset(f"lag-away-{number}" for number in range(9)))
    with Cluster(kafka.bootstrap, timeouts=Timeouts(total=12, connect=2, request=12)) as cluster:
        poller, evaluator = Poller(cluster, selection=selection), Evaluator()

        def is_whole() -> bool:
            snapshot = evaluator.observe(poller.poll(), missing=poller.missing)
            return [row.lag_records for row in snapshot.rows()] == [6] * 27

        eventually(is_whole, "nine groups in three partitions")
        getattr(kafka, fault)(2)
        try:
            eventually(lambda: _shows_the_others(evaluator, poller), "partitions of the other brokers")
        finally:
            kafka.restart(2) if fault == "kill" else kafka.thaw(2)
        eventually(is_whole, "everything is known again")


def _shows_the_others(evaluator: Evaluator, poller: Poller) -> bool:
    """Poll once: whether the partitions of brokers 1 and 3 are known. What is said of broker 2 must always hold."""
    began = time.monotonic()
    snapshot = evaluator.observe(poller.poll(), missing=poller.missing)
    assert time.monotonic() - began < 13
    # All groups are there, those of the broker with an unknown state until they have moved.
    assert len(snapshot.groups) == 9
    assert all(group.status is Status.UNKNOWN for group in snapshot.groups)
    known = [group for group in snapshot.groups if group.error is None]
    for group in known:
        row = group.rows[1]
        assert (row.partition, row.state, row.lag_records) == (1, State.UNKNOWN, None)
        assert row.note.startswith("the end of the log is unknown")
    others = [row for group in known for row in group.rows if row.partition != 1]
    return bool(others) and all(row.lag_records == 6 and row.lag_seconds is not None for row in others)
