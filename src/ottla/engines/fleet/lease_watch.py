"""Who is gone: leases that stand still, measured with the watcher's own clock, which nobody else can move.

What a store shows and a monotonic time come in; what has stood still long enough goes out. A time in which nobody could
look proves nothing: when the watcher or the store has paused, those who are alive have a few looks to show it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Hashable)
_FEWEST_LOOKS = 3
"""In which something must look the same, however far they lie apart."""


class _Still(NamedTuple, Generic[V]):
    value: V
    seconds: float


class LeaseWatch(Generic[K, V]):
    """Remembers how long each thing was seen to look as it does."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._known: dict[K, _Still[V]] = {}
        self._last = 0.0

    def still(self, seen: Mapping[K, V], now: float) -> dict[K, V]:
        """Those that have looked like this for longer than patience allows. What is not there any more is forgotten."""
        passed = min(now - self._last, self._patience / _FEWEST_LOOKS)
        self._last = now
        self._known = {key: self._after(key, value, passed) for key, value in seen.items()}
        return {key: one.value for key, one in self._known.items() if one.seconds > self._patience}

    def _after(self, key: K, value: V, passed: float) -> _Still[V]:
        known = self._known.get(key)
        return _Still(value, 0.0 if known is None or known.value != value else known.seconds + passed)
