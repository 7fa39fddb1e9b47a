"""Names of units on the command line: `clicks/0/1000-2000`, topic, partition and offsets `[start, stop)`.

What warnings and errors call a range, `clicks-0[1000, 2000)`, is understood as well. Pure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.model import OffsetRange

_ID = re.compile(r"(?P<topic>[^/]+)/(?P<partition>[0-9]{1,10})/(?P<start>[0-9]{1,19})-(?P<stop>[0-9]{1,19})", re.ASCII)

_RANGE = re.compile(
    r"(?P<topic>[^/\[]+)-(?P<partition>[0-9]{1,10})\[(?P<start>[0-9]{1,19}),\s*(?P<stop>[0-9]{1,19})\)", re.ASCII
)


def unit_id(unit: OffsetRange) -> str:
    """Return the name of a unit."""
    return f"{unit.topic}/{unit.partition}/{unit.start}-{unit.stop}"


def parse_unit_id(text: str) -> OffsetRange:
    """Return the unit with this name. Raises ValueError if the text is not the name of a unit."""
    from ottla.model import OffsetRange

    match = _ID.fullmatch(text.strip()) or _RANGE.fullmatch(text.strip())
    if match is None or int(match["stop"]) < int(match["start"]):
        raise ValueError(f"{text!r} is not a unit: write TOPIC/PARTITION/START-STOP, for example clicks/0/1000-2000")
    return OffsetRange(match["topic"], int(match["partition"]), int(match["start"]), int(match["stop"]))
