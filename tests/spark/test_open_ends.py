"""What comes after the planning of a batch query: which tasks look for it, and what they find."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from ottla.errors import ConfigError, OffsetsLost
from ottla.model import Isolation, OffsetRange, TopicPartition
from ottla.spark.offsets import Logs
from ottla.spark.open_ends import OpenEnd, find_new_ranges, new_ranges, open_ends
from ottla.spark.read_options import ReadOptions, for_batch

A0, A1, A2 = (TopicPartition("a", number) for number in range(3))


class Known(Logs):
    """Logs whose ends are given: for each partition where it begins and ends, and the times of its records."""

    def __init__(
        self, wanted: ReadOptions, logs: dict[TopicPartition, tuple[int, int]], first: int | None = None
    ) -> None:
        super().__init__(None, wanted.subscription, isolation=Isolation.READ_UNCOMMITTED)  # type: ignore[arg-type]
        self._logs = logs
        self._first = first

    def partitions(self, topics: Any = None) -> list[TopicPartition]:
        return sorted(self._logs)

    def at(self, end: Any, partitions: Any) -> dict[TopicPartition, int]:
        return {at: self._logs[at][end.name == "LATEST"] for at in partitions}

    def since(self, milliseconds: int, partitions: Any) -> dict[TopicPartition, int | None]:
        return dict.fromkeys(partitions, self._first)


def wanted(**options: str) -> ReadOptions:
    return for_batch({"kafka.bootstrap.servers": "x:1", "subscribe": "a", **options})


def places(**offsets: int) -> str:
    return json.dumps({"a": {name.removeprefix("p"): offset for name, offset in offsets.items()}})


def test_some_tasks_share_the_partitions_and_one_of_them_looks_for_others() -> None:
    ends = {TopicPartition("a", number): number for number in range(6)}
    tasks = open_ends(wanted(), ends)
    assert len(tasks) == 4
    assert {at: end for task in tasks for at, end in task.ends.items()} == ends
    assert sum(len(task.ends) for task in tasks) == 6
    assert [task.known for task in tasks] == [frozenset(ends), None, None, None]


def test_ends_that_are_given_stay_where_they_are() -> None:
    assert open_ends(wanted(endingOffsets=places(p0=5, p1=7)), {A0: 5, A1: 7}) == []
    (task,) = open_ends(wanted(endingOffsets=places(p0=5, p1=-1)), {A0: 5, A1: 7})
    assert (task.ends, task.known) == ({A1: 7}, None)
    allowed = wanted(endingOffsets=places(p0=50, p1=7), failOnDataLoss="false")
    (task,) = open_ends(allowed, {A0: 5, A1: 7})  # the log of the first one ended before
    assert new_ranges(Known(allowed, {A0: (0, 60), A1: (0, 9)}), allowed, task) == [OffsetRange("a", 0, 5, 50)]
    assert new_ranges(Known(allowed, {A0: (0, 20), A1: (0, 9)}), allowed, task) == [OffsetRange("a", 0, 5, 20)]


def test_a_topic_without_partitions_yet_has_a_task_that_looks() -> None:
    (task,) = open_ends(wanted(), {})
    assert (task.ends, task.known) == ({}, frozenset())


def test_it_goes_on_behind_what_was_planned_and_takes_new_partitions_from_their_beginning() -> None:
    one = wanted()
    logs = Known(one, {A0: (0, 15), A1: (0, 20), A2: (3, 8)})
    task = OpenEnd({A0: 10, A1: 20}, frozenset([A0, A1]))
    assert new_ranges(logs, one, task) == [OffsetRange("a", 0, 10, 15), OffsetRange("a", 2, 3, 8)]
    assert new_ranges(logs, one, OpenEnd({A0: 10}, None)) == [OffsetRange("a", 0, 10, 15)]


def test_a_start_in_time_that_no_record_had_reached_is_looked_for_again() -> None:
    one = wanted(startingTimestamp="1000", startingOffsetsByTimestampStrategy="latest")
    task = OpenEnd({A0: 10}, None)
    assert new_ranges(Known(one, {A0: (0, 15)}, first=12), one, task) == [OffsetRange("a", 0, 12, 15)]
    assert new_ranges(Known(one, {A0: (0, 15)}, first=4), one, task) == [OffsetRange("a", 0, 10, 15)]
    assert new_ranges(Known(one, {A0: (0, 15)}, first=None), one, task) == []


def test_an_end_in_time_is_looked_for_again_until_a_record_has_reached_it() -> None:
    one = wanted(endingTimestamp="1000")
    task = OpenEnd({A0: 10}, None)
    assert new_ranges(Known(one, {A0: (0, 15)}, first=None), one, task) == [OffsetRange("a", 0, 10, 15)]
    assert new_ranges(Known(one, {A0: (0, 15)}, first=12), one, task) == [OffsetRange("a", 0, 10, 12)]


def test_offsets_that_leave_out_a_new_partition_are_refused_as_the_connector_does() -> None:
    one = wanted(startingOffsets=places(p0=0))
    with pytest.raises(ConfigError, match="it leaves out a-1"):
        new_ranges(Known(one, {A0: (0, 15), A1: (0, 1)}), one, OpenEnd({A0: 10}, frozenset([A0])))


def test_a_log_that_is_shorter_now_is_an_error_or_told(caplog: pytest.LogCaptureFixture) -> None:
    logs = Known(wanted(), {A0: (0, 4)})
    with pytest.raises(OffsetsLost, match=r"offsets \[4, 10\) are lost: the log now ends at 4"):
        new_ranges(logs, wanted(), OpenEnd({A0: 10}, None))
    with caplog.at_level(logging.WARNING):
        assert new_ranges(logs, wanted(failOnDataLoss="false"), OpenEnd({A0: 10}, None)) == []
    assert "offsets [4, 10) are left out" in caplog.text


def test_outside_of_a_sql_execution_nothing_is_looked_for() -> None:
    assert find_new_ranges(wanted(), OpenEnd({A0: 10}, None)) == []
