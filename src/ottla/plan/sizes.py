"""Estimates of record sizes without reading records: one for all partitions, or one per partition."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.model import TopicPartition

RecordBytes = float | Mapping[TopicPartition, float]
"""Bytes per record. A partition that a mapping does not have counts as the mean of those it has."""
_MINIMUM = 0.001


def bytes_of(partition: TopicPartition, record_bytes: RecordBytes) -> float:
    """Return the estimate for a partition. Never 0, so that offsets always weigh something."""
    if not isinstance(record_bytes, Mapping):
        return max(record_bytes, _MINIMUM)
    estimate = record_bytes.get(partition)
    if estimate is None:
        estimate = sum(record_bytes.values()) / len(record_bytes) if record_bytes else 1.0
    return max(estimate, _MINIMUM)
