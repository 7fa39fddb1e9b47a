"""Bounds: what is refused before any request is sent, and the offsets that they resolve to."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.wire.rows import NOW

from ottla.errors import InputError
from ottla.fetch import bounds
from ottla.fetch.bounds import CommittedBy
from ottla.model import Isolation, OffsetRange, TopicPartition
from ottla.net import Cluster, Deadline
from ottla.testing import FakeKafka

from .logs import fill, plain, plant

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Partition 0 has the offsets [5, 30), partition 1 is empty."""
    with FakeKafka(topics={"t": 2}, auto_create=None) as kafka, Cluster(kafka.bootstrap) as client:
        fill(kafka, 3)
        with kafka._dispatcher.changed:
            kafka._partition("t", 0).log.delete_before(5)
        yield client


def resolved(cluster: Cluster, bound: bounds.Bound) -> dict[TopicPartition, int]:
    limit = Deadline.after(10)
    return bounds.resolve(cluster, [ZERO, ONE], bound, isolation=Isolation.READ_UNCOMMITTED, deadline=limit)


@pytest.mark.parametrize(
    ("bound", "text"),
    [
        ("yesterday", "start is 'yesterday'; accepted are 'earliest', 'latest', an offset, a datetime"),
        (None, "start is None"),
        (True, "start is True"),
        (1.5, r"start is 1\.5"),
        (b"earliest", "start is b'earliest'"),
        (-1, "start is offset -1; offsets begin at 0"),
        ({0: -1}, "start: the offset of 0 is -1; offsets are whole numbers from 0"),
        ({0: "latest"}, "start: the offset of 0 is 'latest'"),
        (datetime(2026, 1, 1), "has no time zone"),
        (datetime(1960, 1, 1, tzinfo=UTC), "a time before 1970"),
        ([0, 1], r"start is \[0, 1\]"),
    ],
)
def test_what_is_no_place_is_refused_and_what_is_accepted_is_named(bound: Any, text: str) -> None:
    with pytest.raises(InputError, match=text):
        bounds.check(bound, "start")


@pytest.mark.parametrize("bound", ["earliest", "latest", 0, 7, {0: 5}, CommittedBy("g"), datetime.now(UTC)])
def test_a_place_is_accepted(bound: Any) -> None:
    bounds.check(bound, "start")
    assert bounds.named_partitions(bound) == (frozenset({0}) if isinstance(bound, dict) else None)


def test_a_group_that_has_committed_nothing_needs_a_place_that_exists() -> None:
    with pytest.raises(InputError, match=r"otherwise='now'.*'earliest' or 'latest'"):
        CommittedBy("g", otherwise="now")


def test_the_ends_of_logs_are_asked_for(cluster: Cluster) -> None:
    assert resolved(cluster, "earliest") == {ZERO: 5, ONE: 0}
    assert resolved(cluster, "latest") == {ZERO: 30, ONE: 0}


def test_an_offset_is_taken_as_it_is_said(cluster: Cluster) -> None:
    assert resolved(cluster, 17) == {ZERO: 17, ONE: 17}
    assert resolved(cluster, {ZERO: 3, ONE: 4}) == {ZERO: 3, ONE: 4}
    assert resolved(cluster, {0: 3, 1: 4}) == {ZERO: 3, ONE: 4}
    with pytest.raises(InputError, match="no offset is given for t-1; those given are for 0"):
        resolved(cluster, {0: 3})


def test_a_time_is_the_first_record_at_or_after_it_or_the_end(cluster: Cluster) -> None:
    time = datetime.fromtimestamp(NOW / 1000, UTC)
    assert resolved(cluster, time)[ZERO] == 5
    assert resolved(cluster, time + timedelta(days=1)) == {ZERO: 30, ONE: 0}


def test_a_group_without_offsets_starts_where_otherwise_says(cluster: Cluster) -> None:
    assert resolved(cluster, CommittedBy("nobody")) == {ZERO: 5, ONE: 0}
    assert resolved(cluster, CommittedBy("nobody", otherwise="latest")) == {ZERO: 30, ONE: 0}


def test_a_range_that_would_end_before_it_begins_is_empty() -> None:
    start, stop = {ONE: 5, ZERO: 1}, {ONE: 2, ZERO: 3}
    assert bounds.ranges_between(start, stop) == [OffsetRange("t", 0, 1, 3), OffsetRange("t", 1, 5, 5)]


def test_a_time_within_a_batch_is_found() -> None:
    with FakeKafka(topics={"t": 2}) as kafka, Cluster(kafka.bootstrap) as client:
        plant(kafka, plain(0, 10, max_time=NOW + 9), base=0, stop=10)
        assert resolved(client, datetime.fromtimestamp((NOW + 4) / 1000, UTC))[ZERO] == 4
