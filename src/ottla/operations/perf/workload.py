"""What a performance test does, as a value that is checked when it is made, and the records it sends. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ottla.errors import ConfigError

APIS = ("send", "send_many", "send_table")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
STAMP_BYTES = 24
"""Of a record of a latency test: a word for the run, its number, and when it was due."""
_MOST_RECORD_BYTES = 1_000_000
_POOL_BYTES = 16 << 20
_POOL_RECORDS = 4096


def _need(is_right: bool, text: str) -> None:
    if not is_right:
        raise ConfigError(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is sent or read, how fast and for how long. It ends with `records` or `seconds`, whichever comes first."""

    topics: tuple[str, ...]
    partitions: int = 1
    """Of each topic, if it has to be created."""
    replicas: int = -1
    record_bytes: int = 100
    random_share: float = 0.5
    """Of a record's bytes; the others repeat, so that codecs have something to do."""
    records: int | None = None
    seconds: float | None = None
    rate: float | None = None
    """Records per second; None for as fast as possible."""
    threads: int = 1
    warmup: float = 1.0
    """Seconds of the same work before the clock starts."""
    acks: str = "all"
    codec: str = "none"
    batch_bytes: int = 1_000_000
    linger: float = 0.005
    api: str = "send_many"

    def __post_init__(self) -> None:
        size = self.record_bytes
        _need(bool(self.topics), "a performance test needs a topic")
        _need(1 <= size <= _MOST_RECORD_BYTES, f"a record of {size:,} bytes; 1 to {_MOST_RECORD_BYTES:,} are accepted")
        _need(0 <= self.random_share <= 1, f"a random share of {self.random_share}; 0 to 1 is accepted")
        _need(self.records is None or self.records >= 1, f"{self.records} records; at least 1 is accepted")
        _need(
            self.seconds is None or (math.isfinite(self.seconds) and self.seconds > 0),
            f"a duration of {self.seconds} s; it must be longer than 0",
        )
        _need(
            self.rate is None or (math.isfinite(self.rate) and self.rate > 0),
            f"a rate of {self.rate} records per second; it must be more than 0",
        )
        _need(1 <= self.threads <= 256, f"{self.threads} threads; 1 to 256 are accepted")
        _need(0 <= self.warmup <= 3600, f"a warm-up of {self.warmup} s; 0 to 3,600 is accepted")
        _need(self.acks in ("all", "1", "0"), f"acks {self.acks!r}; all, 1 and 0 are accepted")
        _need(self.codec in CODECS, f"codec {self.codec!r}; {', '.join(CODECS)} are accepted")
        _need(self.api in APIS, f"call {self.api!r}; {', '.join(APIS)} are accepted")
        _need(1 <= self.partitions <= 100_000, f"{self.partitions} partitions; 1 to 100,000 are accepted")
        _need(
            self.batch_bytes >= size + 128,
            f"batches of {self.batch_bytes:,} bytes cannot hold a record of {size:,}: at least 128 more are needed",
        )

    def settings(self) -> dict[str, Any]:
        """Return the settings as plain values."""
        return asdict(self) | {"topics": list(self.topics)}

    def pool(self) -> list[bytes]:
        """Return values to send again and again: the same ones for the same settings."""
        source = random.Random(self.record_bytes)
        count = max(1, min(_POOL_RECORDS, _POOL_BYTES // self.record_bytes))
        fresh = round(self.record_bytes * self.random_share)
        filler = (b"performance test " * (self.record_bytes // 17 + 1))[: self.record_bytes - fresh]
        return [source.randbytes(fresh) + filler for _ in range(count)]


def without_empty(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that have a value."""
    return {name: value for name, value in settings.items() if value is not None}
