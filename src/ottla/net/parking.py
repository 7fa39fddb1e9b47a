"""What the background thread of a loop does while a program drives it: the rule of the hand-over.

Looks at whether the program is there come in, what to do next goes out. Pure: see `loop.py` for the two drivers.
"""

from __future__ import annotations

from enum import Enum

GRACE_SECONDS = 0.002
"""So long a program may be away before the background thread does its work."""


class Next(Enum):
    """What the background thread does."""

    DRIVE = "drive"
    NAP = "nap"
    """Look again after `GRACE_SECONDS`."""
    SLEEP = "sleep"
    """Wait until the program leaves."""


class Parking:
    """One stay. A program that comes again and again costs a look now and then; one that waits for long costs none."""

    def __init__(self) -> None:
        self._seen: tuple[bool, int] | None = None

    def look(self, *, is_visited: bool, visits: int, is_called: bool) -> Next:
        """`visits` counts how often the program came; `is_called` when it has left and asks to be relieved at once."""
        before, self._seen = self._seen, (is_visited, visits)
        has_changed = before != self._seen
        if is_visited:
            return Next.NAP if has_changed else Next.SLEEP
        return Next.NAP if has_changed and not is_called else Next.DRIVE
