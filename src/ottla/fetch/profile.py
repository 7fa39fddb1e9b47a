"""Profiles a range from batch headers alone: records, bytes, codecs, times, producers.

Batches come in, sums go out. Nothing is decompressed, with one exception: if a batch crosses the edge of the range and
has holes, its offsets are decoded, because the header does not say on which side of the edge the records are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ottla.model import OffsetRange
from ottla.wire.batch import Batch, TimestampType
from ottla.wire.decode import Decoder

_CODEC_NAMES = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}


@dataclass(frozen=True, slots=True)
class PartitionProfile:
    """The content of a range of one partition. Times are milliseconds since 1970, None if there are no records.

    `bytes` and `codecs` (batches by codec) count whole batches as they are stored. `producers` is the number of
    producer ids. `first_timestamp` is the lowest base timestamp of a batch.
    """

    range: OffsetRange
    records: int = 0
    batches: int = 0
    bytes: int = 0
    codecs: Mapping[str, int] = field(default_factory=dict)
    producers: int = 0
    transactional: int = 0
    control: int = 0
    first_timestamp: int | None = None
    last_timestamp: int | None = None


class ProfileBuilder:
    """Adds up the batch headers of one partition."""

    def __init__(self, span: OffsetRange) -> None:
        self._range = span
        self._records = self._batches = self._bytes = self._transactional = self._control = 0
        self._codecs: Counter[int] = Counter()
        self._producers: set[int] = set()
        self._first: int | None = None
        self._last: int | None = None

    def add(self, batches: Iterable[Batch]) -> None:
        """Add batches, in the order of the log."""
        start, stop = self._range.start, self._range.stop
        for batch in batches:
            header = batch.header
            if header.next_offset <= start or header.base_offset >= stop:
                continue
            self._batches += 1
            self._bytes += header.size_bytes
            if header.is_control:
                self._control += 1
                continue
            is_inside = header.base_offset >= start and header.next_offset <= stop
            count = header.count if is_inside else _count_inside(batch, start, stop)
            self._records += count
            self._codecs[header.codec] += 1
            self._transactional += header.is_transactional
            if header.producer_id >= 0:
                self._producers.add(header.producer_id)
            if count:
                last = header.max_timestamp
                # If the broker sets the time, the base timestamp is still that of the producer.
                first = last if header.timestamp_type is TimestampType.LOG_APPEND else header.base_timestamp
                self._first = first if self._first is None else min(self._first, first)
                self._last = last if self._last is None else max(self._last, last)

    def profile(self) -> PartitionProfile:
        """Return the sums so far."""
        return PartitionProfile(
            self._range,
            records=self._records,
            batches=self._batches,
            bytes=self._bytes,
            codecs={_CODEC_NAMES[code]: count for code, count in sorted(self._codecs.items())},
            producers=len(self._producers),
            transactional=self._transactional,
            control=self._control,
            first_timestamp=self._first,
            last_timestamp=self._last,
        )


def _count_inside(batch: Batch, start: int, stop: int) -> int:
    header = batch.header
    if header.count == header.last_offset_delta + 1:
        return min(stop, header.next_offset) - max(start, header.base_offset)
    return sum(decoded.rows for decoded in Decoder(("offset",)).decode([batch], start=start, stop=stop))
