"""What the headers of batches say about unread records: when the first was written, and when the newest. Pure.

Comes in: places in logs, and fetch responses for them. Goes out: what to fetch next, and `Times`. Nothing is
decompressed: a header has the timestamp of its first record and the newest one.

A broker leaves a partition out if its next batch is larger than that partition's limit, unless it comes first in the
request. So places are asked for with a small limit first, which costs next to nothing where the batch is larger, then
with larger ones, and in the end alone. Markers of transactions carry the time of the transaction, not that of data, and
are passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ottla.errors import ErrorCode
from ottla.model import TopicPartition
from ottla.operations.lag.values import Times
from ottla.wire.batch import Batch, BatchHeader, TimestampType, split
from ottla.wire.fetch import Fetched

LIMITS = (1 << 10, 1 << 14, 1 << 17, (1 << 20) + (1 << 16))
"""Bytes per partition, one after the other."""
ALONE = len(LIMITS)
"""The step after the last limit: in a request of its own, where the first batch comes whatever its size."""
REQUEST_BYTES = 4 << 20
"""What the partitions of one request may bring together, so that no partition is left out because of the others."""
_MOST_STEPS_BACK = 3
_MOST_STEPS_ON = 64
_DELETE_HORIZON = 0x40
"""Of the attributes: compaction has put the time of its last look where the first timestamp was (KIP-534)."""
_OUT_OF_RANGE = int(ErrorCode.offset_out_of_range)


class Place(NamedTuple):
    """Where to look, and for what."""

    partition: TopicPartition
    offset: int
    """The first unread offset, or the last one of the log."""
    end: int
    """The end of the log: what lies at or after it does not count."""
    is_newest: bool = False
    """Look for the newest timestamp in the batch, not for the first unread record."""
    step: int = 0
    """How many limits were too small."""
    back: int = 0
    """How many batches of markers were passed over."""
    asked_at: int | None = None
    """The offset that was asked for first, if others were tried since."""

    @property
    def asked(self) -> int:
        """The offset that was asked for first."""
        return self.offset if self.asked_at is None else self.asked_at

    def moved(self, offset: int) -> Place:
        """Return the same question at another offset."""
        return self._replace(offset=offset, back=self.back + 1, asked_at=self.asked)


class Seen(NamedTuple):
    """What a place has: a timestamp in seconds, None if there is none."""

    at: float | None
    is_exact: bool = True
    is_empty: bool = False
    """Whether there is nothing but markers and aborted records up to the end."""
    size_bytes: int = 0
    """The size of the batch."""


Unread = tuple[TopicPartition, int]
"""A partition, and the first unread offset."""


def size_of(place: Place) -> int:
    """Return the limit in bytes to fetch a place with."""
    return LIMITS[place.step] if place.step < ALONE else 1


def step_for(size_bytes: int) -> int:
    """Return the step whose limit a batch of this size fits in."""
    return next((step for step, limit in enumerate(LIMITS) if size_bytes <= limit), ALONE)


def batched(places: Iterable[Place]) -> list[list[Place]]:
    """Divide places of one broker into requests: no partition twice, and together within `REQUEST_BYTES`."""
    requests: list[tuple[list[Place], set[TopicPartition]]] = []
    room: dict[int, int] = {}
    for place in sorted(places, key=lambda place: place.step):
        if place.step >= ALONE:
            requests.append(([place], {place.partition}))
            continue
        most = REQUEST_BYTES // LIMITS[place.step]
        for number in range(room.get(place.step, 0), len(requests)):
            listed, partitions = requests[number]
            if listed[0].step == place.step and len(listed) < most and place.partition not in partitions:
                break
        else:
            listed, partitions = [], set()
            requests.append((listed, partitions))
            room.setdefault(place.step, len(requests) - 1)
        listed.append(place)
        partitions.add(place.partition)
    return [listed for listed, _ in requests]


def interpret(place: Place, fetched: Fetched, *, committed_only: bool) -> Seen | Place | None:
    """Return what the answer says, the next place to look at, or None if nothing can be known.

    Raises `WireError` if the batches are damaged.
    """
    if fetched.error_code == _OUT_OF_RANGE and not place.is_newest and place.offset < fetched.log_start_offset:
        # What is unread begins where the log begins now.
        return place.moved(fetched.log_start_offset)
    if fetched.error_code:
        return None
    batches = list(split(fetched.records))
    if not batches:
        if not place.is_newest and place.offset >= min(place.end, fetched.last_stable_offset) and committed_only:
            return Seen(None, is_empty=True)
        return place._replace(step=place.step + 1) if place.step < ALONE else None
    if place.is_newest:
        return _newest(place, [batch.header for batch in batches])
    for batch in _visible(batches, fetched, committed_only):
        header = batch.header
        if header.base_offset >= place.end:
            break
        if not header.is_control and header.count and header.next_offset > place.offset:
            return _first(header, place.offset)
    reached = batches[-1].header.next_offset
    if reached >= place.end:
        return Seen(None, is_empty=True)
    return place.moved(max(reached, place.offset + 1)) if place.back < _MOST_STEPS_ON else None


def combine(
    unread: Sequence[Unread], first: Mapping[Unread, Seen], newest: Mapping[TopicPartition, Seen]
) -> dict[Unread, Times]:
    """Put both ends together."""
    times = {}
    for place in unread:
        begin, end = first.get(place), newest.get(place[0])
        if begin is not None:
            latest = None if end is None else end.at
            times[place] = Times(begin.at, latest, begin.is_exact, begin.is_empty)
    return times


def _visible(batches: list[Batch], fetched: Fetched, committed_only: bool) -> list[Batch]:
    if not committed_only or not fetched.aborted:
        return batches
    from ottla.fetch.cursor import without_aborted  # imports numpy, which is rarely needed here

    return without_aborted(batches, fetched.aborted)


def _first(header: BatchHeader, offset: int) -> Seen | None:
    """Return when the first unread record of a batch was written."""
    if header.timestamp_type is TimestampType.LOG_APPEND:
        return _timestamp(header, header.max_timestamp, is_exact=True)
    if header.attributes & _DELETE_HORIZON:
        if header.count == 1:
            return _timestamp(header, header.max_timestamp, is_exact=True)
        return Seen(None, size_bytes=header.size_bytes)  # the newest time says nothing about the first record
    is_first = offset <= header.base_offset or header.base_timestamp == header.max_timestamp
    return _timestamp(header, header.base_timestamp, is_exact=is_first)


def _newest(place: Place, headers: Sequence[BatchHeader]) -> Seen | Place | None:
    data = [header for header in headers if not header.is_control and header.base_offset < place.end]
    if data:
        return _timestamp(data[0], max(header.max_timestamp for header in data), is_exact=True)
    before = headers[0].base_offset - 1
    if place.back >= _MOST_STEPS_BACK or before < 0 or before >= place.offset:
        return None
    return place.moved(before)


def _timestamp(header: BatchHeader, milliseconds: int, *, is_exact: bool) -> Seen | None:
    """Return a timestamp; None for records without one."""
    return Seen(milliseconds / 1000, is_exact, size_bytes=header.size_bytes) if milliseconds >= 0 else None
