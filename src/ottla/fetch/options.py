"""Settings of reading, as small frozen values that are checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ottla.config import check_seconds, check_whole
from ottla.errors import ConfigError
from ottla.model import Isolation

_LARGEST = 1 << 30


class OnLost(Enum):
    """What to do when records that were to be read are gone: by retention, a log that was cut back, a new topic.

    A range is never left: for either of the two that go on, it goes on with what the log has of it.
    """

    ERROR = "error"
    """Raise OffsetsLost."""
    EARLIEST = "earliest"
    """Go on at the oldest record there is, and tell it as an event."""
    LATEST = "latest"
    """Go on with what is written from now on, and tell it as an event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetching:
    """How much is fetched ahead, and how.

    `memory_bytes` bounds what is fetched and not yet handed out, whatever the number of brokers and partitions; a
    single batch that is larger is still read. One answer has up to `request_bytes`; a broker that has less than
    `min_bytes` waits for more, for `max_wait` seconds. `max_batch_bytes` is what one batch may decompress to.
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
    """How a fetcher goes about it. `patience` is how long a partition may be stuck before that is an error."""

    fetching: Fetching
    isolation: Isolation
    on_lost: OnLost
    patience: float


def parse_isolation(value: Isolation | str) -> Isolation:
    """`"read_committed"`, `"read_uncommitted"`, or the value itself."""
    if isinstance(value, Isolation):
        return value
    try:
        return Isolation[str(value).upper()]
    except KeyError:
        names = " and ".join(repr(one.name.lower()) for one in Isolation)
        raise ConfigError(f"isolation is {value!r}; accepted are {names}") from None


def parse_on_lost(value: OnLost | str) -> OnLost:
    """`"error"`, `"earliest"`, `"latest"`, or the value itself."""
    try:
        return OnLost(value)
    except ValueError:
        names = ", ".join(repr(one.value) for one in OnLost)
        raise ConfigError(f"on_lost is {value!r}; accepted are {names}") from None
