"""Points in time as people write them on a command line: ISO 8601 with a zone, or a distance from now.

Text and the present come in, an aware datetime in UTC goes out; what is not accepted is a ValueError that says what is.
Pure: it does not look at the clock.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from ottla.cli.values.units import parse_duration

ACCEPTED = (
    "accepted are ISO 8601 with a zone (2025-03-01T12:00:00Z, 2025-03-01T13:00+01:00), a time ago (-90s, -2h, '2h ago',"
    " 1d12h ago), seconds since 1970 with an @ (@1740830400), and 'now'"
)
_AGO = re.compile(r"-\s*(?P<minus>[0-9].*)|(?P<ago>[0-9].*?)\s+ago", re.IGNORECASE)
_SINCE_1970 = re.compile(r"@[0-9]{1,12}(\.[0-9]{1,9})?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_time(text: str, *, now: datetime) -> datetime:
    """The moment that `text` means if it is `now`, in UTC. ValueError says what is wrong and what is accepted."""
    try:
        found = _read(text.strip(), now)
    except (ValueError, OverflowError) as exc:
        raise ValueError(f"{text!r} is no time that can be understood; {ACCEPTED}") from exc
    if found.tzinfo is None:
        raise ValueError(f"the time {text!r} has no zone: write {found.isoformat()}Z if it is UTC; {ACCEPTED}")
    if found < _EPOCH:
        raise ValueError(f"the time {text!r} is before 1970, where no record can be; {ACCEPTED}")
    return found.astimezone(UTC)


def _read(text: str, now: datetime) -> datetime:
    if text.lower() == "now":
        return now
    if match := _AGO.fullmatch(text):
        return now - timedelta(seconds=parse_duration(match["minus"] or match["ago"]))
    if _SINCE_1970.fullmatch(text):
        return _EPOCH + timedelta(seconds=float(text[1:]))
    return datetime.fromisoformat(text)
