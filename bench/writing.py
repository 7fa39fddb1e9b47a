"""Topics for benchmarks that read: filled once, by our own producer, with the same records for every peer."""

from __future__ import annotations

from functools import cache

import pyarrow as pa

import ottla
from bench.records import Case, values
from bench.stage import Stage

_VALUES = {100: 60_000, 1000: 12_000}
"""Different ones, by their size; then they come again."""
_FLUSH_SECONDS = 120.0


def fill(
    stage: Stage,
    topic: str,
    records: int,
    *,
    record_bytes: int,
    partitions: int,
    codec: str = "none",
    batch_bytes: int = 64_000,
) -> int:
    """How many records the topic has then: at least as many as asked for, and the same number in each partition."""
    table = _table(record_bytes, partitions)
    times = max(1, -(-records // len(table)))
    batching = ottla.Batching(bytes=batch_bytes, linger=1.0)  # only the last batch of a partition is not full
    with ottla.Producer(stage.bootstrap, acks=1, compression=codec, batching=batching) as producer:
        for _ in range(times):
            producer.send_table(topic, table)
        producer.flush(_FLUSH_SECONDS)
    written = stage.records(topic, partitions)
    if written != times * len(table):
        raise AssertionError(f"{times * len(table)} records were written, the broker has {written}")
    return written


@cache
def _table(record_bytes: int, partitions: int) -> pa.Table:
    """Different values, and neighbours in different partitions."""
    count = _VALUES[record_bytes]
    case = Case(record_bytes=record_bytes, codec="none", batch_bytes=0, shape="value", records=count)
    numbers = pa.array([i % partitions for i in range(count)], pa.int32())
    return pa.table({"value": pa.array(values(case), pa.binary()), "partition": numbers})
