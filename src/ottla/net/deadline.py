"""A moment by which something must be done, handed down through every call that waits.

It is made from seconds and asked for the seconds that remain; it uses the monotonic clock, so that a jump
of the wall clock moves nothing. It never waits itself.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ottla.config import LONGEST


@dataclass(frozen=True, slots=True)
class Deadline:
    """`at` and `started` are readings of `time.monotonic`."""

    at: float
    started: float = field(default_factory=time.monotonic)

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """The deadline `seconds` from now."""
        now = time.monotonic()
        return cls(now + seconds, now)

    def remaining(self) -> float:
        """Seconds left, 0 when it has passed; never more than a lock or a poll can be asked to wait."""
        return min(max(0.0, self.at - time.monotonic()), LONGEST)

    def expired(self) -> bool:
        """Whether it has passed."""
        return time.monotonic() >= self.at

    def elapsed(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self.started

    def sooner(self, seconds: float) -> Deadline:
        """The earlier of this deadline and `seconds` from now."""
        now = time.monotonic()
        return Deadline(min(self.at, now + seconds), now)

    @property
    def seconds(self) -> float:
        """How long it was when it was made, for the texts of errors."""
        return max(0.0, self.at - self.started)
