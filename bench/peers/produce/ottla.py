"""Ottla's producer: `send`, `send_many` with lists of a thousand, `send_table` with large and small Arrow tables."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import pyarrow as pa

import ottla
from bench.harness import Stopwatch, paced
from bench.peers.produce import BATCH_BYTES, CHUNK, FLUSH_SECONDS, LINGER, Job, Sent, values

_ROWS = 100_000


def _producer(job: Job, *, linger: float = LINGER, spool: ottla.Spool | None = None) -> ottla.Producer:
    return ottla.Producer(
        job.bootstrap,
        acks="all" if job.acks == "all" else 1,
        compression=job.codec,
        batching=ottla.Batching(linger=linger, bytes=BATCH_BYTES),
        spool=spool,
    )


def _send(job: Job) -> Sent:
    with _producer(job) as producer:
        send, topic = producer.send, job.topic
        for value in (warmup := job.warmup()):
            send(topic, value)
        producer.flush(FLUSH_SECONDS)
        watch = Stopwatch()
        for part in job.lists():
            for value in part:
                send(topic, value)
        producer.flush(FLUSH_SECONDS)
        return Sent(job.sent(), len(warmup), watch.stop())


def _send_many(job: Job) -> Sent:
    with _producer(job) as producer:
        producer.send_many(job.topic, warmup := job.warmup())
        producer.flush(FLUSH_SECONDS)
        watch = Stopwatch()
        for part in job.lists():
            producer.send_many(job.topic, part)
        producer.flush(FLUSH_SECONDS)
        return Sent(job.sent(), len(warmup), watch.stop())


def _send_table(rows: int, *, write_ahead: bool = False) -> Callable[[Job], Sent]:
    def run(job: Job) -> Sent:
        tables = _tables(job.payload, min(rows, max(CHUNK, job.records)))
        size = len(tables[0])
        spool = ottla.Spool(job.folder, write_ahead=True) if write_ahead else None
        with _producer(job, spool=spool) as producer:
            warmup = pa.table({"value": pa.array(job.warmup(), pa.binary())})
            producer.send_table(job.topic, warmup)
            producer.flush(FLUSH_SECONDS)
            watch = Stopwatch()
            for i in range(job.sent(size) // size):
                producer.send_table(job.topic, tables[i % len(tables)])
            producer.flush(FLUSH_SECONDS)
            return Sent(job.sent(size), len(warmup), watch.stop())

    return run


@cache
def _tables(payload: str, rows: int) -> list[pa.Table]:
    """Tables with all values, made beforehand; when there are fewer values than rows, they repeat."""
    pool = pa.array(values(payload), pa.binary())
    whole = pa.concat_arrays([pool] * -(-rows // len(pool)))
    return [pa.table({"value": whole[at : at + rows]}) for at in range(0, len(whole) - rows + 1, rows)]


def _latency(job: Job) -> list[float]:
    (value, *_) = values(job.payload)
    seconds: list[float] = []

    def send() -> None:
        began = time.perf_counter()
        delivery = producer.send(job.topic, value)
        delivery.add_done_callback(lambda _: seconds.append(time.perf_counter() - began))

    with _producer(job, linger=0.0) as producer:
        paced(job.records, 1000, send)
        producer.flush(FLUSH_SECONDS)
    return seconds


VARIANTS = {
    "send": _send,
    "send_many": _send_many,
    "send_table": _send_table(_ROWS),
    "send_table, 1,000 rows": _send_table(CHUNK),
    "send_table, write-ahead": _send_table(_ROWS, write_ahead=True),
}
PACED = {"send": _latency}
