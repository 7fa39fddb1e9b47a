"""What whoever has started a replay holds in the hand: how fast it goes, how far it is.

A rate comes in; the threads that replay wait here for their turn and say what they have done. A copy in another process
begins afresh, with the same rate.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ottla.config import check_kind
from ottla.errors import ConfigError
from ottla.model import TopicPartition

_STEP_SECONDS = 0.05
"""Between two looks whether to stop."""
_SMOOTH_SECONDS = 0.25
"""What is sent at a time is what this time has room for."""


class Unit(Enum):
    """What a rate counts."""

    RECORDS = "records"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Rate:
    """So many records or bytes (of keys, values and headers) a second."""

    amount: float
    unit: Unit = Unit.RECORDS

    def __post_init__(self) -> None:
        check_kind("Rate unit", self.unit, Unit)
        if not 0 < self.amount < float("inf"):
            raise ConfigError(f"a rate must be above 0 a second, got {self.amount}")

    def at_once(self) -> tuple[int | None, int | None]:
        """How many records and how many bytes may go together, None for as many as you like."""
        most = max(1, int(self.amount * _SMOOTH_SECONDS))
        return (most, None) if self.unit is Unit.RECORDS else (None, most)


class ReplayControl:
    """Shared by all threads of a replay."""

    def __init__(self, rate: Rate | None = None) -> None:
        self.rate = rate
        self._lock = threading.Lock()
        self._due = 0.0
        """When the next may go, on the monotonic clock."""
        self._records = 0
        self._bytes = 0
        self._positions: dict[TopicPartition, int] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return ReplayControl, (self.rate,)

    def wait(self, records: int, size_bytes: int, is_stopped: Callable[[], bool]) -> bool:
        """Returns when these may go: True; or False, as soon as it is to stop."""
        start = self._turn(records, size_bytes)
        while not is_stopped():
            rest = start - time.monotonic()
            if rest <= 0:
                return True
            time.sleep(min(rest, _STEP_SECONDS))
        return False

    def sent(self, at: TopicPartition, position: int, *, records: int = 0, size_bytes: int = 0) -> None:
        """A lineage has got to this position, with so many records more."""
        with self._lock:
            self._positions[at] = position
            self._records += records
            self._bytes += size_bytes

    @property
    def records(self) -> int:
        """Committed so far."""
        return self._records

    @property
    def size_bytes(self) -> int:
        """Of them."""
        return self._bytes

    def positions(self) -> Mapping[TopicPartition, int]:
        """How far each lineage is that was begun."""
        with self._lock:
            return dict(self._positions)

    def _turn(self, records: int, size_bytes: int) -> float:
        if self.rate is None:
            return 0.0
        amount = records if self.rate.unit is Unit.RECORDS else size_bytes
        with self._lock:
            start = max(time.monotonic(), self._due)
            self._due = start + amount / self.rate.amount
            return start
