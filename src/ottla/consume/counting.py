"""Counts what a consumer's program is done with, for tallies.

Portions on their way to the program come in, with the batches they were decoded from, and the moments at which the
program asks for more: then it is done with what it got. Slices go to the publisher of the consumer's tallies. Only the
program's thread uses it.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.consume.positions import Portion, Positions
from ottla.tally.publisher import Publisher
from ottla.tally.slices import slices_of, slices_of_records
from ottla.tally.values import Slice
from ottla.wire.batch import Batch
from ottla.wire.measure import Measurer


class Counting:
    """The tallies of one consumer."""

    def __init__(self, publisher: Publisher, positions: Positions, *, max_batch_bytes: int) -> None:
        self._publisher = publisher
        self._positions = positions
        self._measurer = Measurer(publisher.bucket_ms, max_batch_bytes=max_batch_bytes)
        self._handed: list[tuple[Portion, list[Slice]]] = []
        """What the program got, or is about to get, and is not done with."""
        self._prepared: tuple[Portion, list[Slice]] | None = None
        """Expected, but not handed out yet."""

    def prepare(self, portion: Portion, batches: Iterable[Batch]) -> None:
        """Measure a portion before it is handed out. Waits until its buckets are announced. May be interrupted."""
        if self._prepared is not None:  # the last one was interrupted and never handed out
            self._drop(*self._prepared)
        measured = self._measurer.measure(batches, start=portion.first, stop=portion.stop)
        topic, partition = portion.partition
        slices = slices_of(measured, partition=partition)
        self._prepared = portion, slices
        if not self._publisher.expect(topic, slices):
            self._publisher.await_announced(topic, slices)

    def hand_out(self) -> None:
        """Note that the prepared portion is on its way to the program."""
        assert self._prepared is not None
        self._handed.append(self._prepared)
        self._prepared = None

    def take_back(self, portion: Portion | None) -> None:
        """Count what the program got of a portion that is under way: it will not get the rest."""
        for entry in [entry for entry in self._handed if entry[0] is portion]:
            self._handed.remove(entry)
            self._count_used(*entry)

    def mark_done(self, *, is_last: bool = False) -> None:
        """Count what the program is done with: it asks for more, or will not ask again."""
        underway = self._positions.underway
        if is_last and underway is not None and not underway.is_over:
            self.take_back(underway)
        waiting = []
        for portion, slices in self._handed:
            if underway is portion and not portion.is_over:
                waiting.append((portion, slices))  # some of it has not reached the program
            else:
                self._publisher.session.count(*portion.partition, slices)
        self._handed = waiting

    def close(self) -> None:
        """Publish the last tallies. What the program got and is not done with is left out."""
        for portion, slices in self._handed:
            self._drop(portion, slices)
        self._handed = []
        self._publisher.close()

    def _drop(self, portion: Portion, slices: list[Slice]) -> None:
        self._publisher.session.drop(portion.partition.topic, slices)

    def _count_used(self, portion: Portion, slices: list[Slice]) -> None:
        """Count the records that a program got one by one."""
        self._drop(portion, slices)
        if not portion.used:
            return
        topic, partition = portion.partition
        seconds = self._publisher.audit.bucket_seconds
        got = slices_of_records(portion.records.slice(0, portion.used), bucket_seconds=seconds, partition=partition)
        self._publisher.expect(topic, got)
        self._publisher.session.count(topic, partition, got)
