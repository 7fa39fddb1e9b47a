"""Filters narrow what is read, and never leave out a row that would pass."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from ottla.model import OffsetRange
from ottla.spark.batch_source import BatchReader
from ottla.spark.pruning import take
from ottla.spark.wanted import for_batch

RANGES = [OffsetRange("a", 0, 0, 20), OffsetRange("a", 1, 5, 30), OffsetRange("b", 0, 10, 10)]
TESTS: dict[Any, Any] = {
    EqualTo: lambda found, value: found == value,
    EqualNullSafe: lambda found, value: found == value,
    GreaterThan: lambda found, value: found > value,
    GreaterThanOrEqual: lambda found, value: found >= value,
    LessThan: lambda found, value: found < value,
    LessThanOrEqual: lambda found, value: found <= value,
}
NUMBERS = st.builds(
    lambda kind, column, value: kind((column,), value),
    st.sampled_from(sorted(TESTS, key=str)),
    st.sampled_from(["partition", "offset"]),
    st.integers(-2, 35),
)


def passes(one: Any, topic: str, partition: int, offset: int) -> bool:
    found = {"topic": topic, "partition": partition, "offset": offset}[one.attribute[0]]
    return bool(found in one.value if isinstance(one, In) else TESTS[type(one)](found, one.value))


@given(st.lists(NUMBERS, max_size=4))
def test_exactly_the_rows_that_pass_are_left(filters: list[Filter]) -> None:
    narrowing, left = take(filters)
    read = {
        (one.topic, one.partition, offset) for one in narrowing.narrow(RANGES) for offset in range(one.start, one.stop)
    }
    wanted = {
        (one.topic, one.partition, offset)
        for one in RANGES
        for offset in range(one.start, one.stop)
        if all(passes(test, one.topic, one.partition, offset) for test in filters)
    }
    assert read == wanted
    assert left == []


def test_topics_and_sets_of_partitions_are_understood() -> None:
    narrowing, left = take([EqualTo(("topic",), "a"), In(("partition",), (1, 7)), IsNotNull(("offset",))])
    assert narrowing.narrow(RANGES) == [RANGES[1]]
    assert left == []


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("value",), b"x"),
        EqualTo(("partition",), None),
        EqualTo(("partition", "x"), 1),
        EqualTo(("offset",), 1.5),
        In(("offset",), (1, 2)),
        IsNull(("partition",)),
        IsNotNull(("key",)),
        Not(EqualTo(("partition",), 1)),
        StringStartsWith(("topic",), "a"),
        LessThan(("timestamp",), datetime(2024, 1, 1, tzinfo=UTC)),
    ],
)
def test_what_is_not_understood_is_left_to_spark(one: Filter) -> None:
    narrowing, left = take([one])
    assert left == [one]
    assert narrowing.narrow(RANGES) == RANGES
    assert narrowing.since is None


def test_a_time_is_where_reading_begins_and_is_still_checked_by_spark() -> None:
    early, late = datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 2, 0, 0, 0, 1999, tzinfo=UTC)
    filters: list[Filter] = [GreaterThan(("timestamp",), early), GreaterThanOrEqual(("timestamp",), late)]
    narrowing, left = take(filters)
    assert narrowing.since == int(datetime(2024, 1, 2, tzinfo=UTC).timestamp() * 1000) + 1
    assert left == filters


def test_spark_does_not_see_that_filters_are_taken_where_it_would_refuse_to_read() -> None:
    reader = BatchReader(for_batch({"kafka.bootstrap.servers": "x:1", "subscribe": "a"}), StructType())
    assert reader.pushFilters.__func__ is DataSourceReader.pushFilters
    assert list(reader.pushFilters([EqualTo(("partition",), 1), EqualTo(("value",), b"x")])) == [
        EqualTo(("value",), b"x")
    ]
