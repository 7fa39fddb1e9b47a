"""Decodes a batch and encodes its records again, for a target that does not accept it as it is.

A batch comes in, with the offsets that are wanted of it; batches that the target accepts go out, each with the source
offsets of its records. Keys, values, headers and timestamps stay the same. It sends nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ottla.errors import RecordTooLarge
from ottla.mirror.passage import Acceptance
from ottla.wire.batch import IS_LOG_APPEND, Batch, Codec
from ottla.wire.codecs import Scratch
from ottla.wire.columns import from_arrow
from ottla.wire.decode import Decoder
from ottla.wire.encode import BatchLimits, NewBatch, encode

_LEAST_BYTES = 1 << 10
_COLUMNS = ("offset", "timestamp", "key", "value", "headers")


class Recoded(NamedTuple):
    """A new batch, and the source offset of each of its records."""

    batch: NewBatch
    offsets: npt.NDArray[np.int64]


class Recoder:
    """Recodes batches, reusing its memory. Use one per thread."""

    def __init__(self, *, max_batch_bytes: int = 256 << 20) -> None:
        self._decoder = Decoder(_COLUMNS, max_batch_bytes=max_batch_bytes)
        self._most_bytes = max_batch_bytes

    def recode(
        self, batch: Batch, accepts: Acceptance, *, topic: str, partition: int, start: int, stop: int
    ) -> Iterator[Recoded]:
        """Yield the records in `[start, stop)` as batches that the target accepts.

        Raises `CorruptBatch` if the batch is damaged, and `RecordTooLarge` if a single record exceeds the limit.
        """
        codec = batch.header.codec if accepts.codec is None else accepts.codec
        for decoded in self._decoder.decode([batch], topic=topic, partition=partition, start=start, stop=stop):
            records = decoded.records
            offsets = records.column("offset").to_numpy()
            times = records.column("timestamp").cast("int64").to_numpy() // 1000
            if decoded.clamped:  # columns are in microseconds, records are not
                exact = self._exact_times(batch)
                times = np.array([exact[offset] for offset in offsets.tolist()], np.int64)
            columns = from_arrow(records.column("value"), key=records.column("key"), headers=records.column("headers"))
            columns = columns._replace(times=np.ascontiguousarray(times))
            row = 0
            # A little less, because a codec can also make incompressible records larger.
            limits = BatchLimits(max_bytes=max(_LEAST_BYTES, accepts.max_bytes - accepts.max_bytes // 64 - 128))
            for new in encode(columns, now_ms=0, codec=codec, limits=limits):
                if new.header.size_bytes > accepts.max_bytes:
                    what = f"the record at offset {offsets[row]} of {topic}-{partition}"
                    raise RecordTooLarge(what, size_bytes=new.header.size_bytes, limit_bytes=accepts.max_bytes)
                yield Recoded(new, offsets[row : row + new.header.count])
                row += new.header.count

    def _exact_times(self, batch: Batch) -> dict[int, int]:
        """Return the timestamps of a batch by offset, in milliseconds as they are. The batch was decoded before."""
        header, data = batch.header, bytes(batch.records)
        if header.codec is not Codec.NONE:
            scratch = Scratch()
            scratch.append(header.codec, batch.records, self._most_bytes)
            data = scratch.view().tobytes()
        times: dict[int, int] = {}
        position = 0
        for _ in range(header.count):
            size, position = _varlong(data, position)
            time_delta, behind = _varlong(data, position + 1)  # after the attributes
            offset_delta, _ = _varlong(data, behind)
            time = header.base_timestamp + time_delta
            if header.attributes & IS_LOG_APPEND:
                time = header.max_timestamp
            times[header.base_offset + offset_delta] = (time + (1 << 63)) % (1 << 64) - (1 << 63)
            position += size
        return times


def _varlong(data: bytes, position: int) -> tuple[int, int]:
    """Return a zigzag number and the position after it."""
    number = shift = 0
    while True:
        byte = data[position]
        number |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position
