"""One way to wait in tests: for a condition, with a deadline, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable

_POLL_SECONDS = 0.01


def eventually(condition: Callable[[], object], what: str | Callable[[], str] = "", *, seconds: float = 60.0) -> None:
    """Returns when the condition holds; fails, and says `what` was waited for, when that takes too long."""
    until = time.monotonic() + seconds
    while not condition():
        told = what() if callable(what) else what
        assert time.monotonic() < until, f"not within {seconds} s: {told}"
        time.sleep(_POLL_SECONDS)
