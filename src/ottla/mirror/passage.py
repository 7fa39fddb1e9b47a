"""Decides which batches can be passed on as they are, and gives those that can their new identity.

A batch from the source and what the target accepts come in. Out goes the header to send before the unchanged records,
or the reason why the batch must be decoded and encoded again. Pure; it never looks at a record.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ottla.wire.batch import (
    CODEC_MASK,
    HAS_DELETE_HORIZON,
    IS_CONTROL,
    IS_LOG_APPEND,
    IS_TRANSACTIONAL,
    BatchHeader,
    Codec,
)
from ottla.wire.restamp import restamp


class Reason(Enum):
    """Why a batch was decoded and encoded again."""

    GAPS = "gaps left by compaction"
    CUT = "only a part of the batch is mirrored"
    APPEND_TIME = "timestamps set by the source broker"
    CODEC = "another codec required by the target"
    TOO_LARGE = "larger than the target accepts"


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What a target topic accepts."""

    max_bytes: int
    """The largest batch."""
    codec: Codec | None = None
    """The only codec that the broker does not recompress; None if any will do."""
    append_time: bool = False
    """Whether the target broker sets the timestamps."""


def reason_to_recode(header: BatchHeader, accepts: Acceptance, *, start: int, stop: int) -> Reason | None:
    """Return why a data batch cannot be passed on, or None if it can. Records in `[start, stop)` are wanted."""
    if header.count != header.last_offset_delta + 1:
        return Reason.GAPS
    if header.base_offset < start or header.next_offset > stop:
        return Reason.CUT
    if header.attributes & IS_LOG_APPEND and not accepts.append_time:
        return Reason.APPEND_TIME
    if accepts.codec is not None and header.attributes & CODEC_MASK != accepts.codec:
        return Reason.CODEC
    return Reason.TOO_LARGE if header.size_bytes > accepts.max_bytes else None


def passed_on(header: BatchHeader, *, producer_id: int, epoch: int, sequence: int) -> BatchHeader:
    """Return the header under which the records are sent: a plain idempotent batch of this producer."""
    return restamp(
        header,
        base_offset=0,  # else the broker leaves its in-place path and compresses the batch again
        leader_epoch=-1,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        # When the source's cleaner may remove tombstones (KIP-534) says nothing about the target's.
        attributes=header.attributes & ~(IS_TRANSACTIONAL | IS_CONTROL | IS_LOG_APPEND | HAS_DELETE_HORIZON),
    )
