"""Topics whose records are numbered, and a check that each was read exactly once and in its place.

A count and a size come in, a topic with so many records goes out; batches of a reader come in, and what is wrong with
them is reported as soon as it is seen.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.produce.options import Batching
from ottla.produce.producer import Producer

_NUMBER = np.dtype("<i8")
_AT_ONCE = 50_000


def table_of(first: int, count: int, size: int) -> pa.Table:
    """Return records whose values start with their numbers. The rest is somewhat compressible."""
    rows = np.zeros((count, size), np.uint8)
    rows[:, 8:] = np.random.default_rng(first).integers(0, 60, (count, size - 8), np.uint8)
    rows[:, :8] = np.arange(first, first + count, dtype=_NUMBER).reshape(-1, 1).view(np.uint8)
    ends = pa.py_buffer(np.arange(0, count * size + 1, size, dtype=np.int32))
    return pa.table({"value": pa.Array.from_buffers(pa.binary(), count, [None, ends, pa.py_buffer(rows)])})


def write_numbered(bootstrap: str, topic: str, count: int, *, size: int = 1000, codec: str = "none") -> None:
    """Write numbered records, acknowledged by the leader alone."""
    batching = Batching(bytes=250_000, linger=0.02)
    with Producer(bootstrap, compression=codec, acks=1, idempotent=False, batching=batching) as producer:
        deliveries = [
            producer.send_table(topic, table_of(first, min(_AT_ONCE, count - first), size))
            for first in range(0, count, _AT_ONCE)
        ]
        for delivery in deliveries:
            delivery.result(120)


class Ledger:
    """Checks what was read of `count` numbered records."""

    def __init__(self, count: int) -> None:
        self._times: npt.NDArray[np.uint8] = np.zeros(count, np.uint8)
        self._next: dict[int, int] = {}
        self.rows = 0
        self.bytes = 0

    def add(self, records: pa.RecordBatch) -> None:
        """Add a batch. Its offsets must follow those of the same partition before."""
        partition = records.column("partition")[0].as_py()
        offsets = records.column("offset").to_numpy()
        first = self._next.get(partition, 0)
        wanted = np.arange(first, first + len(offsets))
        assert np.array_equal(offsets, wanted), f"partition {partition}: offset {offsets[0]} after {first - 1}"
        self._next[partition] = int(offsets[-1]) + 1
        column = records.column("value")
        _, ends_buffer, data = column.buffers()
        ends = np.frombuffer(ends_buffer, np.int32, len(column) + 1, column.offset * 4).astype(np.int64)
        octets = np.frombuffer(data, np.uint8)
        numbers = octets[ends[:-1, None] + np.arange(8)].copy().view(_NUMBER).ravel()
        np.add.at(self._times, numbers, 1)
        self.rows += len(column)
        self.bytes += int(ends[-1] - ends[0])

    def add_all(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Add all batches."""
        for records in batches:
            self.add(records)

    def check(self) -> None:
        """Check that every record came exactly once."""
        missing, twice = int((self._times == 0).sum()), int((self._times > 1).sum())
        assert (missing, twice) == (0, 0), f"{missing} records are missing, {twice} came more than once"
        assert self.rows == len(self._times)
