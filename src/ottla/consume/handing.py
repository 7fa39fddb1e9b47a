"""Hands out the records of the partitions that a consumer has, and keeps count of how far it is.

Partitions with a place to begin come in, `RecordBatch` values go out, each of one partition and in its order. Nothing
of a partition is handed out after `stop`. It knows nothing of groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from ottla.consume.positions import Positions
from ottla.errors import OttlaError
from ottla.fetch.course import Course, Failed, Piece
from ottla.fetch.fetcher import Fetcher
from ottla.model import TopicPartition
from ottla.net.deadline import Deadline
from ottla.wire.decode import Decoded, Decoder


class Handing:
    """Used by the program's thread."""

    def __init__(self, fetcher: Fetcher, decoder: Decoder) -> None:
        self._fetcher = fetcher
        self._decoder = decoder
        self.positions = Positions()
        self._courses: dict[TopicPartition, Course] = {}
        self._paused: set[TopicPartition] = set()
        self._failed: dict[TopicPartition, OttlaError] = {}
        self._piece: Piece | None = None
        self._chunks: Iterator[Decoded] = iter(())
        self.last: TopicPartition | None = None
        """Of which the last records were."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the records that are handed out."""
        return tuple(self._decoder.schema.names)

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """What is not handed out for now."""
        return frozenset(self._paused)

    def begin(self, at: TopicPartition, offset: int, *, epoch: int = -1, committed: int = -1) -> None:
        """Reads this partition from this offset on, whatever was before."""
        self.stop([at])
        self.positions.begin(at, offset, epoch=epoch, committed=committed)
        course = self._courses[at] = Course(at, offset, epoch=epoch)
        course.paused = at in self._paused
        self._fetcher.add([course])

    def stop(self, partitions: Iterable[TopicPartition]) -> None:
        """Nothing more of these is handed out; how far they are is still known."""
        gone = [self._courses.pop(at) for at in partitions if at in self._courses]
        for course in gone:
            self._failed.pop(course.at, None)
        if gone:
            self._fetcher.remove(gone)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """They are somebody else's."""
        gone = frozenset(partitions)
        self.stop(gone)
        self.positions.drop(gone)
        self._paused -= gone

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Nothing of these is handed out until `resume`."""
        for at in partitions:
            self._paused.add(at)
            course = self._courses.get(at)
            if course is not None:
                # What was fetched ahead and not handed out is fetched again.
                self.begin(at, self.positions.handed(at) or 0, epoch=course.epoch)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """They go on."""
        for at in partitions:
            self._paused.discard(at)
            course = self._courses.get(at)
            if course is not None:
                self._fetcher.resume(course)

    def next(self, deadline: Deadline) -> pa.RecordBatch | None:
        """The next records; None when there are none until the deadline, or somebody rang.

        A partition that cannot be read raises its error, now and every time, until it is begun anew or let go.
        """
        for error in self._failed.values():
            raise error
        while True:
            records = self._next_chunk()
            if records is not None:
                return records
            item = self._fetcher.shelf.take(deadline)
            if item is None:
                self._fetcher.check()
                return None
            if isinstance(item, Failed):
                self._failed[item.course.at] = item.error
                raise item.error
            self._open(item)

    def _open(self, piece: Piece) -> None:
        topic, partition = piece.course.at
        self._piece = piece
        self._chunks = self._decoder.decode(
            piece.batches, topic=topic, partition=partition, start=piece.start, stop=piece.stop
        )

    def _next_chunk(self) -> pa.RecordBatch | None:
        piece = self._piece
        if piece is None:
            return None
        at = piece.course.at
        if piece.course.open and piece.course.turn == piece.turn:
            epoch = piece.batches[-1].header.leader_epoch if piece.batches else -1
            try:
                decoded = next(self._chunks, None)
            except OttlaError as error:
                self._close_piece()
                piece.course.is_over = True
                self._failed[at] = error
                raise
            if decoded is not None:
                self.last = at
                self.positions.hand_out(at, decoded.next_offset, epoch=epoch)
                return decoded.records
            self.positions.hand_out(at, piece.next_offset, epoch=epoch)
        self._close_piece()
        return None

    def _close_piece(self) -> None:
        if self._piece is not None:
            self._fetcher.shelf.used_up(self._piece)
        self._piece = None
        self._chunks = iter(())
