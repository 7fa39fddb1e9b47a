"""Observes a reader in tests: its threads and sockets, what it read, and its events."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterable
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from ottla.config import Retry, Timeouts
from ottla.events import Event
from ottla.fetch.reader import Reader

QUICK = Retry(initial=0.01, maximum=0.05)
TIMES = Timeouts(connect=2.0, request=3.0, total=10.0)


class Names(NamedTuple):
    """The position of a record."""

    partition: int
    offset: int


def threads_of_reading() -> list[str]:
    """Return the names of the threads that readers have started."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(("ottla-read", "read-"))]


def open_sockets() -> int:
    """Return the number of open sockets of this process."""
    count = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{number}").startswith("socket:")
        except OSError:
            continue
    return count


def new_reader(bootstrap: str, **options: Any) -> Reader:
    """Return a reader with short timeouts."""
    given: dict[str, Any] = {"retry": QUICK, "timeouts": TIMES, **options}
    return Reader(bootstrap, **given)


def names(batches: Iterable[pa.RecordBatch]) -> Generator[Names, None, None]:
    """Yield the position of each record, in the order of reading."""
    for batch in batches:
        parts, offsets = batch.column("partition").to_pylist(), batch.column("offset").to_pylist()
        yield from map(Names, parts, offsets)


def by_partition(batches: Iterable[pa.RecordBatch]) -> dict[int, list[int]]:
    """Return the offsets of each partition, in the order of reading."""
    offsets: dict[int, list[int]] = {}
    for partition, offset in names(batches):
        offsets.setdefault(partition, []).append(offset)
    return offsets


def values(batches: Iterable[pa.RecordBatch]) -> list[bytes | None]:
    """Return the values, in the order of reading."""
    return [value for batch in batches for value in batch.column("value").to_pylist()]


class EventLog(list[Event]):
    """A sink that keeps the events."""

    def __call__(self, event: Event) -> None:
        self.append(event)

    def of(self, kind: type[Event]) -> list[Any]:
        """Return the events of one kind."""
        return [event for event in self if isinstance(event, kind)]


def raised_by(call: Callable[[], object], kind: type[BaseException], *, within: float) -> BaseException:
    """Return the error of the call, which must come in time."""
    began = time.monotonic()
    with pytest.raises(kind) as caught:
        call()
    assert time.monotonic() - began < within, "it took too long"
    return caught.value
