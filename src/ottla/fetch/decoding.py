"""The records of pieces as columns; what is noticed only in the records themselves is told as an event.

Small pieces of one answer are decoded together: what a call costs is the same for one and for a hundred. What comes out
is the same, only that neighbours are slices of the same memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from ottla.events import Events
from ottla.fetch.cursor import Piece
from ottla.wire.decode import Decoded, Decoder, Stretch
from ottla.wire.scan import Batches

Following = Callable[[Piece, int], Sequence[Piece]]
"""The pieces of the same answer that come after this one, so many at most."""
_MOST_PIECES = 1024


def decode(decoder: Decoder, piece: Piece, *, events: Events) -> Iterator[Decoded]:
    """Stretch by stretch, in order."""
    cursor = piece.cursor
    topic, partition = cursor.at
    for decoded in decoder.decode(piece.batches, topic=topic, partition=partition, start=piece.start, stop=piece.stop):
        if decoded.clamped:
            before, cursor.clamped = cursor.clamped, cursor.clamped + decoded.clamped
            if before.bit_length() < cursor.clamped.bit_length():  # a log full of them is not a log full of warnings
                from ottla.events import TimesClamped

                events.emit(TimesClamped(topic, partition, cursor.clamped))
        yield decoded
        del decoded  # its memory is free before the next one is made


class PieceDecoder:
    """Decodes the pieces of one reader, ahead where that is cheaper."""

    def __init__(self, decoder: Decoder, events: Events, following: Following | None = None) -> None:
        self.decoder = decoder
        self.following = following
        """Tells what comes next; without it nothing is decoded ahead."""
        self._events = events
        self._ahead: deque[tuple[Piece, Decoded]] = deque()
        self._alone = 0
        """So many pieces are decoded one by one: together they could not be."""

    def decode(self, piece: Piece) -> Iterator[Decoded]:
        """The records of a piece."""
        decoded = self._found(piece) or self._together(piece)
        if decoded is None:
            return decode(self.decoder, piece, events=self._events)
        return iter((decoded,) if decoded.rows else ())

    def forget(self) -> None:
        """What was decoded ahead is not asked for."""
        self._ahead.clear()
        self._alone = 0

    def _found(self, piece: Piece) -> Decoded | None:
        """What was decoded with others before; those that come no more are forgotten."""
        while self._ahead:
            other, decoded = self._ahead.popleft()
            if other is piece:
                return decoded
        return None

    def _together(self, piece: Piece) -> Decoded | None:
        if self._alone:
            self._alone -= 1
            return None
        pieces = self._joinable(piece)
        if len(pieces) < 2:
            return None
        stretches = [Stretch(batches, one.cursor.at.partition) for one, batches in pieces]
        decoded = self.decoder.decode_together(stretches, topic=piece.cursor.at.topic)
        if decoded is None:
            self._alone = len(pieces) - 1
            return None
        first, *rest = decoded
        self._ahead.extend((one, its) for (one, _), its in zip(pieces[1:], rest, strict=False))
        return first

    def _joinable(self, piece: Piece) -> list[tuple[Piece, Batches]]:
        """The piece and those after it that may be decoded with it."""
        batches = _all_wanted(piece)
        limit = self.decoder.chunk_bytes
        if self.following is None or batches is None or batches.size_bytes >= limit or not self.decoder.can_join:
            return []
        found = [(piece, batches)]
        size = batches.size_bytes
        topic = piece.cursor.at.topic
        for other in self.following(piece, _MOST_PIECES):
            batches = _all_wanted(other)
            if batches is None or size + batches.size_bytes > limit or other.cursor.at.topic != topic:
                break
            found.append((other, batches))
            size += batches.size_bytes
        return found


def _all_wanted(piece: Piece) -> Batches | None:
    """Its batches, if a kernel has found them and no record of them is to be left out."""
    batches = piece.batches
    if not isinstance(batches, Batches) or batches.first_offset < piece.start or batches.next_offset > piece.stop:
        return None
    return batches
