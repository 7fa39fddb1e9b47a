"""Where a read begins and ends, as people write it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ottla.cli.values.places import Kind, LastRecords, Place, Shift, parse_partitions, parse_place
from ottla.fetch.bounds import CommittedBy

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", "earliest"),
        (" latest ", "latest"),
        ("0", 0),
        ("9223372036854775807", 9223372036854775807),
        ("-10", LastRecords(10)),
        ("-2h", NOW - timedelta(hours=2)),
        ("2026-03-01T10:00:00+02:00", datetime(2026, 3, 1, 8, tzinfo=UTC)),
        ("group:billing", CommittedBy("billing")),
        ("group:-10", CommittedBy("-10")),
        ("shift:-10", Shift(-10)),
        ("shift:+7", Shift(7)),
    ],
)
def test_a_place_is_understood(text: str, place: Place) -> None:
    assert parse_place(text, now=NOW) == place


@pytest.mark.parametrize("text", ["", "newest", "1e3", "٣", "--5", "-", "group"])
def test_what_is_no_place_gets_the_list_of_those_that_are(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"is not a place in a topic: use earliest, latest, an offset, -N .*, a time \("
    ):
        parse_place(text, now=NOW)


def test_a_time_without_a_zone_is_refused_with_the_way_to_write_it() -> None:
    with pytest.raises(ValueError, match="has no zone: write 2026-03-01T10:00:00Z if it is UTC"):
        parse_place("2026-03-01T10:00", now=NOW)


def test_a_place_that_a_command_cannot_use_gets_the_list_of_those_that_it_can() -> None:
    with pytest.raises(ValueError, match=r"'-5' cannot be used here: use earliest or latest"):
        parse_place("-5", now=NOW, kinds=(Kind.EARLIEST, Kind.LATEST))


def test_an_offset_that_no_log_can_have_is_refused() -> None:
    with pytest.raises(ValueError, match="is not an offset: the largest is 9223372036854775807"):
        parse_place("9223372036854775808", now=NOW)


def test_a_group_needs_a_name() -> None:
    with pytest.raises(ValueError, match="the name of the group is missing, for example group:billing"):
        parse_place("group:", now=NOW)


@pytest.mark.parametrize(
    ("text", "partitions"), [("0", [0]), ("3-5", [3, 4, 5]), (" 7 , 0-2,1", [0, 1, 2, 7]), ("2-2", [2])]
)
def test_partitions_are_numbers_and_ranges(text: str, partitions: list[int]) -> None:
    assert parse_partitions(text) == partitions


@pytest.mark.parametrize("text", ["", "a", "1,", "-1", "5-3", "1--2", "0-2147483647", "2147483648", "٣"])
def test_what_are_no_partitions_is_reported(text: str) -> None:
    with pytest.raises(ValueError, match=r"are not partitions: write numbers and ranges, for example 0,3-5"):
        parse_partitions(text)
