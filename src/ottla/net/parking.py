"""What the background thread of a loop does while a program drives the loop: the rule of the hand-over.

Observations of the program come in, the next step of the thread goes out. Pure: see `loop.py` for the two drivers.
"""

from __future__ import annotations

from enum import Enum

GRACE_SECONDS = 0.002
"""How long a program may be away before the background thread takes over."""


class Next(Enum):
    """The next step of the background thread."""

    DRIVE = "drive"
    """Take over the loop."""
    NAP = "nap"
    """Look again after `GRACE_SECONDS`."""
    SLEEP = "sleep"
    """Wait until the program leaves."""


class Parking:
    """One period in which the background thread is parked.

    A program that comes and goes costs a look now and then. A program that stays costs none.
    """

    def __init__(self) -> None:
        self._seen: tuple[bool, int] | None = None

    def look(self, *, is_visited: bool, visits: int, is_handed_over: bool) -> Next:
        """Return the next step.

        `visits` counts how often the program came. `is_handed_over` says that it left and asks the thread to take over
        at once.
        """
        before, self._seen = self._seen, (is_visited, visits)
        has_changed = before != self._seen
        if is_visited:
            return Next.NAP if has_changed else Next.SLEEP
        return Next.NAP if has_changed and not is_handed_over else Next.DRIVE
