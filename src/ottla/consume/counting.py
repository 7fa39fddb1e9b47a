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

    def hand_out(self, portion: Portion, batches: Iterable[Batch]) -> None:
        """Note a portion that the program is about to get. Waits until its buckets are announced."""
        measured = self._measurer.measure(batches, start=portion.first, stop=portion.stop)
        topic, partition = portion.partition
        slices = slices_of(measured, partition=partition)
        self._handed.append((portion, slices))
        if not self._publisher.expect(topic, slices):
            self._publisher.await_announced(topic, slices)

    def mark_done(self, *, is_last: bool = False) -> None:
        """Count what the program is done with: it asks for more, or will not ask again."""
        waiting = []
        for portion, slices in self._handed:
            is_underway = self._positions.underway is portion and not portion.is_over
            if is_underway and not (is_last and portion.used):
                waiting.append((portion, slices))  # some of it has not reached the program
                continue
            self._count(portion, slices)
        self._handed = waiting

    def close(self) -> None:
        """Publish the last tallies. What the program got and is not done with is left out."""
        for portion, slices in self._handed:
            self._publisher.session.drop(portion.partition.topic, slices)
        self._handed = []
        self._publisher.close()

    def _count(self, portion: Portion, slices: list[Slice]) -> None:
        topic, partition = portion.partition
        session = self._publisher.session
        if 0 < portion.used < len(portion.records):  # the program iterates over single records and left some
            session.drop(topic, slices)
            seconds = self._publisher.audit.bucket_seconds
            got = portion.records.slice(0, portion.used)
            slices = slices_of_records(got, bucket_seconds=seconds, partition=partition)
            self._publisher.expect(topic, slices)
        session.count(topic, partition, slices)
