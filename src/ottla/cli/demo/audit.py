"""The end of `ottla demo`: a careless copy loses a record and doubles another, and the audit names both.

The copy has as many records as the original, so that counting finds nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa

from ottla.admin import Admin
from ottla.cli.errors import CommandFailed
from ottla.fetch.reader import Reader
from ottla.jobs.finding import find_differences
from ottla.produce.producer import Producer

_COPY = "demo-copy"
_FLUSH_SECONDS = 60.0


def plant_and_find(bootstrap: str, topic: str, *, partitions: int, records: int, say: Callable[[str], None]) -> None:
    """Copy the topic without one record and with another one twice, and have the audit find both."""
    middle = records // partitions // 2
    lost, doubled = (1, middle), (2, middle)
    say(f"copying topic {topic} once more with a careless program: it loses one record and doubles another")
    with Admin(bootstrap) as admin:
        admin.create_topic(_COPY, partitions=partitions)
    began = time.monotonic()
    with Reader(bootstrap) as reader:
        with Producer(bootstrap, compression="lz4") as producer:
            for batch in reader.read(topic):
                producer.send_table(_COPY, _careless(batch, lost=lost, doubled=doubled))
            producer.flush(_FLUSH_SECONDS)
        counts = reader.count(topic), reader.count(_COPY)
    say(f"  both topics have {counts[0]:,} records" if counts[0] == counts[1] else f"  records: {counts}")
    found = list(find_differences(topic, left=bootstrap, right=bootstrap, right_topic=_COPY))
    for difference in found:
        key = (difference.key or b"").decode()
        place = f"partition {difference.partition}, offset {difference.offset} of the {difference.side} topic"
        say(f"  the audit: {difference.verdict}, {place}, key {key}")
    say(f"  found in {time.monotonic() - began:.1f} s, the copying included")
    named = sorted((str(difference.verdict), difference.partition) for difference in found)
    if named != [("duplicated", doubled[0]), ("missing", lost[0])]:
        raise CommandFailed(f"the audit was to name one missing and one duplicated record, and named {named}")


def _careless(batch: pa.RecordBatch, *, lost: tuple[int, int], doubled: tuple[int, int]) -> pa.Table:
    """The rows of a batch, without one record and with another one twice."""
    partition = batch.column("partition")[0].as_py()
    offsets = batch.column("offset").to_pylist()
    rows = list(range(batch.num_rows))
    if partition == lost[0] and lost[1] in offsets:
        rows.remove(offsets.index(lost[1]))
    if partition == doubled[0] and doubled[1] in offsets:
        rows.append(offsets.index(doubled[1]))
    columns = ["key", "value", "headers", "timestamp", "partition"]
    return pa.Table.from_batches([batch.select(columns)]).take(rows)
