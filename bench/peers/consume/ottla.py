"""Ottla: `Reader.read` with all columns, with values alone and with these as Python objects; `count`; a `Consumer`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from uuid import uuid4

import pyarrow as pa

import ottla
from bench.harness import Stopwatch
from bench.peers.consume import WAIT_SECONDS, Ages, Job, Received, beside, counted, pacing, warmed

_VALUE = ("value",)


def _read(count: Callable[[ottla.Reader, Job], int]) -> Callable[[Job], Received]:
    def run(job: Job) -> Received:
        with ottla.Reader(job.bootstrap) as reader:
            reader.offsets(job.topic)  # connects
            watch = Stopwatch()
            return Received(count(reader, job), watch.stop())

    return run


def _all_columns(reader: ottla.Reader, job: Job) -> int:
    return sum(batch.num_rows for batch in reader.read(job.topic, job.start))


def _values(reader: ottla.Reader, job: Job) -> int:
    return sum(batch.num_rows for batch in reader.read(job.topic, job.start, columns=_VALUE))


def _bytes(reader: ottla.Reader, job: Job) -> int:
    return sum(len(batch.column(0).to_pylist()) for batch in reader.read(job.topic, job.start, columns=_VALUE))


def _headers(reader: ottla.Reader, job: Job) -> int:
    return reader.count(job.topic, job.start)


class _AtAssignment(ottla.Listener):
    """The clock starts when the group has given the partitions: joining is not counted, as Java's tool does it."""

    def __init__(self, start: int) -> None:
        self._start = start
        self.watch: Stopwatch | None = None

    def assigned(self, consumer: ottla.Consumer, partitions: frozenset[ottla.TopicPartition]) -> None:
        self.watch = self.watch or Stopwatch()
        if self._start:
            for at in partitions:
                consumer.seek(at, self._start)


def _consume(count: Callable[[ottla.Consumer, int], int]) -> Callable[[Job], Received]:
    def run(job: Job) -> Received:
        listener = _AtAssignment(job.start)
        with ottla.Consumer(job.bootstrap, group=_group(), topics=[job.topic], listener=listener) as consumer:
            received = count(consumer, job.records)
            assert listener.watch is not None
            return Received(received, listener.watch.stop())

    return run


def _batches(consumer: ottla.Consumer, records: int) -> int:
    return counted((batch.num_rows for batch in consumer), records)


def _one_by_one(consumer: ottla.Consumer, records: int) -> int:
    return sum(1 for _ in islice(consumer.records(), records))


def _group() -> str:
    return f"bench-{uuid4().hex}"


def _latency_of_consumer(job: Job) -> list[float]:
    ages = Ages(job.records)
    with ottla.Consumer(job.bootstrap, group=_group(), topics=[job.topic]) as consumer:
        first = ottla.TopicPartition(job.topic, 0)
        deadline = time.monotonic() + WAIT_SECONDS
        while first not in consumer.assignment or consumer.position(first) is None:
            if time.monotonic() > deadline:
                raise AssertionError(f"no partition was assigned within {WAIT_SECONDS:.0f} s")
            consumer.poll(0.1)
        with pacing(job):
            _note(iter(consumer), ages)
    return ages.seconds


def _latency_of_reader(job: Job) -> list[float]:
    ages = Ages(job.records)
    with ottla.Reader(job.bootstrap) as reader:
        batches = reader.read(job.topic, stop=None)
        with pacing(job):
            _note(batches, ages)
    return ages.seconds


def _note(batches: Iterator[pa.RecordBatch], ages: Ages) -> None:
    while not ages.is_complete:
        batch = next(batches)
        now = time.monotonic_ns()
        ages.note(now, batch.column("value").to_pylist())


VARIANTS = {
    "read": warmed(_read(_all_columns)),
    "read value": warmed(_read(_values)),
    "read value, as bytes": warmed(_read(_bytes)),
    "count": warmed(_read(_headers)),
    "Consumer": warmed(_consume(_batches)),
    "Consumer.records": warmed(_consume(_one_by_one)),
}
PACED = {
    "Consumer": _latency_of_consumer,
    "Consumer, busy program": beside(_latency_of_consumer),
    "Reader, following": _latency_of_reader,
}
