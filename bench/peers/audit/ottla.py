"""Ottla: tables with and without tallies, topics counted by headers and by records, two topics compared."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import cache, partial
from uuid import uuid4

import pyarrow as pa

import ottla
from bench.harness import Stopwatch
from bench.peers.audit import Job, Moved
from bench.records import Case, values
from ottla.jobs import Brokers, compare, tallies
from ottla.jobs.tallies import TallyRequest

_WARMUP = 20_000
_ROWS = 50_000
_WAIT_SECONDS = 120.0
_VALUES = 20_000


@cache
def table(record_bytes: int) -> pa.Table:
    pool = values(Case(record_bytes=record_bytes, codec="none", batch_bytes=0, shape="value", records=_VALUES))
    now = int(time.time() * 1000)
    return pa.table(
        {
            "value": pa.array([pool[i % len(pool)] for i in range(_ROWS)], pa.binary()),
            "timestamp": pa.array([now + i % 1000 for i in range(_ROWS)], pa.int64()),
        }
    )


def _produce(job: Job, *, is_counted: bool, codec: str = "none") -> Moved:
    audit = ottla.Audit(tier="bench", topic=f"audit-{uuid4().hex[:8]}", publish_every=1.0) if is_counted else None
    rows = table(job.record_bytes)
    rounds = max(1, job.records // _ROWS)
    with ottla.Producer(job.bootstrap, acks=1, audit=audit, compression=codec) as producer:
        producer.send_table(job.topic, rows.slice(0, _WARMUP))
        producer.flush(_WAIT_SECONDS)
        gc.collect()
        watch = Stopwatch()
        for _ in range(rounds):
            producer.send_table(job.topic, rows)
        producer.flush(_WAIT_SECONDS)
        taken = watch.stop()
    return Moved(rounds * _ROWS, taken, _WARMUP)


def _count(job: Job, *, headers_only: bool) -> Moved:
    request = TallyRequest(tier="bench", headers_only=headers_only)
    brokers = Brokers(bootstrap=job.bootstrap)

    def counted() -> int:
        found = tallies.count_log([job.topic], brokers, request, run=map, cell=1 << 40)
        return sum(tally.records for tally in found)

    counted()
    watch = Stopwatch()
    return Moved(counted(), watch.stop())


def _fingerprint(job: Job) -> Moved:
    with ottla.Reader(job.bootstrap) as reader:
        reader.fingerprint(job.topic)
        watch = Stopwatch()
        return Moved(reader.fingerprint(job.topic).count, watch.stop())


def _compare_on_spark(job: Job) -> Moved:
    import ottla.spark

    session = ottla.spark.session("bench", master="local[2]", conf={"spark.ui.enabled": "false"})
    try:
        compared = partial(
            compare,
            topics=[job.topic],
            data={"left": job.bootstrap, "right": job.bootstrap},
            names={"right": {job.topic: job.other}},
            spark=session,
        )
        compared()
        watch = Stopwatch()
        comparison = compared()
        taken = watch.stop()
    finally:
        session.stop()
    if comparison.has_faults:
        raise AssertionError("equal topics are said to differ")
    return Moved(sum(row.tiers[1].records or 0 for row in comparison.rows), taken)


VARIANTS: dict[str, Callable[[Job], Moved]] = {
    "tables": partial(_produce, is_counted=False),
    "tables, counted": partial(_produce, is_counted=True),
    "tables, zstd": partial(_produce, is_counted=False, codec="zstd"),
    "tables, zstd, counted": partial(_produce, is_counted=True, codec="zstd"),
    "count by headers": partial(_count, headers_only=True),
    "count by records": partial(_count, headers_only=False),
    "fingerprint": _fingerprint,
    "compare on Spark": _compare_on_spark,
}
