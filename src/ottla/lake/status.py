"""What an archive has of each partition, from its ledger alone; no file of records is opened.

Entries come in; ranges that belong together, numbers, gaps and overlaps go out. Pure.
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

    at: TopicPartition
    ranges: list[OffsetRange] = field(default_factory=list)
    """What is archived, neighbours joined."""
    fingerprint: Fingerprint = field(default_factory=Fingerprint)
    size_bytes: int = 0
    """Of keys, values and headers."""
    files: int = 0
    file_bytes: int = 0
    first_time: float | None = None
    last_time: float | None = None
    gaps: list[Gap] = field(default_factory=list)
    """Offsets between the ranges; those that nobody has explained, too."""
    overlaps: list[OffsetRange] = field(default_factory=list)
    """Offsets that are there twice."""
    next_offset: int = 0
    """Where the archive goes on."""
    archived: float | None = None
    """When something was last added, in seconds since 1970."""

    @property
    def records(self) -> int:
        """How many there are."""
        return self.fingerprint.count


def summarize(entries: Iterable[Entry]) -> list[PartitionStatus]:
    """All partitions, in order."""
    found: dict[TopicPartition, PartitionStatus] = {}
    spans: dict[TopicPartition, list[OffsetRange]] = {}
    explained: dict[TopicPartition, list[Gap]] = {}
    for entry in entries:
        for receipt in entry.receipts:
            at = receipt.range.topic_partition
            _count(found.setdefault(at, PartitionStatus(at)), receipt, entry)
            spans.setdefault(at, []).append(receipt.range)
        for file in entry.files:
            status = found.setdefault(file.range.topic_partition, PartitionStatus(file.range.topic_partition))
            status.files += 1
            status.file_bytes += file.size_bytes
        for gap in entry.gaps:
            explained.setdefault(gap.range.topic_partition, []).append(gap)
        for at, offset in entry.positions.items():
            found.setdefault(at, PartitionStatus(at)).next_offset = offset
    for at, status in found.items():
        _arrange(status, sorted(spans.get(at, ())), explained.get(at, []))
    return [found[at] for at in sorted(found)]


def _count(status: PartitionStatus, receipt: Receipt, entry: Entry) -> None:
    status.fingerprint += receipt.fingerprint
    status.size_bytes += receipt.size_bytes
    status.archived = entry.written
    if receipt.first_time is not None and receipt.last_time is not None:
        first, last = status.first_time, status.last_time
        status.first_time = receipt.first_time if first is None else min(first, receipt.first_time)
        status.last_time = receipt.last_time if last is None else max(last, receipt.last_time)


def _arrange(status: PartitionStatus, spans: list[OffsetRange], explained: list[Gap]) -> None:
    reasons = {gap.range: gap for gap in explained}
    for one in (span for span in spans if len(span)):
        last = status.ranges[-1] if status.ranges else None
        if last is None:
            status.ranges.append(one)
            continue
        if one.start < last.stop:
            status.overlaps.append(OffsetRange(*status.at, one.start, min(one.stop, last.stop)))
        if one.start > last.stop:
            between = OffsetRange(*status.at, last.stop, one.start)
            status.gaps.append(reasons.pop(between, Gap(between, UNEXPLAINED)))
            status.ranges.append(one)
        else:
            status.ranges[-1] = OffsetRange(*status.at, last.start, max(last.stop, one.stop))
    status.gaps += reasons.values()
    status.gaps.sort(key=lambda gap: gap.range)
