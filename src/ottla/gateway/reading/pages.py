"""Pages of records: one partition, or all of a topic, with a wait for records if there are none yet.

A place or a cursor, a size and a renderer come in; a rendered page with the place behind it goes out. What blocks runs
on the threads of `Readers`. It knows no route.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import pyarrow as pa

from ottla.admin.lookup import find_soon
from ottla.admin.offsets import OffsetSpec
from ottla.errors import OttlaError
from ottla.fetch import bounds
from ottla.fetch.cursor import END_OF_LOG
from ottla.gateway.http.problems import Problem, unavailable, unknown_partition
from ottla.gateway.reading.log_reader import LogReader, Place, Size, Taken
from ottla.gateway.reading.news import News
from ottla.gateway.reading.places import Cursor
from ottla.gateway.reading.readers import Readers
from ottla.model import Isolation, TopicPartition
from ottla.net.deadline import Deadline

READ_SECONDS = 10.0
"""How long one read may take, without the wait for records that do not exist yet."""
_ENDS_SECONDS = 4.0
_LEAST_SHARE = 1 << 16
When = str | datetime


@dataclass(frozen=True, slots=True)
class Page:
    """What was read, rendered."""

    body: bytes
    rows: int
    size_bytes: int
    cursor: Cursor
    begin_offset: int = 0
    end_offset: int = 0
    has_more: bool = False
    """Whether there were more records than it has."""
    missing: tuple[int, ...] = ()
    """Partitions that could not be read now: they come with a later page."""


PartitionRender = Callable[[Taken, Cursor], bytes]
TopicRender = Callable[[Sequence[pa.RecordBatch], Cursor, Cursor], bytes]
"""Gets the records, and the cursors before and after them."""


class Pages:
    """Reads pages for all clients of an event loop."""

    def __init__(self, readers: Readers, news: News) -> None:
        self.readers = readers
        self.news = news

    @property
    def log(self) -> LogReader:
        """What blocks."""
        return self.readers.log

    async def of_partition(
        self, place: Place, size: Size, render: PartitionRender, *, isolation: Isolation, wait_seconds: float
    ) -> Page:
        """Read one partition, and wait for a record if there is none."""
        until = time.monotonic() + wait_seconds
        while True:
            read = partial(_read_partition, self.log, place, size, render, isolation)
            page = await self.readers.run(*place.partition, read)
            left = until - time.monotonic()
            if page.rows or left <= 0 or page.cursor.is_over or self.news.is_ended:
                return page
            offset = page.cursor.offsets[place.partition.partition]
            await self.news.wait({place.partition: offset}, isolation, left)
            place = place._replace(offset=offset, topic_id=page.cursor.topic_id)

    async def of_topic(
        self, topic: str, cursor: Cursor, size: Size, render: TopicRender, *, isolation: Isolation, wait_seconds: float
    ) -> Page:
        """Read all partitions of a topic, and wait for a record if there is none."""
        until = time.monotonic() + wait_seconds
        while True:
            read = partial(_read_topic, self.log, topic, cursor, size, render, isolation)
            page = await self.readers.run(topic, -1, read)
            left = until - time.monotonic()
            cursor = page.cursor
            if page.rows or left <= 0 or cursor.is_over or self.news.is_ended:
                return page
            await self.news.wait(waited_for(topic, cursor), isolation, left)

    async def begin(
        self, topic: str, start: When, stop: When | None, *, isolation: Isolation, only: int | None = None
    ) -> Cursor:
        """Return the cursor of a topic, or of one partition, at a time, `earliest` or `latest`."""
        return await self.readers.run(topic, -1, partial(_begin, self.log, topic, start, stop, isolation, only))


def waited_for(topic: str, cursor: Cursor) -> dict[TopicPartition, int]:
    """Return the positions at which records are still to come."""
    return {
        TopicPartition(topic, each): offset
        for each, offset in cursor.offsets.items()
        if not cursor.stops or offset < cursor.stops[each]
    }


def _read_partition(log: LogReader, place: Place, size: Size, render: PartitionRender, isolation: Isolation) -> Page:
    taken = log.take(place, size, isolation=isolation, deadline=Deadline.after(READ_SECONDS))
    number = place.partition.partition
    stops = {} if place.stop == END_OF_LOG else {number: place.stop}
    cursor = Cursor(taken.topic_id, {number: taken.next_offset}, stops)
    body = render(taken, cursor)
    end = min(taken.end_offset, place.stop)
    return Page(
        body,
        taken.rows,
        taken.size_bytes,
        cursor,
        taken.begin_offset,
        taken.end_offset,
        has_more=taken.next_offset < end,
    )


def _begin(
    log: LogReader, topic: str, start: When, stop: When | None, isolation: Isolation, only: int | None
) -> Cursor:
    deadline = Deadline.after(READ_SECONDS)
    found = log.topic(topic, topic_id=None, deadline=deadline)
    numbers = [each.index for each in found.partitions if only is None or each.index == only]
    if only is not None and not numbers:
        raise unknown_partition(topic, only)
    tps = [TopicPartition(topic, number) for number in numbers]

    def resolve(bound: When) -> dict[int, int]:
        offsets = bounds.resolve(log.cluster, tps, bound, isolation=isolation, deadline=deadline)
        return {tp.partition: offset for tp, offset in offsets.items()}

    offsets = resolve(start)
    stops = {} if stop is None else resolve(stop)
    stops = {number: max(stop, offsets[number]) for number, stop in stops.items()}
    return Cursor(found.id, offsets, stops)


def _read_topic(
    log: LogReader, topic: str, cursor: Cursor, size: Size, render: TopicRender, isolation: Isolation
) -> Page:
    deadline = Deadline.after(READ_SECONDS)
    found = log.topic(topic, topic_id=cursor.topic_id, deadline=deadline)
    cursor = _with_new_partitions(cursor, [each.index for each in found.partitions], topic)
    places = waited_for(topic, cursor)
    ends = find_soon(
        log.cluster, places, at=OffsetSpec.LATEST, deadline=deadline.sooner(_ENDS_SECONDS), isolation=isolation
    )
    due = [tp for tp, offset in places.items() if tp in ends and ends[tp].offset != offset]
    missing = [tp.partition for tp in places if tp not in ends]
    if due:
        first = random.randrange(len(due))  # none is always the last one
        due = due[first:] + due[:first]
    before, batches, rows, size_bytes = cursor, [], 0, 0
    for number, tp in enumerate(due):
        left = Size(size.bytes - size_bytes, size.rows - rows)
        if left.bytes <= 0 or left.rows <= 0 or deadline.expired():
            break
        share = max(left.bytes // (len(due) - number), min(_LEAST_SHARE, left.bytes))
        place = Place(tp, cursor.offsets[tp.partition], cursor.topic_id, _stop_of(cursor, tp))
        try:
            taken = log.take(place, Size(share, left.rows), isolation=isolation, deadline=deadline)
        except Problem:
            if not rows:
                raise
            break  # what was read goes out first; the next page begins with this
        except OttlaError:
            if not rows and number == len(due) - 1:
                raise
            missing.append(tp.partition)
            continue
        cursor = cursor.moved(tp.partition, taken.next_offset)
        batches += taken.batches
        rows += taken.rows
        size_bytes += taken.size_bytes
    if missing and not rows:
        raise unavailable(f"topic {topic!r}: no leader of partition {', '.join(map(str, sorted(missing)))} answers")
    has_more = any(cursor.offsets[tp.partition] < min(ends[tp].offset, _stop_of(cursor, tp)) for tp in due)
    body = render(batches, before, cursor)
    return Page(body, rows, size_bytes, cursor, has_more=has_more, missing=tuple(sorted(missing)))


def _stop_of(cursor: Cursor, tp: TopicPartition) -> int:
    return cursor.stops.get(tp.partition, END_OF_LOG)


def _with_new_partitions(cursor: Cursor, numbers: Sequence[int], topic: str) -> Cursor:
    """Add partitions that the topic got meanwhile, from their beginning; a bounded read does not get them."""
    unknown = [number for number in cursor.offsets if number not in numbers]
    if unknown:
        raise unknown_partition(topic, unknown[0])
    if cursor.stops:
        return cursor
    new: Mapping[int, int] = {number: 0 for number in numbers if number not in cursor.offsets}
    return Cursor(cursor.topic_id, {**cursor.offsets, **new}, {}) if new else cursor
