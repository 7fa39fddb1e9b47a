"""Where partitions begin and end, and the offset of a time: ListOffsets requests and what the responses mean.

Comes in: partitions and a place, and responses. Goes out: a request for each leader, and the offsets found and the
partitions to ask again. Pure: `lookup` routes and sends.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import NamedTuple

from ottla.errors import BrokerError, ErrorCode, InputError, UnsupportedFormat
from ottla.model import Isolation, TopicPartition
from ottla.net.connection import VersionOf
from ottla.wire import list_offsets
from ottla.wire.messages import Encoded

LIST_OFFSETS = 2
_LAST_TIME = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class OffsetSpec(Enum):
    """A place in a partition; the value is the protocol's special timestamp."""

    LATEST = -1
    """The offset after the last readable record."""
    EARLIEST = -2
    """The offset of the oldest record."""
    MAX_TIMESTAMP = -3
    """The record with the greatest timestamp (KIP-734, Kafka 3.0)."""


EARLIEST = OffsetSpec.EARLIEST
LATEST = OffsetSpec.LATEST
MAX_TIMESTAMP = OffsetSpec.MAX_TIMESTAMP

At = OffsetSpec | datetime | int
"""A place, or the first record at or after a time: an aware datetime, or milliseconds since 1970 as records have."""

_LOWEST_VERSION = {OffsetSpec.MAX_TIMESTAMP: 7}


class OffsetAt(NamedTuple):
    """The result for a partition. `offset` is -1 if no record is at or after the requested time.

    `timestamp` is that of the record, in milliseconds since 1970, and -1 for LATEST and EARLIEST.
    """

    offset: int
    timestamp: int
    leader_epoch: int
    """The leader epoch of that record; -1 if unknown."""


def wire_timestamp(at: At) -> int:
    """Return the protocol's timestamp for a place or a time. Raises `InputError` for an invalid time."""
    if isinstance(at, OffsetSpec):
        return at.value
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise InputError(f"the time {at.isoformat()} has no time zone: use an aware datetime, for example in UTC")
        at = (at - _EPOCH) // timedelta(milliseconds=1)
    if not _is_number(at) or at > _LAST_TIME:
        raise InputError(f"{at!r} is not an OffsetSpec, an aware datetime or milliseconds since 1970 as an int")
    if at < 0:
        raise InputError(f"a time before 1970 ({at} ms) is not supported: use EARLIEST")
    return at


def _is_number(value: object) -> bool:
    return isinstance(value, int)


def build_list(
    version_of: VersionOf,
    partitions: Mapping[TopicPartition, int],
    *,
    at: At,
    isolation: Isolation,
    seconds: float,
) -> Encoded:
    """Build a ListOffsets request for partitions of one leader, each with its known leader epoch (-1: unknown)."""
    version = version_of(LIST_OFFSETS)
    lowest = _LOWEST_VERSION.get(at, 0) if isinstance(at, OffsetSpec) else 0
    if version < max(lowest, list_offsets.LOWEST_VERSION):
        lowest = max(lowest, list_offsets.LOWEST_VERSION)
        raise UnsupportedFormat(
            f"listing offsets for {at} needs ListOffsets version {lowest}, the broker has {version}"
        )
    timestamp = wire_timestamp(at)
    topics: dict[str, list[tuple[int, int]]] = {}
    for (topic, index), epoch in partitions.items():
        topics.setdefault(topic, []).append((index, epoch))
    body = list_offsets.list_request(
        topics, version=version, timestamp=timestamp, isolation=isolation, timeout_ms=round(seconds * 1000)
    )
    return Encoded(LIST_OFFSETS, version, body)


def read_list(
    body: memoryview, requested: Collection[TopicPartition]
) -> tuple[dict[TopicPartition, OffsetAt], dict[TopicPartition, BrokerError]]:
    """Return the offsets found, and the error of each other requested partition. Raises `WireError` if malformed."""
    results: dict[TopicPartition, OffsetAt] = {}
    errors: dict[TopicPartition, BrokerError] = {}
    for row in list_offsets.list_response(body):
        tp = TopicPartition(row.topic, row.partition)
        if row.error_code:
            errors[tp] = BrokerError(row.error_code, f"listing offsets of {tp}")
        else:
            results[tp] = OffsetAt(row.offset, row.timestamp, row.leader_epoch)
    if len(results) < len(requested):
        for tp in requested:
            if tp not in results and tp not in errors:
                what = f"listing offsets of {tp}"
                errors[tp] = BrokerError(ErrorCode.unknown_server_error, what, "not in the response")
    return results, errors
