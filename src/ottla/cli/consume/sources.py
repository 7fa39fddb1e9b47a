"""Where `ottla consume` gets records: from offset ranges and logs through a reader, or as a member of a group.

Both are a `flow.Source`. Records that retention deletes before they are read are reported on stderr.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Iterator
from dataclasses import replace
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self

import click
import pyarrow as pa

from ottla.admin.committed import fetch_committed
from ottla.cli.consume.flow import POSITION_COLUMNS, end_of
from ottla.cli.ranges import ReadPlan
from ottla.cli.terminal.interruption import Interruption
from ottla.consume.consumer import Consumer
from ottla.events import Event, RangeLost
from ottla.fetch.reader import Reader
from ottla.model import GroupMember, OffsetRange, TopicPartition
from ottla.net.deadline import Deadline

_POLL_SECONDS = 0.2
_COMMITTED_SECONDS = 1.0
"""How often to ask how far the other members of a group are."""
COMMIT_SECONDS = 1.0


class ReaderSource:
    """Offset ranges if the plan ends, else records as they arrive. `options` are those of `Reader`."""

    def __init__(self, plan: ReadPlan, bootstrap: str, **options: Any) -> None:
        self._plan = plan
        self._reader = Reader(bootstrap, events=[_report_loss], **options)
        self._batches: Iterator[pa.RecordBatch] = iter(())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(self._batches, Generator):
            self._batches.close()
        self._reader.close()

    def open(self, columns: Collection[str]) -> list[OffsetRange] | None:
        """Resolve the places and start to read."""
        plan = self._plan
        if plan.stop is not None:
            ranges = plan.ranges(self._reader)
            plan.say_waits(self._reader, {part.topic_partition: part.stop for part in ranges})
            self._batches = self._reader.read(ranges, columns=columns)
            return ranges
        start = plan.resolve_start(self._reader)
        self._batches = self._reader.read(
            plan.topics, start, None, columns=columns, partitions=plan.partitions, timeout=plan.timeout
        )
        return None

    def next(self, interruption: Interruption) -> pa.RecordBatch | None:
        """Return the next records. A signal ends the wait at once."""
        return interruption.wait(lambda: next(self._batches, None))

    def cut(self, records: pa.RecordBatch) -> None:
        """Do nothing: a reader keeps no positions."""


class GroupSource:
    """The records that a consumer group assigns to this member. `options` are those of `Consumer` and `Reader`.

    Commits what was written out: every `commit_every` seconds and at the end; with None, only at the end. If the plan
    has a stop, it ends when the group has read every partition up to there.
    """

    def __init__(
        self,
        plan: ReadPlan,
        bootstrap: str,
        *,
        group: str,
        start: str | datetime,
        commit_every: float | None = COMMIT_SECONDS,
        **options: Any,
    ) -> None:
        self._plan = plan
        self._group = group
        self._make_reader = partial(Reader, bootstrap, **options)
        self._make_consumer = partial(
            Consumer,
            bootstrap,
            group=group,
            topics=plan.topics,
            start=start,
            commit_every=commit_every,
            events=[_report_loss],
            **options,
        )
        self._consumer: Consumer | None = None
        self._ends: dict[TopicPartition, int] = {}
        """Where to stop, for partitions that are not known to be read up to there."""
        self._reached: TopicPartition | None = None
        """A partition whose last records were handed out and not written yet."""
        self._ask_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._consumer is None:
            return
        with self._consumer:
            if error is not None:
                raise error
            if self._consumer.positions():
                self._consumer.commit()

    def open(self, columns: Collection[str]) -> None:
        """Find the ends; the group is joined with the first poll."""
        if self._plan.stop is None:
            self._consumer = self._make_consumer(columns=columns)
            return
        with self._make_reader() as reader:
            self._ends = self._unread_ends(reader)
            self._plan.say_waits(reader, self._ends)
        self._consumer = self._make_consumer(columns=[*columns, *(POSITION_COLUMNS - {*columns})])

    def next(self, interruption: Interruption) -> pa.RecordBatch | None:
        """Return the next records; None when the group has read everything up to the stop.

        Signals are handled between two polls: an interrupted poll might lose the records it was about to return.
        """
        assert self._consumer is not None
        while True:
            interruption.check()
            if self._plan.stop is not None and self._is_drained(self._consumer):
                return None
            records = self._consumer.poll(_POLL_SECONDS)
            if records is not None and self._ends:
                records = self._up_to_end(records)
            if records is not None:
                return records

    def cut(self, records: pa.RecordBatch) -> None:
        """Continue after these records, not after all that was handed out."""
        assert self._consumer is not None
        self._consumer.seek(*end_of(records))

    def _unread_ends(self, reader: Reader) -> dict[TopicPartition, int]:
        """Return the stop of each partition that the group has not read up to there."""
        ends = {log.topic_partition: log.stop for log in replace(self._plan, start="earliest").ranges(reader)}
        starts = self._plan.offsets(reader, self._plan.start)
        deadline = Deadline.after(self._plan.timeout)
        committed = fetch_committed(reader.cluster, GroupMember(self._group), list(ends), deadline=deadline)
        starts |= {tp: known.offset for tp, known in committed.items()}
        return {tp: end for tp, end in ends.items() if starts[tp] < end}

    def _up_to_end(self, records: pa.RecordBatch) -> pa.RecordBatch | None:
        """Return the records before the stop, None if there are none."""
        tp, stop = end_of(records)
        end = self._ends.get(tp)
        if end is None or stop <= end:
            return records
        self._reached = tp
        offsets = records.column("offset").to_pylist()
        before = sum(offset < end for offset in offsets)
        return records.slice(0, before) if before else None

    def _is_drained(self, consumer: Consumer) -> bool:
        if self._reached is not None and self._reached in consumer.assignment:
            # Records after the stop stay for the next run: they must not be committed.
            consumer.seek(self._reached, self._ends[self._reached])
            consumer.pause(self._reached)
        self._reached = None
        positions = consumer.positions()
        open_ends = {tp for tp, end in self._ends.items() if positions.get(tp, -1) < end}
        others = open_ends - positions.keys()
        if open_ends and others == open_ends and time.monotonic() >= self._ask_at:
            # What is left is with other members, or was read before: their commits tell.
            committed = consumer.committed(others)
            self._ask_at = time.monotonic() + _COMMITTED_SECONDS
            open_ends -= {tp for tp, known in committed.items() if known.offset >= self._ends.get(tp, 0)}
        return not open_ends


def _report_loss(event: Event) -> None:
    if isinstance(event, RangeLost):
        lost = OffsetRange(event.topic, event.partition, event.start, event.stop)
        click.echo(f"lost: {lost}: {event.reason}; continuing at {event.resume}", err=True)
