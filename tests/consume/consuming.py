"""Consumers for tests: with short timeouts, a listener that records its calls, and conditions to wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from tests.fetch.logs import fill

from ottla.config import Retry, Timeouts
from ottla.consume.consumer import Consumer
from ottla.consume.listener import Listener
from ottla.consume.membership import GroupOptions, Protocol
from ottla.fetch.options import Fetching
from ottla.model import TopicPartition
from ottla.testing import FakeKafka

Partitions = frozenset[TopicPartition]
QUICK = Retry(initial=0.01, maximum=0.1)
TIMES = Timeouts(connect=2.0, request=3.0, total=10.0)
CLASSIC = GroupOptions(protocol=Protocol.CLASSIC, heartbeat_interval=0.05, session_timeout=2.0)
SMALL = Fetching(memory_bytes=1 << 16, request_bytes=1 << 10, max_wait=0.05)
"""Batches come one by one."""
OUR_THREADS = ("ottla-consume", "ottla-group", "ottla-commit", "ottla-poll", "consume-", "ottla-consumer-task")


def new_consumer(bootstrap: str, group: str | None = "g", **options: Any) -> Consumer:
    """Create a consumer with short timeouts."""
    arguments: dict[str, Any] = {"retry": QUICK, "timeouts": TIMES, "options": CLASSIC, "group": group} | options
    return Consumer(bootstrap, **arguments)


def our_threads() -> list[str]:
    """Return the names of the threads that consumers started."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(OUR_THREADS)]


@contextmanager
def failing(kind: type[BaseException], match: str | None = None) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """`pytest.raises` around a whole block; the test decides where in it the error is raised."""
    with pytest.raises(kind, match=match) as caught:
        yield caught


def fail(error: BaseException) -> None:
    """Raise, as a program does when something goes wrong in its block."""
    raise error


def offsets(batches: Iterable[pa.RecordBatch]) -> list[int]:
    """Return the offsets, in the order of reading."""
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def rows(batch: pa.RecordBatch) -> list[tuple[int, int]]:
    """Return partition and offset of each record."""
    return list(zip(batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True))


def take(consumer: Consumer, *, seconds: float = 60.0) -> pa.RecordBatch:
    """Return the next records, which must come."""
    until = time.monotonic() + seconds
    while (batch := consumer.poll(0.5)) is None:
        assert time.monotonic() < until, f"no records within {seconds} s"
    return batch


def read(consumer: Consumer, count: int, *, seconds: float = 60.0) -> list[tuple[int, int]]:
    """Return partition and offset of the next records, at least `count`."""
    until, records = time.monotonic() + seconds, list[tuple[int, int]]()
    while len(records) < count:
        assert time.monotonic() < until, f"{len(records)} of {count} records within {seconds} s"
        batch = consumer.poll(0.2)
        records += [] if batch is None else rows(batch)
    return records


def joined(consumer: Consumer, count: int, *others: Consumer) -> None:
    """Poll until it has `count` partitions; poll the others too."""
    until = time.monotonic() + 60
    while len(consumer.assignment) != count:
        assert time.monotonic() < until, f"it has {sorted(consumer.assignment)}"
        for each in (consumer, *others):
            each.poll(0.01)


def committed(kafka: FakeKafka, group: str = "g") -> dict[tuple[str, int], int]:
    """Return what the group has committed in the fake."""
    with kafka._dispatcher.changed:
        state = kafka._dispatcher.state.groups.get(group)
        offsets = {} if state is None else state.offsets
        return {(tp.topic, tp.partition): stored.offset for tp, stored in offsets.items()}


def filled(kafka: FakeKafka, topic: str, partitions: int, batches: int = 5, each: int = 10) -> None:
    """Create a topic whose partitions have `batches` batches of `each` records."""
    for number in range(partitions):
        fill(kafka, batches, each=each, at=TopicPartition(topic, number))


class RecordingListener(Listener):
    """Records its calls; `actions`, by the name of the call, run after that."""

    def __init__(self, **actions: Callable[[Consumer, Partitions], object]) -> None:
        self.calls: list[tuple[str, Partitions]] = []
        self.actions = actions

    def of(self, kind: str) -> list[Partitions]:
        return [partitions for name, partitions in self.calls if name == kind]

    def assigned(self, consumer: Consumer, partitions: Partitions) -> None:
        self._note("assigned", consumer, partitions)

    def revoked(self, consumer: Consumer, partitions: Partitions) -> None:
        self._note("revoked", consumer, partitions)

    def lost(self, consumer: Consumer, partitions: Partitions) -> None:
        self._note("lost", consumer, partitions)

    def _note(self, kind: str, consumer: Consumer, partitions: Partitions) -> None:
        self.calls.append((kind, partitions))
        if kind in self.actions:
            self.actions[kind](consumer, partitions)
