"""Summarizes what an archive has of each partition, from its ledger alone.

Entries come in; per partition, joined ranges, counts, gaps and overlaps go out. Opens no data file. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ottla.lake.values import Entry, Gap
from ottla.model import Fingerprint, OffsetRange, Receipt, TopicPartition

UNEXPLAINED = "not explained by the ledger"


@dataclass(slots=True)
class PartitionStatus:
    """One partition of the archive."""

    topic_partition: TopicPartition
    ranges: list[OffsetRange] = field(default_factory=list)
    """The archived ranges, with adjacent ones joined."""
    fingerprint: Fingerprint = field(default_factory=Fingerprint)
    size_bytes: int = 0
    """Bytes of keys, values and headers."""
    files: int = 0
    file_bytes: int = 0
    first_time: float | None = None
    last_time: float | None = None
    gaps: list[Gap] = field(default_factory=list)
    """Offsets between the ranges, including those that the ledger does not explain."""
    overlaps: list[OffsetRange] = field(default_factory=list)
    """Offsets that are in the archive twice."""
    next_offset: int = 0
    """Where the archive continues."""
    archived: float | None = None
    """When something was last added, in seconds since 1970."""

    @property
    def records(self) -> int:
        """The number of archived records."""
        return self.fingerprint.count


def summarize(entries: Iterable[Entry]) -> list[PartitionStatus]:
    """Return the status of each partition, in order."""
    statuses: dict[TopicPartition, PartitionStatus] = {}
    spans: dict[TopicPartition, list[OffsetRange]] = {}
    explained: dict[TopicPartition, list[Gap]] = {}
    for entry in entries:
        for receipt in entry.receipts:
            tp = receipt.range.topic_partition
            _count(statuses.setdefault(tp, PartitionStatus(tp)), receipt, entry)
            spans.setdefault(tp, []).append(receipt.range)
        for file in entry.files:
            status = statuses.setdefault(file.range.topic_partition, PartitionStatus(file.range.topic_partition))
            status.files += 1
            status.file_bytes += file.size_bytes
        for gap in entry.gaps:
            explained.setdefault(gap.range.topic_partition, []).append(gap)
        for tp, offset in entry.positions.items():
            statuses.setdefault(tp, PartitionStatus(tp)).next_offset = offset
    for tp, status in statuses.items():
        _arrange(status, sorted(spans.get(tp, ())), explained.get(tp, []))
    return [statuses[tp] for tp in sorted(statuses)]


def _count(status: PartitionStatus, receipt: Receipt, entry: Entry) -> None:
    status.fingerprint += receipt.fingerprint
    status.size_bytes += receipt.size_bytes
    status.archived = entry.written
    if receipt.first_time is not None and receipt.last_time is not None:
        first, last = status.first_time, status.last_time
        status.first_time = receipt.first_time if first is None else min(first, receipt.first_time)
        status.last_time = receipt.last_time if last is None else max(last, receipt.last_time)


def _arrange(status: PartitionStatus, spans: list[OffsetRange], explained: list[Gap]) -> None:
    """Join adjacent ranges, and find gaps and overlaps between them."""
    reasons = {gap.range: gap for gap in explained}
    for span in (span for span in spans if len(span)):
        last = status.ranges[-1] if status.ranges else None
        if last is None:
            status.ranges.append(span)
            continue
        if span.start < last.stop:
            status.overlaps.append(OffsetRange(*status.topic_partition, span.start, min(span.stop, last.stop)))
        if span.start > last.stop:
            between = OffsetRange(*status.topic_partition, last.stop, span.start)
            status.gaps.append(reasons.pop(between, Gap(between, UNEXPLAINED)))
            status.ranges.append(span)
        else:
            status.ranges[-1] = OffsetRange(*status.topic_partition, last.start, max(last.stop, span.stop))
    status.gaps += reasons.values()
    status.gaps.sort(key=lambda gap: gap.range)
