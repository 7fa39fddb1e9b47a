"""Where `ottla consume` takes records from: offset ranges and logs through a reader, or a consumer group.

Both are a `flow.Source`. What is lost by retention while it reads is told on stderr.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from functools import partial
from types import TracebackType
from typing import Any, Self

import click
import pyarrow as pa

from ottla.cli.reading.flow import end_of
from ottla.cli.reading.resolving import Wanted
from ottla.cli.terminal.interrupting import Interruption
from ottla.consume.consumer import Consumer
from ottla.events import Event, RangeLost
from ottla.fetch.reader import Reader
from ottla.model import OffsetRange

_LOOK_SECONDS = 0.2
COMMIT_SECONDS = 1.0


class FromReader:
    """Offset ranges if there is an end, else what comes. `options` are those of `Reader`."""

    def __init__(self, wanted: Wanted, bootstrap: str, **options: Any) -> None:
        self._wanted = wanted
        self._reader = Reader(bootstrap, events=[_tell], **options)
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
        """Asks the brokers where everything is."""
        wanted = self._wanted
        if wanted.stop is not None:
            ranges = wanted.ranges(self._reader)
            self._batches = self._reader.read(ranges, columns=columns)
            return ranges
        start = wanted.first(self._reader)
        self._batches = self._reader.read(
            wanted.topics, start, None, columns=columns, partitions=wanted.partitions, timeout=wanted.timeout
        )
        return None

    def next(self, interruption: Interruption) -> pa.RecordBatch | None:
        """A signal ends the waiting at once."""
        return interruption.wait(lambda: next(self._batches, None))

    def cut(self, records: pa.RecordBatch) -> None:
        """A reader keeps no account."""


class FromGroup:
    """What a consumer group gives to this member. `options` are those of `Consumer`.

    It commits what was written out before it was asked for more: `commit_every` seconds and at the end, or with None
    at the end alone, if that is when the output is complete.
    """

    def __init__(self, bootstrap: str, *, commit_every: float | None = COMMIT_SECONDS, **options: Any) -> None:
        self._make = partial(Consumer, bootstrap, commit_every=commit_every, events=[_tell], **options)
        self._consumer: Consumer | None = None

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
        """The group is joined when the first records are asked for."""
        self._consumer = self._make(columns=columns)

    def next(self, interruption: Interruption) -> pa.RecordBatch:
        """Signals are looked at between two polls: one that cut a poll short might lose what it was about to return."""
        assert self._consumer is not None
        while True:
            interruption.check()
            records = self._consumer.poll(_LOOK_SECONDS)
            if records is not None:
                return records

    def cut(self, records: pa.RecordBatch) -> None:
        """The group goes on behind these, not behind all that was handed out."""
        assert self._consumer is not None
        self._consumer.seek(*end_of(records))


def _tell(event: Event) -> None:
    if isinstance(event, RangeLost):
        lost = OffsetRange(event.topic, event.partition, event.start, event.stop)
        click.echo(f"lost: {lost}: {event.reason}; going on at {event.resume}", err=True)
