"""What the parser must know of time: this moment, its year, and how far local time is ahead of UTC around it.

RFC 3164 has neither year nor zone. A moment and a zone come in, the numbers for the kernel go out. Pure.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import numpy.typing as npt

from ottla.errors import ConfigError
from ottla.gateway.receiving.arrivals import readonly
from ottla.wire.kernels import syslog as k

_AROUND = timedelta(hours=36)
_SECOND = timedelta(seconds=1)
LOCAL = "local"


def zone_named(name: str) -> tzinfo | None:
    """Return a time zone by its name; None for `local`. Raises `ConfigError`."""
    if name == LOCAL:
        return None
    if name.upper() == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ConfigError(f"timezone is {name!r}; accepted are local, UTC and names such as Europe/Prague") from error


def clock_at(now_ms: int, zone: tzinfo | None) -> npt.NDArray[np.int64]:
    """Return the fields of the kernel's clock. If the zone changes its offset within 36 hours, both are in it."""
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    first, last = now - _AROUND, now + _AROUND
    before, after, switch = _ahead(first, zone), _ahead(last, zone), first
    while before != after and last - first > _SECOND:
        middle = first + (last - first) / 2
        if _ahead(middle, zone) == before:
            first = middle
        else:
            last = middle
        switch = last
    fields = {
        k.NOW: now_ms,
        k.YEAR: now.astimezone(zone).year,
        k.BEFORE: before,
        k.AFTER: after,
        k.SWITCH: round(switch.timestamp()) * 1000,
    }
    return readonly(np.array([fields[number] for number in range(k.CLOCK_FIELDS)], np.int64))


def _ahead(moment: datetime, zone: tzinfo | None) -> int:
    """Return how many milliseconds local time is ahead of UTC."""
    offset = moment.astimezone(zone).utcoffset()
    return 0 if offset is None else round(offset.total_seconds() * 1000)
