"""confluent-kafka (librdkafka): `produce`, `consume`, a group of two, and being idle."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from bench.harness import Stopwatch
from bench.peers.scale import (
    AT_ONCE,
    LINGER,
    SETTLE_SECONDS,
    WAIT_SECONDS,
    WARMUP,
    Job,
    Members,
    Moved,
    counted,
    lists,
)

_MOST_QUEUED = 500_000


def _produce(job: Job) -> Moved:
    """As in `peers/produce`, with a key, and the partitioner of the Java client, which ours is, too."""
    every, warmup = lists(job.records), lists(WARMUP)[:1]
    producer = Producer(
        {
            "bootstrap.servers": job.bootstrap,
            "acks": 1,
            "partitioner": "murmur2_random",
            "linger.ms": LINGER * 1000,
            "batch.size": 1_000_000,
            "batch.num.messages": 100_000,
            "queue.buffering.max.messages": _MOST_QUEUED,
            "queue.buffering.max.kbytes": 1 << 20,
        }
    )
    _send(producer, job.topic, warmup)
    watch = Stopwatch()
    _send(producer, job.topic, every)
    return Moved(sum(map(len, every)), watch.stop(), len(warmup[0]))


def _send(producer: Producer, topic: str, parts: list[list[tuple[bytes, bytes]]]) -> None:
    produce, poll = producer.produce, producer.poll
    for part in parts:
        poll(0)
        for key, value in part:
            try:
                produce(topic, value, key)
            except BufferError:
                while len(producer) > _MOST_QUEUED - 10_000:
                    poll(0.01)
                produce(topic, value, key)
    if left := producer.flush(WAIT_SECONDS):
        raise AssertionError(f"{left} records were not delivered")


def _consumer(job: Job, group: str = "", **settings: Any) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": job.bootstrap,
            "group.id": group or f"bench-{uuid4().hex}",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            "fetch.queue.backoff.ms": 0,  # else it stops fetching for a second when its queue is full
        }
        | settings
    )
    consumer.list_topics(job.topic, WAIT_SECONDS)  # connects
    return consumer


def _consume(job: Job) -> Moved:
    consumer = _consumer(job)
    try:
        watch = Stopwatch()
        consumer.assign([TopicPartition(job.topic, index, 0) for index in range(job.partitions)])
        return Moved(counted(_lists(consumer), job.records), watch.stop())
    finally:
        consumer.close()


def _lists(consumer: Consumer, timeout: float = 0.1) -> Iterator[int]:
    while True:
        yield len(_values(consumer, timeout))


def _values(consumer: Consumer, timeout: float) -> list[bytes | None]:
    messages = consumer.consume(AT_ONCE, timeout=timeout)
    values = [message.value() for message in messages]
    if messages and messages[-1].error():
        raise KafkaException(messages[-1].error())
    return values


def _group(job: Job) -> Moved:
    group = f"bench-{uuid4().hex}"

    def member(members: Members, number: int) -> None:
        consumer = _consumer(job, group, **{"partition.assignment.strategy": "cooperative-sticky"})
        try:
            consumer.subscribe([job.topic], on_assign=lambda one, partitions: one.pause(_begun(one, partitions)))
            is_reading = False
            while not members.is_over.is_set():
                values = _values(consumer, 0.05)
                if values:
                    members.got(len(values))
                elif not is_reading:
                    held = consumer.assignment()
                    if members.holds(number, len(held)):
                        is_reading = True
                        consumer.resume(held)
        finally:
            consumer.close()

    return Members(job).run(member)


def _begun(consumer: Consumer, partitions: list[TopicPartition]) -> list[TopicPartition]:
    consumer.incremental_assign(partitions)
    return partitions


def _idle(job: Job) -> Moved:
    consumer = _consumer(job, **{"auto.offset.reset": "latest"})
    try:
        consumer.subscribe([job.topic])
        deadline = time.monotonic() + WAIT_SECONDS
        while len(consumer.assignment()) < job.partitions:
            consumer.poll(0.5)
            if time.monotonic() > deadline:
                raise AssertionError(f"{len(consumer.assignment())} of {job.partitions} partitions were assigned")
        _poll(consumer, SETTLE_SECONDS)
        watch = Stopwatch()
        _poll(consumer, job.seconds)
        return Moved(0, watch.stop())
    finally:
        consumer.close()


def _poll(consumer: Consumer, seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if consumer.poll(min(1.0, left)) is not None:
            raise AssertionError("there was something to read")


VARIANTS = {"produce": _produce, "consume": _consume, "group of two": _group, "idle": _idle}
