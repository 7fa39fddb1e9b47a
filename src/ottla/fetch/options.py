"""Settings of reading, as small frozen values that are checked when they are created."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ottla.config import check_seconds, check_whole
from ottla.errors import ConfigError
from ottla.model import Isolation

_LARGEST = 1 << 30


class OnLost(Enum):
    """What to do if records are gone before they were read: by retention, truncation, or a new topic of the same name.

    Reading never leaves a range: with `EARLIEST` and `LATEST` alike it continues with what the log has of the range.
    """

    ERROR = "error"
    """Raise `OffsetsLost`."""
    EARLIEST = "earliest"
    """Continue at the oldest record and emit `RangeLost`."""
    LATEST = "latest"
    """Continue with what is written from now on and emit `RangeLost`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetching:
    """How much to fetch ahead, and how.

    `memory_bytes` limits what is fetched and not yet handed out, for any number of brokers and partitions; a single
    larger batch is still read. A response has up to `request_bytes`. A broker with less than `min_bytes` waits for more
    for `max_wait` seconds. A batch may decompress to at most `max_batch_bytes`. Raises `ConfigError` if a value is out
    of range.
    """

    memory_bytes: int = 64 << 20
    request_bytes: int = 8 << 20
    min_bytes: int = 1
    max_wait: float = 0.5
    max_batch_bytes: int = 128 << 20

    def __post_init__(self) -> None:
        check_whole("Fetching(memory_bytes=...)", self.memory_bytes, lowest=1 << 16, highest=1 << 50)
        check_whole("Fetching(request_bytes=...)", self.request_bytes, lowest=1 << 10, highest=_LARGEST)
        check_whole("Fetching(min_bytes=...)", self.min_bytes, lowest=0, highest=_LARGEST)
        check_whole("Fetching(max_batch_bytes=...)", self.max_batch_bytes, lowest=1 << 10, highest=_LARGEST)
        check_seconds("Fetching", "max_wait", self.max_wait, lowest=0.0)


@dataclass(frozen=True, slots=True)
class FetchPolicy:
    """The settings of a fetcher. `patience` is how long, in seconds, a partition may be stuck before it fails."""

    fetching: Fetching
    isolation: Isolation
    on_lost: OnLost
    patience: float


def parse_isolation(value: Isolation | str) -> Isolation:
    """Parse `"read_committed"` or `"read_uncommitted"`. Raises `ConfigError` for anything else."""
    if isinstance(value, Isolation):
        return value
    try:
        return Isolation[str(value).upper()]
    except KeyError:
        names = " and ".join(repr(level.name.lower()) for level in Isolation)
        raise ConfigError(f"isolation is {value!r}; accepted are {names}") from None


def parse_on_lost(value: OnLost | str) -> OnLost:
    """Parse `"error"`, `"earliest"` or `"latest"`. Raises `ConfigError` for anything else."""
    try:
        return OnLost(value)
    except ValueError:
        names = ", ".join(repr(policy.value) for policy in OnLost)
        raise ConfigError(f"on_lost is {value!r}; accepted are {names}") from None
