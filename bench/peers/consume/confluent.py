"""confluent-kafka (librdkafka): `consume` of many messages at once with the value of each; `poll` for latency."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

from confluent_kafka import Consumer, KafkaException, TopicPartition

from bench.harness import Stopwatch
from bench.peers.consume import AT_ONCE, WAIT_SECONDS, Ages, Job, Received, beside, counted, pacing, warmed

_MANY = 10_000


def _consumer(job: Job, **settings: Any) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": job.bootstrap,
            "group.id": f"bench-{uuid4().hex}",  # it wants one, and does not use it with `assign`
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
        }
        | settings
    )
    consumer.list_topics(job.topic, WAIT_SECONDS)  # connects
    return consumer


def _partitions(job: Job) -> list[TopicPartition]:
    return [TopicPartition(job.topic, index, job.start) for index in range(job.partitions)]


def _consume(at_once: int) -> Callable[[Job], Received]:
    def run(job: Job) -> Received:
        # Its default is to stop fetching for a second when its queue is full: a fifth of the rate. Larger fetches and
        # queues than its defaults cost processor time and made it no faster.
        consumer = _consumer(job, **{"fetch.queue.backoff.ms": 0})
        try:
            watch = Stopwatch()
            consumer.assign(_partitions(job))
            return Received(counted(_lists(consumer, at_once), job.records), watch.stop())
        finally:
            consumer.close()

    return run


def _lists(consumer: Consumer, at_once: int) -> Iterator[int]:
    while True:
        messages = consumer.consume(at_once, timeout=0.1)
        values = [message.value() for message in messages]
        if messages and messages[-1].error():
            raise KafkaException(messages[-1].error())
        yield len(values)


def _latency(job: Job) -> list[float]:
    consumer = _consumer(job)
    ages = Ages(job.records)
    try:
        consumer.assign(_partitions(job))
        consumer.poll(1.0)
        with pacing(job):
            while not ages.is_complete:
                message = consumer.poll(WAIT_SECONDS)
                now = time.monotonic_ns()
                if message is None or message.error():
                    raise AssertionError(f"no record came within {WAIT_SECONDS:.0f} s: {message and message.error()}")
                ages.note(now, [message.value() or b""])
    finally:
        consumer.close()
    return ages.seconds


VARIANTS = {"consume": warmed(_consume(AT_ONCE)), "consume, 10,000 at once": warmed(_consume(_MANY))}
PACED = {"poll": _latency, "poll, busy program": beside(_latency)}
