"""kafka-python: `poll`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kafka import KafkaConsumer, TopicPartition

from bench.harness import Stopwatch
from bench.peers.consume import AT_ONCE, Job, Received, counted, warmed


def _poll(job: Job) -> Received:
    consumer = KafkaConsumer(
        bootstrap_servers=job.bootstrap,
        group_id=None,
        enable_auto_commit=False,
        max_poll_records=AT_ONCE,
    )
    try:
        consumer.partitions_for_topic(job.topic)  # connects
        partitions = [TopicPartition(job.topic, index) for index in range(job.partitions)]
        watch = Stopwatch()
        consumer.assign(partitions)
        for at in partitions:
            consumer.seek(at, job.start)
        return Received(counted(_lists(consumer), job.records), watch.stop())
    finally:
        consumer.close()


def _lists(consumer: Any) -> Iterator[int]:
    while True:
        yield sum(map(len, consumer.poll(timeout_ms=1000).values()))


VARIANTS = {"poll": warmed(_poll)}
PACED: dict[str, Any] = {}
