"""Records that arrive after a batch query was planned: which tasks look for them, and what they find."""

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
    """Logs with fixed first and end offsets, and the offset of the first record at any time."""

    def __init__(
        self, parsed: ReadOptions, logs: dict[TopicPartition, tuple[int, int]], first: int | None = None
    ) -> None:
        super().__init__(None, parsed.subscription, isolation=Isolation.READ_UNCOMMITTED)  # type: ignore[arg-type]
        self._logs = logs
        self._first = first

    def partitions(self, topics: Any = None) -> list[TopicPartition]:
        return sorted(self._logs)

    def at(self, end: Any, partitions: Any) -> dict[TopicPartition, int]:
        return {tp: self._logs[tp][end.name == "LATEST"] for tp in partitions}

    def since(self, milliseconds: int, partitions: Any) -> dict[TopicPartition, int | None]:
        return dict.fromkeys(partitions, self._first)


def parsed(**options: str) -> ReadOptions:
    return for_batch({"kafka.bootstrap.servers": "x:1", "subscribe": "a", **options})


def offsets_json(**offsets: int) -> str:
    return json.dumps({"a": {name.removeprefix("p"): offset for name, offset in offsets.items()}})


def test_some_tasks_share_the_partitions_and_one_of_them_looks_for_others() -> None:
    ends = {TopicPartition("a", number): number for number in range(6)}
    tasks = open_ends(parsed(), ends)
    assert len(tasks) == 4
    assert {tp: end for task in tasks for tp, end in task.ends.items()} == ends
    assert sum(len(task.ends) for task in tasks) == 6
    assert [task.known for task in tasks] == [frozenset(ends), None, None, None]


def test_ends_that_are_given_stay_where_they_are() -> None:
    assert open_ends(parsed(endingOffsets=offsets_json(p0=5, p1=7)), {A0: 5, A1: 7}) == []
    (task,) = open_ends(parsed(endingOffsets=offsets_json(p0=5, p1=-1)), {A0: 5, A1: 7})
    assert (task.ends, task.known) == ({A1: 7}, None)
    allowed = parsed(endingOffsets=offsets_json(p0=50, p1=7), failOnDataLoss="false")
    (task,) = open_ends(allowed, {A0: 5, A1: 7})  # the first log ended before its fixed end
    assert new_ranges(Known(allowed, {A0: (0, 60), A1: (0, 9)}), allowed, task) == [OffsetRange("a", 0, 5, 50)]
    assert new_ranges(Known(allowed, {A0: (0, 20), A1: (0, 9)}), allowed, task) == [OffsetRange("a", 0, 5, 20)]


def test_a_topic_without_partitions_yet_has_a_task_that_looks() -> None:
    (task,) = open_ends(parsed(), {})
    assert (task.ends, task.known) == ({}, frozenset())


def test_it_goes_on_behind_what_was_planned_and_takes_new_partitions_from_their_beginning() -> None:
    query = parsed()
    logs = Known(query, {A0: (0, 15), A1: (0, 20), A2: (3, 8)})
    task = OpenEnd({A0: 10, A1: 20}, frozenset([A0, A1]))
    assert new_ranges(logs, query, task) == [OffsetRange("a", 0, 10, 15), OffsetRange("a", 2, 3, 8)]
    assert new_ranges(logs, query, OpenEnd({A0: 10}, None)) == [OffsetRange("a", 0, 10, 15)]


def test_a_start_in_time_that_no_record_had_reached_is_looked_for_again() -> None:
    query = parsed(startingTimestamp="1000", startingOffsetsByTimestampStrategy="latest")
    task = OpenEnd({A0: 10}, None)
    assert new_ranges(Known(query, {A0: (0, 15)}, first=12), query, task) == [OffsetRange("a", 0, 12, 15)]
    assert new_ranges(Known(query, {A0: (0, 15)}, first=4), query, task) == [OffsetRange("a", 0, 10, 15)]
    assert new_ranges(Known(query, {A0: (0, 15)}, first=None), query, task) == []


def test_an_end_in_time_is_looked_for_again_until_a_record_has_reached_it() -> None:
    query = parsed(endingTimestamp="1000")
    task = OpenEnd({A0: 10}, None)
    assert new_ranges(Known(query, {A0: (0, 15)}, first=None), query, task) == [OffsetRange("a", 0, 10, 15)]
    assert new_ranges(Known(query, {A0: (0, 15)}, first=12), query, task) == [OffsetRange("a", 0, 10, 12)]


def test_offsets_that_leave_out_a_new_partition_are_refused_as_the_connector_does() -> None:
    query = parsed(startingOffsets=offsets_json(p0=0))
    with pytest.raises(ConfigError, match="it leaves out a-1"):
        new_ranges(Known(query, {A0: (0, 15), A1: (0, 1)}), query, OpenEnd({A0: 10}, frozenset([A0])))


def test_a_log_that_is_shorter_now_is_an_error_or_reported(caplog: pytest.LogCaptureFixture) -> None:
    logs = Known(parsed(), {A0: (0, 4)})
    with pytest.raises(OffsetsLost, match=r"offsets \[4, 10\) are lost: the log now ends at 4"):
        new_ranges(logs, parsed(), OpenEnd({A0: 10}, None))
    with caplog.at_level(logging.WARNING):
        assert new_ranges(logs, parsed(failOnDataLoss="false"), OpenEnd({A0: 10}, None)) == []
    assert "offsets [4, 10) are left out" in caplog.text


def test_outside_of_a_sql_execution_nothing_is_looked_for() -> None:
    assert find_new_ranges(parsed(), OpenEnd({A0: 10}, None)) == []
