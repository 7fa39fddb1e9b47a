"""Ottla: `send_table`, `send_many`, `send`; `Reader.read` and a `Consumer` by batches; a group of two; being idle."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from uuid import uuid4

import pyarrow as pa

import ottla
from bench.harness import Stopwatch
from bench.peers.scale import (
    LINGER,
    SETTLE_SECONDS,
    WAIT_SECONDS,
    WARMUP,
    Job,
    Members,
    Moved,
    counted,
    lists,
    pairs,
)

_ROWS = 100_000
_NAP = 0.5

Parts = list[pa.Table] | list[list[tuple[bytes, bytes]]]


def _produce(
    parts: Callable[[int], Parts], send: Callable[[ottla.Producer, str, Parts], None]
) -> Callable[[Job], Moved]:
    def run(job: Job) -> Moved:
        every = parts(job.records)
        warmup = parts(WARMUP)[:1]
        with ottla.Producer(job.bootstrap, acks=1, batching=ottla.Batching(linger=LINGER)) as producer:
            send(producer, job.topic, warmup)
            producer.flush(WAIT_SECONDS)
            watch = Stopwatch()
            send(producer, job.topic, every)
            producer.flush(WAIT_SECONDS)
            return Moved(sum(map(len, every)), watch.stop(), len(warmup[0]))

    return run


@cache
def tables(records: int) -> list[pa.Table]:
    """Made beforehand."""
    return [_table(first, min(_ROWS, records - first)) for first in range(0, records, _ROWS)]


def _table(first: int, rows: int) -> pa.Table:
    keys, values = zip(*pairs(rows, first), strict=True)
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


def _send_tables(producer: ottla.Producer, topic: str, parts: Parts) -> None:
    for table in parts:
        producer.send_table(topic, table)  # type: ignore[arg-type]  # parts of this way are tables


def _send_lists(producer: ottla.Producer, topic: str, parts: Parts) -> None:
    for part in parts:
        producer.send_many(topic, part)


def _send_each(producer: ottla.Producer, topic: str, parts: Parts) -> None:
    send = producer.send
    for part in parts:
        for key, value in part:
            send(topic, value, key)


def _read(job: Job) -> Moved:
    with ottla.Reader(job.bootstrap) as reader:
        _warm_up(reader, job.topic)
        watch = Stopwatch()
        return Moved(sum(batch.num_rows for batch in reader.read(job.topic)), watch.stop())


def _consume(job: Job) -> Moved:
    with ottla.Reader(job.bootstrap) as reader:
        _warm_up(reader, job.topic)
    places = dict.fromkeys((ottla.TopicPartition(job.topic, index) for index in range(job.partitions)), 0)
    with ottla.Consumer(job.bootstrap) as consumer:
        watch = Stopwatch()
        consumer.assign(places)
        return Moved(counted((batch.num_rows for batch in consumer), job.records), watch.stop())


def _warm_up(reader: ottla.Reader, topic: str) -> None:
    """Connects, and has the kernels loaded."""
    for _ in reader.read(topic, 0, 1, partitions=[0]):
        pass


class _Paused(ottla.Listener):
    """Nothing is read before the whole group is there."""

    def assigned(self, consumer: ottla.Consumer, partitions: frozenset[ottla.TopicPartition]) -> None:
        consumer.pause(*partitions)


def _group(job: Job) -> Moved:
    group = f"bench-{uuid4().hex}"

    def member(members: Members, number: int) -> None:
        with ottla.Consumer(
            job.bootstrap, group=group, topics=[job.topic], start="earliest", listener=_Paused()
        ) as consumer:
            is_reading = False
            while not members.is_over.is_set():
                batch = consumer.poll(0.05)
                if batch is not None:
                    members.got(batch.num_rows)
                elif not is_reading and members.holds(number, len(consumer.assignment)):
                    is_reading = True
                    consumer.resume(*consumer.assignment)

    return Members(job).run(member)


def _idle(job: Job) -> Moved:
    """A member of a group that has all partitions and nothing to read."""
    with ottla.Consumer(job.bootstrap, group=f"bench-{uuid4().hex}", topics=[job.topic], start="latest") as consumer:
        deadline = time.monotonic() + WAIT_SECONDS
        while len(consumer.positions()) < job.partitions:
            consumer.poll(_NAP)
            if time.monotonic() > deadline:
                raise AssertionError(f"{len(consumer.positions())} of {job.partitions} partitions have a position")
        _poll(consumer, SETTLE_SECONDS)
        watch = Stopwatch()
        _poll(consumer, job.seconds)
        return Moved(0, watch.stop())


def _poll(consumer: ottla.Consumer, seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if consumer.poll(min(1.0, left)) is not None:
            raise AssertionError("there was something to read")


VARIANTS = {
    "send_table": _produce(tables, _send_tables),
    "send_many": _produce(lists, _send_lists),
    "send": _produce(lists, _send_each),
    "read": _read,
    "Consumer": _consume,
    "group of two": _group,
    "idle": _idle,
}
