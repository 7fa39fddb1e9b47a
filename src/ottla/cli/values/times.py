"""Points in time on the command line: ISO 8601 with a zone, or a distance from now.

A text and the present become an aware datetime in UTC. A text that is not a time raises ValueError. Pure: it does not
read the clock.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from ottla.cli.values.quantities import parse_duration

_ISO = "use ISO 8601 with a zone (2025-03-01T12:00:00Z, 2025-03-01T13:00+01:00)"
_SECONDS = "seconds since 1970 with an @ (@1740830400)"
ACCEPTED = f"{_ISO}, a time ago (-2h, '2h ago', '1d12h ago'), {_SECONDS}, or now"
_AGO = re.compile(r"-\s*(?P<minus>[0-9].*)|(?P<ago>[0-9].*?)\s+ago", re.IGNORECASE)
_SINCE_1970 = re.compile(r"@[0-9]{1,12}(\.[0-9]{1,9})?")
_MILLISECONDS_SINCE_1970 = re.compile(r"@[0-9]{13}")
_NO_TIMESTAMP = -1
"""Kafka's timestamp of a record that has none."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class NotATime(ValueError):
    """The text is not a time. `absolute` says the same without times relative to now."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}{ACCEPTED}")
        self.absolute = f"{reason}{_ISO}, or {_SECONDS}"


def parse_time(text: str, *, now: datetime) -> datetime:
    """Return the moment that `text` means at the time `now`, in UTC. Raises NotATime if it is not a time."""
    if _MILLISECONDS_SINCE_1970.fullmatch(text.strip()):
        number = text.strip()[1:]
        seconds = f"{number[:-3]}.{number[-3:]}".rstrip("0").rstrip(".")
        raise NotATime(f"the time {text!r} must be in seconds, not milliseconds: write @{seconds}; or ")
    try:
        moment = _read(text.strip(), now)
    except (ValueError, OverflowError) as exc:
        raise NotATime(f"{text!r} is not a time: ") from exc
    if moment.tzinfo is None:
        raise NotATime(f"the time {text!r} has no zone: write {moment.isoformat()}Z if it is UTC; or ")
    if moment < _EPOCH:
        raise NotATime(f"the time {text!r} is before 1970, before any record; ")
    return moment.astimezone(UTC)


def is_relative(text: str) -> bool:
    """Return whether a time depends on the present."""
    return text.strip().lower() == "now" or _AGO.fullmatch(text.strip()) is not None


def _read(text: str, now: datetime) -> datetime:
    if text.lower() == "now":
        return now
    if match := _AGO.fullmatch(text):
        distance = match["minus"] or match["ago"]
        if distance.strip().isdecimal():
            raise ValueError("a distance without a unit")  # "-10" means the last ten records elsewhere
        return now - timedelta(seconds=parse_duration(distance))
    if _SINCE_1970.fullmatch(text):
        return _EPOCH + timedelta(seconds=float(text[1:]))
    return datetime.fromisoformat(text)


def show_timestamp(milliseconds: int | None) -> str | None:
    """Return a Kafka timestamp as ISO 8601; None for none, seconds since 1970 where ISO 8601 has no form for it."""
    if milliseconds is None or milliseconds == _NO_TIMESTAMP:
        return None
    try:
        moment = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return f"{'-' if milliseconds < 0 else ''}{abs(milliseconds) // 1000}.{abs(milliseconds) % 1000:03}"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
