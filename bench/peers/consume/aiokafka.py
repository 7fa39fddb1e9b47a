"""aiokafka: `getmany`."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from bench.harness import Stopwatch
from bench.peers.consume import AT_ONCE, WAIT_SECONDS, Job, Received, warmed


async def _getmany(job: Job) -> Received:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=job.bootstrap,
        group_id=None,
        enable_auto_commit=False,
    )
    async with consumer:
        partitions = [TopicPartition(job.topic, index) for index in range(job.partitions)]
        watch = Stopwatch()
        consumer.assign(partitions)
        for at in partitions:
            consumer.seek(at, job.start)
        count, heard = 0, time.monotonic()
        while count < job.records:
            found = await consumer.getmany(timeout_ms=1000, max_records=AT_ONCE)
            if found:
                count += sum(map(len, found.values()))
                heard = time.monotonic()
            elif time.monotonic() > heard + WAIT_SECONDS:
                raise AssertionError(f"only {count} records came")
        return Received(count, watch.stop())


VARIANTS = {"getmany": warmed(lambda job: asyncio.run(_getmany(job)))}
PACED: dict[str, Any] = {}
