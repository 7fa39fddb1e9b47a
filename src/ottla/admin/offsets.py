"""Where partitions begin and end, and the offset of a time: ListOffsets requests and what the responses mean.

Comes in: partitions and a place, and responses. Goes out: a request for each leader, and the offsets found and the
partitions to ask again. Pure: `lookup` routes and sends.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, NamedTuple

from ottla.errors import BrokerError, ErrorCode, InputError, UnsupportedFormat
from ottla.model import Isolation, TopicPartition
from ottla.net.connection import VersionOf
from ottla.wire import messages

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
) -> messages.Message:
    """Build a ListOffsets request for partitions of one leader, each with its known leader epoch (-1: unknown)."""
    version = version_of(LIST_OFFSETS)
    lowest = _LOWEST_VERSION.get(at, 0) if isinstance(at, OffsetSpec) else 0
    if version < lowest:
        raise UnsupportedFormat(
            f"listing offsets for {at} needs ListOffsets version {lowest}, the broker has {version}"
        )
    timestamp = wire_timestamp(at)
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, index), epoch in partitions.items():
        row = {"partition_index": index, "current_leader_epoch": epoch, "timestamp": timestamp}
        topics.setdefault(topic, []).append(row)
    fields = {
        "replica_id": -1,
        "isolation_level": isolation.value,
        "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
        "timeout": timedelta(seconds=seconds),
    }
    message: messages.Message = messages.compose(messages.request_type(LIST_OFFSETS, version), fields)
    return message


def read_list(
    response: Any, requested: Collection[TopicPartition]
) -> tuple[dict[TopicPartition, OffsetAt], dict[TopicPartition, BrokerError]]:
    """Return the offsets found, and the error of each other requested partition."""
    results: dict[TopicPartition, OffsetAt] = {}
    errors: dict[TopicPartition, BrokerError] = {}
    for topic in response.topics:
        for row in topic.partitions:
            tp = TopicPartition(topic.name, int(row.partition_index))
            if row.error_code is not ErrorCode.none:
                errors[tp] = BrokerError(row.error_code, f"listing offsets of {tp}")
            else:
                results[tp] = OffsetAt(int(row.offset), int(row.timestamp), int(getattr(row, "leader_epoch", -1)))
    for tp in requested:
        if tp not in results and tp not in errors:
            errors[tp] = BrokerError(ErrorCode.unknown_server_error, f"listing offsets of {tp}", "not in the response")
    return results, errors
