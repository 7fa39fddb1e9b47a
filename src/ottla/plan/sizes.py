"""What a record takes, as far as that is known without reading it: an estimate for everything, or one by partition."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.model import TopicPartition

RecordBytes = float | Mapping[TopicPartition, float]
"""Bytes of one record. A partition that a mapping does not name counts as the mean of those that it does."""


def bytes_of(at: TopicPartition, record_bytes: RecordBytes) -> float:
    """The estimate for a partition; never 0, so that offsets always weigh something."""
    if not isinstance(record_bytes, Mapping):
        return max(record_bytes, _LEAST)
    known = record_bytes.get(at)
    if known is None:
        known = sum(record_bytes.values()) / len(record_bytes) if record_bytes else 1.0
    return max(known, _LEAST)


_LEAST = 0.001
