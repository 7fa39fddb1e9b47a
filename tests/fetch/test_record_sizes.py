"""Estimates of record sizes: brokers are asked when there is something new, and not again and again."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.admin.sizes import ReplicaSize, ReplicaSizes
from ottla.errors import OttlaError
from ottla.fetch import record_sizes
from ottla.fetch.record_sizes import GUESS_BYTES, RecordSizes
from ottla.model import TopicPartition
from ottla.net import Cluster

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


class Brokers:
    """Brokers that report their log sizes, or refuse to."""

    def __init__(self) -> None:
        self.sizes: dict[TopicPartition, int] | None = {}
        self.questions = 0

    def __call__(self, cluster: Cluster) -> Brokers:
        return self

    def replica_sizes(self, topics: Any, timeout: float) -> ReplicaSizes:
        self.questions += 1
        if self.sizes is None:
            raise OttlaError("not for you")
        return ReplicaSizes(
            {partition: (ReplicaSize(partition, 1, size, "/data"),) for partition, size in self.sizes.items()}
        )


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    """The brokers that the code under test asks."""
    brokers = Brokers()
    monkeypatch.setattr(record_sizes, "Admin", brokers)
    return brokers


@pytest.fixture
def sizes() -> RecordSizes:
    """A new estimator."""
    return RecordSizes(Cluster("127.0.0.1:9"))


def test_what_has_no_records_is_not_asked_for(brokers: Brokers, sizes: RecordSizes) -> None:
    assert sizes.of([], {}, {}) == GUESS_BYTES
    assert sizes.of(["a"], {A: 7}, {A: 7}) == GUESS_BYTES
    assert brokers.questions == 0


def test_the_first_records_of_a_partition_are_a_reason_to_ask(brokers: Brokers, sizes: RecordSizes) -> None:
    brokers.sizes = {A: 5_000}
    assert sizes.of(["a"], {A: 0}, {A: 10}) == {A: 500.0}
    brokers.sizes = {A: 5_000, B: 90}
    assert sizes.of(["a", "b"], {A: 0, B: 5}, {A: 10, B: 5}) == {A: 500.0}
    assert brokers.questions == 1
    assert sizes.of(["a", "b"], {A: 0, B: 5}, {A: 20, B: 8}) == {A: 250.0, B: 30.0}
    assert sizes.of(["a", "b"], {A: 0, B: 5}, {A: 30, B: 9}) == {A: 250.0, B: 30.0}
    assert brokers.questions == 2


def test_brokers_that_do_not_tell_are_not_asked_again_and_again(brokers: Brokers, sizes: RecordSizes) -> None:
    brokers.sizes = None
    for end in (10, 20, 30):
        assert sizes.of(["a"], {A: 0}, {A: end}) == GUESS_BYTES
    assert brokers.questions == 1


def test_an_estimate_grows_old(brokers: Brokers, sizes: RecordSizes, monkeypatch: pytest.MonkeyPatch) -> None:
    brokers.sizes = {A: 5_000}
    sizes.of(["a"], {A: 0}, {A: 10})
    monkeypatch.setattr(record_sizes, "_GOOD_SECONDS", -1.0)
    brokers.sizes = {A: 9_000}
    assert sizes.of(["a"], {A: 0}, {A: 10}) == {A: 900.0}
