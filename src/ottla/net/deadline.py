"""A deadline, passed down through every call that blocks.

Seconds come in, the remaining seconds go out. It uses the monotonic clock, so a jump of the wall clock does not
matter. It never waits itself.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from ottla.config import LONGEST


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in time. `at` and `started` are readings of `time.monotonic`."""

    at: float
    started: float = field(default_factory=time.monotonic)

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return the deadline `seconds` from now."""
        now = time.monotonic()
        return cls(now + seconds, now)

    def remaining(self) -> float:
        """Return the seconds left, 0 if it has passed. Never more than a lock or a poll accepts as a timeout."""
        return min(max(0.0, self.at - time.monotonic()), LONGEST)

    def expired(self) -> bool:
        """Whether it has passed."""
        return time.monotonic() >= self.at

    def elapsed(self) -> float:
        """Return the seconds since it was created."""
        return time.monotonic() - self.started

    def sooner(self, seconds: float) -> Deadline:
        """Return the earlier of this deadline and `seconds` from now."""
        now = time.monotonic()
        return Deadline(min(self.at, now + seconds), now)

    @property
    def seconds(self) -> float:
        """The original timeout in seconds, for error texts."""
        return max(0.0, self.at - self.started)


class LeavableDeadline(Deadline):
    """A deadline that its caller can end when it waits no longer."""

    __slots__ = ()

    def leave(self) -> None:
        """Let it pass now. Any thread may call this."""
        object.__setattr__(self, "at", -math.inf)
