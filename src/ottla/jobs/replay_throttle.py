"""Rate limit and progress counters shared by the threads of a replay.

A rate comes in. Threads wait here for their turn and report what they have committed; the caller reads the counters.
A copy in another process has the same rate and its own counters.
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
"""How often a waiting thread checks whether to stop."""
_SMOOTH_SECONDS = 0.25
"""A chunk is at most what the rate allows in this time."""


class Unit(Enum):
    """What a rate counts."""

    RECORDS = "records"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Rate:
    """Records per second, or bytes of keys, values and headers per second.

    Raises `ConfigError` if the amount is not a number above 0.
    """

    amount: float
    unit: Unit = Unit.RECORDS

    def __post_init__(self) -> None:
        check_kind("Rate unit", self.unit, Unit)
        if not _is_number(self.amount):
            raise ConfigError(
                f"a rate must be a number a second, got {self.amount!r}: for example 5000 (records), or"
                " Rate(10e6, Unit.BYTES)"
            )
        if not 0 < self.amount < float("inf"):
            raise ConfigError(f"a rate must be above 0 a second, got {self.amount}")

    def at_once(self) -> tuple[int | None, int | None]:
        """Return the largest number of records and of bytes for one chunk; None for no limit."""
        most = max(1, int(self.amount * _SMOOTH_SECONDS))
        return (most, None) if self.unit is Unit.RECORDS else (None, most)

    def divided(self, tasks: int) -> Rate:
        """Return one task's share of the rate, for tasks that cannot coordinate."""
        return Rate(self.amount / max(1, tasks), self.unit)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class ReplayControl:
    """The rate limit and the counters of one replay. Safe for use by several threads."""

    def __init__(self, rate: Rate | None = None) -> None:
        self.rate = rate
        self._lock = threading.Lock()
        self._due = 0.0
        """When the next chunk may be sent, on the monotonic clock."""
        self._records = 0
        self._bytes = 0
        self._positions: dict[TopicPartition, int] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return ReplayControl, (self.rate,)

    def wait(self, records: int, size_bytes: int, is_stopped: Callable[[], bool]) -> bool:
        """Block until the rate allows these records. Return False as soon as `is_stopped` returns True."""
        start = self._turn(records, size_bytes)
        while not is_stopped():
            rest = start - time.monotonic()
            if rest <= 0:
                return True
            time.sleep(min(rest, _STEP_SECONDS))
        return False

    def sent(self, partition: TopicPartition, position: int, *, records: int = 0, size_bytes: int = 0) -> None:
        """Count what was committed for a source partition, which is now at this position."""
        with self._lock:
            self._positions[partition] = position
            self._records += records
            self._bytes += size_bytes

    @property
    def records(self) -> int:
        """Records committed so far."""
        return self._records

    @property
    def size_bytes(self) -> int:
        """Bytes of keys, values and headers committed so far."""
        return self._bytes

    def positions(self) -> Mapping[TopicPartition, int]:
        """Return the position of each source partition that has started."""
        with self._lock:
            return dict(self._positions)

    def _turn(self, records: int, size_bytes: int) -> float:
        if self.rate is None:
            return 0.0
        amount = records if self.rate.unit is Unit.RECORDS else size_bytes
        with self._lock:
            # Each chunk reserves the time that it takes at this rate, so all threads together keep to it.
            start = max(time.monotonic(), self._due)
            self._due = start + amount / self.rate.amount
            return start
