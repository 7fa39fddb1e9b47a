"""Points in time as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cli.values.times import parse_time

NOW = datetime(2025, 3, 1, 12, 0, tzinfo=timezone(timedelta(hours=1)))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2025-03-01T12:00:00Z", datetime(2025, 3, 1, 12, tzinfo=UTC)),
        ("2025-03-01T13:00+01:00", datetime(2025, 3, 1, 12, tzinfo=UTC)),
        ("2025-03-01 12:00:00.250Z", datetime(2025, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)),
        ("-2h", datetime(2025, 3, 1, 9, tzinfo=UTC)),
        ("2h ago", datetime(2025, 3, 1, 9, tzinfo=UTC)),
        ("1d12h ago", datetime(2025, 2, 27, 23, tzinfo=UTC)),
        ("90 minutes ago", datetime(2025, 3, 1, 9, 30, tzinfo=UTC)),
        ("now", datetime(2025, 3, 1, 11, tzinfo=UTC)),
        ("@1740830400", datetime(2025, 3, 1, 12, tzinfo=UTC)),
        ("@0.5", datetime(1970, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)),
    ],
)
def test_times_are_read(text: str, found: datetime) -> None:
    assert parse_time(text, now=NOW) == found
    assert parse_time(text, now=NOW).tzinfo is UTC


@pytest.mark.parametrize(
    "text",
    ["", "soon", "yesterday", "2h", "-", "-2x", "2025-13-01T00:00Z", "2025-03-01T25:00Z", "@", "@soon", "-9999999999d"],
)
def test_what_is_no_time_is_refused_with_what_is_accepted(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a time: use ISO 8601 with a zone"):
        parse_time(text, now=NOW)


def test_a_time_without_a_zone_is_refused_with_the_way_to_write_it() -> None:
    with pytest.raises(ValueError, match="has no zone: write 2025-03-01T12:30:00Z if it is UTC"):
        parse_time("2025-03-01T12:30", now=NOW)
    with pytest.raises(ValueError, match="write 2025-03-01T00:00:00Z"):
        parse_time("2025-03-01", now=NOW)


@pytest.mark.parametrize("text", ["1969-12-31T23:59Z", "-30000d"])
def test_a_time_before_all_records_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is before 1970"):
        parse_time(text, now=NOW)


@given(st.text(max_size=30) | st.from_regex(r"[-@]?[0-9]{1,4}[-:0-9TZdhms. ]{0,20}( ago)?"))
def test_any_text_is_a_time_or_says_what_is_accepted(text: str) -> None:
    try:
        said = str(parse_time(text, now=NOW).tzinfo)
    except ValueError as error:
        said = str(error)
    assert said == "UTC" or "use ISO 8601" in said


def test_milliseconds_are_refused_with_the_seconds_to_write() -> None:
    with pytest.raises(ValueError, match=r"must be in seconds, not milliseconds: write @1740830400\.25; or use ISO"):
        parse_time("@1740830400250", now=NOW)
    with pytest.raises(ValueError, match=r"write @1740830400; or"):
        parse_time("@1740830400000", now=NOW)
