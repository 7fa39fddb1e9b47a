"""Hands out the records of the partitions that a consumer has, and keeps count of how far it is.

Partitions with a place to begin come in, `Portion` values go out, each of one partition and in its order. Nothing
of a partition is handed out after `stop`. It knows nothing of groups.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from uuid import UUID

from ottla.consume.positions import Portion, Positions
from ottla.errors import OffsetsLost, OttlaError
from ottla.events import Events
from ottla.fetch.cursor import Cursor, Failed, Piece
from ottla.fetch.decoding import PieceDecoder
from ottla.fetch.fetcher import Fetcher
from ottla.model import TopicPartition
from ottla.net.deadline import Deadline
from ottla.wire.batch import Batch
from ottla.wire.decode import Decoded, Decoder


class Dispenser:
    """Used by the program's thread."""

    def __init__(self, fetcher: Fetcher, decoder: Decoder, events: Events) -> None:
        self._fetcher = fetcher
        self._decoding = PieceDecoder(decoder, events, fetcher.buffer.following)
        self.positions = Positions()
        self._cursors: dict[TopicPartition, Cursor] = {}
        self._paused: set[TopicPartition] = set()
        self._failed: dict[TopicPartition, OttlaError] = {}
        self._piece: Piece | None = None
        self._chunks: Iterator[Decoded] = iter(())
        self._taking = threading.Lock()
        """Held while a piece is waited for."""
        self._is_sure = True
        """False while records are on their way from the fetcher to `positions`, and after an interrupt of that."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the records that are handed out."""
        return tuple(self._decoding.decoder.schema.names)

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """What is not handed out for now."""
        return frozenset(self._paused)

    @property
    def failed(self) -> frozenset[TopicPartition]:
        """What cannot be read, until somebody says where to go on."""
        return frozenset(self._failed)

    @property
    def replaced(self) -> frozenset[TopicPartition]:
        """What cannot be read because another topic has the name by now."""
        lost = {at: error for at, error in self._failed.items() if isinstance(error, OffsetsLost)}
        return frozenset(at for at, error in lost.items() if error.replaced)

    def begin(
        self,
        at: TopicPartition,
        offset: int,
        *,
        epoch: int = -1,
        committed: int = -1,
        topic_id: UUID | None = None,
    ) -> None:
        """Reads this partition from this offset on, whatever was before; of the topic with this id, if it is given."""
        self.positions.begin(at, offset, epoch=epoch, committed=committed, topic_id=topic_id)
        self._restart(at)

    def begin_again(self) -> None:
        """Ctrl-C may have come between any two steps: what was fetched and is not with the program is fetched anew."""
        self._piece = None
        self._chunks = iter(())
        self._decoding.forget()
        self._fetcher.abandon()
        for at in self.positions:
            self._restart(at)
        self._is_sure = True

    def fail(self, at: TopicPartition, error: OttlaError) -> None:
        """It cannot be read, and says so every time, until it is begun anew or let go."""
        self._failed[at] = error

    def stop(self, partitions: Iterable[TopicPartition]) -> None:
        """Nothing more of these is handed out; how far they are is still known."""
        gone = list(partitions)
        cursors = [self._cursors[at] for at in gone if at in self._cursors]
        if cursors:
            self._fetcher.remove(cursors)
        for at in gone:
            self.positions.take_back(at)
            self._cursors.pop(at, None)
            self._failed.pop(at, None)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """They are somebody else's."""
        gone = frozenset(partitions)
        self.stop(gone)
        self.positions.drop(gone)
        self._paused -= gone

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Nothing of these is handed out until `resume`. What was fetched ahead is fetched again then."""
        for at in partitions:
            self._paused.add(at)
            if at in self._cursors:
                self._restart(at)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """They go on."""
        for at in partitions:
            self._paused.discard(at)
            cursor = self._cursors.get(at)
            if cursor is not None:
                self._fetcher.resume(cursor)

    def next(self, deadline: Deadline) -> Portion | None:
        """The next records; None when there are none until the deadline, or somebody rang.

        A partition that cannot be read raises its error, now and every time, until it is begun anew or let go.
        """
        if self._taking.locked():
            raise OttlaError(
                "this consumer waits for records already, in the call that a signal handler has interrupted;"
                " set a flag in the handler, or call stop()"
            )
        if not self._is_sure:
            self.begin_again()
        portion = self._still_underway()
        if portion is not None:
            return portion
        for at, error in self._failed.items():
            if at not in self._paused:
                raise error.with_traceback(None)  # else each time would add to it
        while True:
            portion = self._next_chunk()
            if portion is not None:
                return portion
            with self._taking:
                self._fetcher.wait(deadline)
                self._is_sure = False
                item = self._fetcher.take()
                failure = None if item is None else self._open(item)
                self._is_sure = True
            if item is None:
                self._fetcher.check()
                return None
            if failure is not None:
                raise failure

    def _restart(self, at: TopicPartition) -> None:
        self.stop([at])
        position, epoch = self.positions.handed(at) or 0, self.positions.epoch(at)
        cursor = Cursor(at, position, epoch=epoch, topic_id=self.positions.topic_id(at))
        cursor.paused = at in self._paused
        self._cursors[at] = cursor
        self._fetcher.add([cursor])

    def _still_underway(self) -> Portion | None:
        """What was handed out and did not get to the program."""
        portion = self.positions.underway
        if portion is not None and portion.is_over:
            portion = self.positions.underway = None
        return portion

    def _open(self, item: Piece | Failed) -> OttlaError | None:
        """Begins with the piece; the error if there is none."""
        at = item.cursor.tp
        if self._cursors.get(at) is not item.cursor:
            if isinstance(item, Piece):
                self._fetcher.buffer.used_up(item)
            return None
        if isinstance(item, Failed):
            self._failed[at] = item.error
            return item.error
        self.positions.reach(at, item.start, topic_id=item.topic_id)
        self._piece = item
        self._chunks = self._decoding.decode(item)
        return None

    def _next_chunk(self) -> Portion | None:
        piece = self._piece
        if piece is None:
            return None
        at = piece.cursor.tp
        self._is_sure = False
        if self._cursors.get(at) is piece.cursor:
            try:
                decoded = next(self._chunks, None)
            except OttlaError as error:
                self._close_piece()
                piece.cursor.is_over = True
                self._failed[at] = error
                self._is_sure = True
                raise
            if decoded is not None:
                start = self.positions.handed(at) or 0
                portion = Portion(piece.cursor, decoded.records, start=start, stop=decoded.next_offset)
                self.positions.hand_out(portion, epoch=_epoch_before(piece.batches, decoded.next_offset))
                self._is_sure = True
                return portion
            self.positions.pass_over(at, piece.next_offset)
        self._close_piece()
        self._is_sure = True
        return None

    def _close_piece(self) -> None:
        if self._piece is not None:
            self._fetcher.buffer.used_up(self._piece)
        self._piece = None
        self._chunks = iter(())


def _epoch_before(batches: Sequence[Batch], offset: int) -> int:
    """The leader epoch of the last record before the offset."""
    last = batches[-1].header
    if last.leader_epoch == batches[0].header.leader_epoch:
        return last.leader_epoch
    return next(batch.header.leader_epoch for batch in reversed(batches) if batch.header.base_offset < offset)
