"""Hands the records of a consumer's partitions to the program, and tracks its positions.

Partitions with a start offset come in; `Portion` values go out, each of one partition, in the order of its log. After
`stop` no record of a partition goes out. This module knows nothing about groups.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from uuid import UUID

from ottla.consume.counting import Counting
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
    """Only the program's thread may use it."""

    def __init__(self, fetcher: Fetcher, decoder: Decoder, events: Events) -> None:
        self._fetcher = fetcher
        self._piece_decoder = PieceDecoder(decoder, events, fetcher.buffer.following)
        self.positions = Positions()
        self._cursors: dict[TopicPartition, Cursor] = {}
        self._paused: set[TopicPartition] = set()
        self._failed: dict[TopicPartition, OttlaError] = {}
        self._piece: Piece | None = None
        self._chunks: Iterator[Decoded] = iter(())
        self._waiting = threading.Lock()
        """Held while waiting for a piece, to detect a call from a signal handler."""
        self.counting: Counting | None = None
        """Counts what is handed out, if the consumer has an audit."""
        self._is_consistent = True
        """False while records move from the fetcher to `positions`; it stays False if Ctrl-C interrupts that."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The column names of the records."""
        return tuple(self._piece_decoder.decoder.schema.names)

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """Partitions whose records are held back."""
        return frozenset(self._paused)

    @property
    def failed(self) -> frozenset[TopicPartition]:
        """Partitions that cannot be read until the program seeks."""
        return frozenset(self._failed)

    @property
    def replaced(self) -> frozenset[TopicPartition]:
        """Partitions that cannot be read because their topic was deleted and created again."""
        lost = {partition: error for partition, error in self._failed.items() if isinstance(error, OffsetsLost)}
        return frozenset(partition for partition, error in lost.items() if error.replaced)

    def begin(
        self,
        partition: TopicPartition,
        offset: int,
        *,
        epoch: int = -1,
        committed: int = -1,
        topic_id: UUID | None = None,
    ) -> None:
        """Read this partition from this offset, whatever came before.

        `topic_id` is the topic of the offset, if known.
        """
        self._take_back([partition])
        self.positions.begin(partition, offset, epoch=epoch, committed=committed, topic_id=topic_id)
        self._restart(partition)

    def begin_again(self) -> None:
        """Fetch again everything that the program has not received.

        Called after Ctrl-C, which may have interrupted between any two steps.
        """
        self._piece = None
        self._chunks = iter(())
        self._piece_decoder.forget()
        self._fetcher.abandon()
        for partition in self.positions:
            self._restart(partition)
        self._is_consistent = True

    def fail(self, partition: TopicPartition, error: OttlaError) -> None:
        """Make `next` raise this error until the partition is started again or released."""
        self._failed[partition] = error

    def stop(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop handing out these partitions; their positions stay known."""
        stopped = list(partitions)
        self._take_back(stopped)
        cursors = [self._cursors[partition] for partition in stopped if partition in self._cursors]
        if cursors:
            self._fetcher.remove(cursors)
        for partition in stopped:
            self.positions.take_back(partition)
            self._cursors.pop(partition, None)
            self._failed.pop(partition, None)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop all state of these partitions: another member owns them."""
        stopped = frozenset(partitions)
        self.stop(stopped)
        self.positions.drop(stopped)
        self._paused -= stopped

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hold back these partitions until `resume`, which fetches the prefetched records again."""
        for partition in partitions:
            self._paused.add(partition)
            if partition in self._cursors:
                self._restart(partition)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Continue with these partitions."""
        for partition in partitions:
            self._paused.discard(partition)
            cursor = self._cursors.get(partition)
            if cursor is not None:
                self._fetcher.resume(cursor)

    def next(self, deadline: Deadline) -> Portion | None:
        """Return the next records, or None if none arrive by the deadline or the fetcher is woken.

        Raises the error of a partition that cannot be read, each time, until it is started again or released.
        """
        if self._waiting.locked():
            raise OttlaError(
                "this consumer is already waiting for records, in the call that a signal handler interrupted;"
                " set a flag in the handler, or call stop()"
            )
        if not self._is_consistent:
            self.begin_again()
        portion = self._unfinished_portion()
        if portion is not None:
            return portion
        for partition, error in self._failed.items():
            if partition not in self._paused:
                raise error.with_traceback(None)  # Otherwise the traceback would grow with each raise.
        while True:
            portion = self._next_chunk()
            if portion is not None:
                return portion
            with self._waiting:
                self._fetcher.wait(deadline)
                self._is_consistent = False
                item = self._fetcher.take()
                failure = None if item is None else self._open(item)
                self._is_consistent = True
            if item is None:
                self._fetcher.check()
                return None
            if failure is not None:
                raise failure

    def _take_back(self, partitions: Collection[TopicPartition]) -> None:
        """Have the tallies count what the program got of the portion under way, if it is of one of these partitions."""
        underway = self.positions.underway
        if self.counting is not None and underway is not None and underway.partition in partitions:
            self.counting.take_back(underway)

    def _restart(self, partition: TopicPartition) -> None:
        self.stop([partition])
        position, epoch = self.positions.handed(partition) or 0, self.positions.epoch(partition)
        cursor = Cursor(partition, position, epoch=epoch, topic_id=self.positions.topic_id(partition))
        cursor.paused = partition in self._paused
        self._cursors[partition] = cursor
        self._fetcher.add([cursor])

    def _unfinished_portion(self) -> Portion | None:
        """Return the portion that did not reach the program completely, if any."""
        portion = self.positions.underway
        if portion is not None and portion.is_over:
            portion = self.positions.underway = None
        return portion

    def _open(self, item: Piece | Failed) -> OttlaError | None:
        """Start on the item of the fetcher. Returns the error if it is one."""
        partition = item.cursor.tp
        if self._cursors.get(partition) is not item.cursor:
            if isinstance(item, Piece):
                self._fetcher.buffer.used_up(item)
            return None
        if isinstance(item, Failed):
            self._failed[partition] = item.error
            return item.error
        self.positions.reach(partition, item.start, topic_id=item.topic_id)
        self._piece = item
        self._chunks = self._piece_decoder.decode(item)
        return None

    def _next_chunk(self) -> Portion | None:
        piece = self._piece
        if piece is None:
            return None
        partition = piece.cursor.tp
        self._is_consistent = False
        if self._cursors.get(partition) is piece.cursor:
            try:
                decoded = next(self._chunks, None)
            except OttlaError as error:
                self._close_piece()
                piece.cursor.is_over = True
                self._failed[partition] = error
                self._is_consistent = True
                raise
            if decoded is not None:
                start = self.positions.handed(partition) or 0
                portion = Portion(piece.cursor, decoded.records, start=start, stop=decoded.next_offset)
                if self.counting is not None:
                    self.counting.prepare(portion, piece.batches)
                self.positions.hand_out(portion, epoch=_epoch_before(piece.batches, decoded.next_offset))
                if self.counting is not None:
                    self.counting.hand_out()
                self._is_consistent = True
                return portion
            self.positions.skip_to(partition, piece.next_offset)
        self._close_piece()
        self._is_consistent = True
        return None

    def _close_piece(self) -> None:
        if self._piece is not None:
            self._fetcher.buffer.used_up(self._piece)
        self._piece = None
        self._chunks = iter(())


def _epoch_before(batches: Sequence[Batch], offset: int) -> int:
    """Return the leader epoch of the last record before the offset."""
    last = batches[-1].header
    if last.leader_epoch == batches[0].header.leader_epoch:
        return last.leader_epoch
    return next(batch.header.leader_epoch for batch in reversed(batches) if batch.header.base_offset < offset)
