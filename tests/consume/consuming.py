"""Consumers of tests: with short times, with a memory of what they got and were told, and conditions to wait for."""

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
    """With short times."""
    given: dict[str, Any] = {"retry": QUICK, "timeouts": TIMES, "options": CLASSIC, "group": group} | options
    return Consumer(bootstrap, **given)


def our_threads() -> list[str]:
    """Those that consumers have started."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(OUR_THREADS)]


@contextmanager
def failing(kind: type[BaseException], match: str | None = None) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """`pytest.raises` around a whole block: where in it the error is raised is for the test to say."""
    with pytest.raises(kind, match=match) as caught:
        yield caught


def fail(error: BaseException) -> None:
    """What a program does when something goes wrong in its block."""
    raise error


def offsets(batches: Iterable[pa.RecordBatch]) -> list[int]:
    """In the order of reading."""
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def rows(batch: pa.RecordBatch) -> list[tuple[int, int]]:
    """Partition and offset of each record."""
    return list(zip(batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True))


def take(consumer: Consumer, *, seconds: float = 10.0) -> pa.RecordBatch:
    """The next records, which must come."""
    until = time.monotonic() + seconds
    while (batch := consumer.poll(0.5)) is None:
        assert time.monotonic() < until, f"no records within {seconds} s"
    return batch


def read(consumer: Consumer, count: int, *, seconds: float = 10.0) -> list[tuple[int, int]]:
    """Partition and offset of the next records, at least so many."""
    until, found = time.monotonic() + seconds, list[tuple[int, int]]()
    while len(found) < count:
        assert time.monotonic() < until, f"{len(found)} of {count} records within {seconds} s"
        batch = consumer.poll(0.2)
        found += [] if batch is None else rows(batch)
    return found


def joined(consumer: Consumer, count: int, *others: Consumer) -> None:
    """Polls until it has so many partitions; the others are polled, too."""
    until = time.monotonic() + 10
    while len(consumer.assignment) != count:
        assert time.monotonic() < until, f"it has {sorted(consumer.assignment)}"
        for one in (consumer, *others):
            one.poll(0.01)


def committed(kafka: FakeKafka, group: str = "g") -> dict[tuple[str, int], int]:
    """What the fake's group has committed."""
    with kafka._dispatcher.changed:
        found = kafka._dispatcher.state.groups.get(group)
        return {} if found is None else {(at.topic, at.partition): told.offset for at, told in found.offsets.items()}


def filled(kafka: FakeKafka, topic: str, partitions: int, batches: int = 5, each: int = 10) -> None:
    """A topic whose partitions have so many batches of `each` records."""
    for number in range(partitions):
        fill(kafka, batches, each=each, at=TopicPartition(topic, number))


class Told(Listener):
    """Keeps what it hears; `act`, by the name of the call, is done after that."""

    def __init__(self, **act: Callable[[Consumer, Partitions], object]) -> None:
        self.calls: list[tuple[str, Partitions]] = []
        self.act = act

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
        if kind in self.act:
            self.act[kind](consumer, partitions)
