"""Detects values that no longer change, such as the beat of a dead node, with the watcher's own monotonic clock.

What a store shows and a monotonic time come in; what has not changed for long enough goes out. Time in which the
watcher did not look proves nothing: after a pause of the watcher or the store, live nodes get a few looks to show it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Hashable)
_FEWEST_LOOKS = 3
"""Minimum number of looks at an unchanged value before it counts as expired, however far apart they are."""


class _Still(NamedTuple, Generic[V]):
    value: V
    seconds: float
    """How long the value was seen unchanged."""


class LeaseWatch(Generic[K, V]):
    """Remembers how long each value was seen unchanged."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._known: dict[K, _Still[V]] = {}
        self._last = 0.0

    def still(self, seen: Mapping[K, V], now: float) -> dict[K, V]:
        """Return the values that were unchanged for longer than `patience` seconds. Forgets keys not in `seen`."""
        # After a long pause only a part of the time counts: those who are alive could not show it to us meanwhile.
        passed = min(now - self._last, self._patience / _FEWEST_LOOKS)
        self._last = now
        self._known = {key: self._after(key, value, passed) for key, value in seen.items()}
        return {key: still.value for key, still in self._known.items() if still.seconds > self._patience}

    def _after(self, key: K, value: V, passed: float) -> _Still[V]:
        known = self._known.get(key)
        return _Still(value, 0.0 if known is None or known.value != value else known.seconds + passed)
