"""aiokafka: `send` for each record, and batches that the program fills itself (`create_batch`, `send_batch`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from aiokafka import AIOKafkaProducer

from bench.harness import Stopwatch
from bench.peers.produce import BATCH_BYTES, LINGER, Job, Sent

Send = Callable[[Any, Job, list[list[bytes]]], Coroutine[Any, Any, None]]


def _run(send: Send, batch_bytes: int) -> Callable[[Job], Sent]:
    return lambda job: asyncio.run(_timed(job, send, batch_bytes))


async def _timed(job: Job, send: Send, batch_bytes: int) -> Sent:
    producer = AIOKafkaProducer(
        bootstrap_servers=job.bootstrap,
        acks="all" if job.acks == "all" else int(job.acks),
        compression_type=None if job.codec == "none" else job.codec,
        linger_ms=int(LINGER * 1000),
        max_batch_size=batch_bytes,
        max_request_size=4 * BATCH_BYTES,
    )
    async with producer:
        warmup = job.warmup()
        await send(producer, job, [warmup])
        await producer.flush()
        lists = list(job.lists())
        watch = Stopwatch()
        await send(producer, job, lists)
        await producer.flush()
        return Sent(job.sent(), len(warmup), watch.stop())


async def _send(producer: Any, job: Job, lists: list[list[bytes]]) -> None:
    send, topic = producer.send, job.topic
    for part in lists:
        for value in part:
            await send(topic, value)


async def _send_batch(producer: Any, job: Job, lists: list[list[bytes]]) -> None:
    """The partition is named: a batch has only one."""
    batch = producer.create_batch()
    append = batch.append
    for part in lists:
        for value in part:
            if append(key=None, value=value, timestamp=None) is None:
                await producer.send_batch(batch, job.topic, partition=0)
                batch = producer.create_batch()
                append = batch.append
                append(key=None, value=value, timestamp=None)
    await producer.send_batch(batch, job.topic, partition=0)


# 256 kB were the best for its `send`, of 16 kB to 1 MB, and as large as possible for batches of the program's own.
VARIANTS = {"send": _run(_send, 1 << 18), "send_batch": _run(_send_batch, BATCH_BYTES)}
PACED: dict[str, Any] = {}
