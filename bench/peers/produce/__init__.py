"""One module for each client that is measured, all with the same names.

    VARIANTS    what it can be asked for, by name: a function from a `Job` to what it `Sent`
    PACED       the same for latency: from a `Job` to the seconds from send to acknowledgement of each record

Each function makes its producer, sends a few records that do not count, and only then starts the clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import cycle, islice
from pathlib import Path

from bench.harness import Sample

LINGER = 0.005
BATCH_BYTES = 1_000_000
CHUNK = 1000
"""Records in one list, for calls that take lists."""
FLUSH_SECONDS = 120.0
WARMUP = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of one variant. `acks` is "1" or "all"."""

    bootstrap: str
    topic: str
    acks: str
    codec: str
    records: int
    payload: str
    """A file with the values, one on each line."""
    folder: str
    """An empty directory for what the variant keeps on the disk."""

    def lists(self, size: int = CHUNK) -> Iterator[list[bytes]]:
        """All values in lists of `size`; the last list is whole too, so that there may be a few more than asked for."""
        return islice(cycle(_lists(self.payload, size)), -(-self.records // size))

    def sent(self, size: int = CHUNK) -> int:
        """How many values `lists` has."""
        return -(-self.records // size) * size

    def warmup(self) -> list[bytes]:
        """Values to send before the clock starts."""
        return values(self.payload)[: min(WARMUP, self.records)]


@dataclass(frozen=True, slots=True)
class Sent:
    """What one run wrote to the topic, and how long the part after the warm-up took."""

    records: int
    warmup: int
    time: Sample


@cache
def values(payload: str) -> list[bytes]:
    """The values in a file."""
    return Path(payload).read_bytes().splitlines()


@cache
def _lists(payload: str, size: int) -> list[list[bytes]]:
    pool = values(payload)
    source = cycle(pool)
    return [list(islice(source, size)) for _ in range(max(1, len(pool) // size))]
