"""Decodes fetched pieces into columns, and emits events about what only the records themselves show.

Pieces come in, `Decoded` columns go out. Small pieces of one response are decoded together, because a call costs the
same for one and for a hundred. The result is the same, except that neighbors are slices of the same memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from ottla.events import Events
from ottla.fetch.cursor import Piece
from ottla.wire.decode import Decoded, Decoder, Stretch
from ottla.wire.scan import Batches

Following = Callable[[Piece, int], Sequence[Piece]]
"""Returns the pieces of the same response that come after a piece, up to a number."""
_MOST_PIECES = 1024


def decode(decoder: Decoder, piece: Piece, *, events: Events) -> Iterator[Decoded]:
    """Decode a piece, one stretch of records after the other. Raises `WireError` if a batch is damaged."""
    cursor = piece.cursor
    topic, partition = cursor.tp
    for decoded in decoder.decode(piece.batches, topic=topic, partition=partition, start=piece.start, stop=piece.stop):
        if decoded.clamped:
            before, cursor.clamped = cursor.clamped, cursor.clamped + decoded.clamped
            # Only when the count doubles: a log full of such records must not cause an event for each.
            if before.bit_length() < cursor.clamped.bit_length():
                from ottla.events import TimesClamped

                events.emit(TimesClamped(topic, partition, cursor.clamped))
        yield decoded
        del decoded  # frees its memory before the next one is allocated


class PieceDecoder:
    """Decodes the pieces of one reader, several at once where that is cheaper."""

    def __init__(self, decoder: Decoder, events: Events, following: Following | None = None) -> None:
        self.decoder = decoder
        self.following = following
        """Without it, pieces are decoded one by one."""
        self._events = events
        self._ahead: deque[tuple[Piece, Decoded]] = deque()
        """Pieces that were decoded together with an earlier one."""
        self._alone = 0
        """The number of pieces to decode one by one, after decoding them together was refused."""

    def decode(self, piece: Piece) -> Iterator[Decoded]:
        """Decode the records of a piece. Raises `WireError` if a batch is damaged."""
        decoded = self._take_ahead(piece) or self._decode_together(piece)
        if decoded is None:
            return decode(self.decoder, piece, events=self._events)
        return iter((decoded,) if decoded.rows else ())

    def forget(self) -> None:
        """Drop what was decoded ahead."""
        self._ahead.clear()
        self._alone = 0

    def _take_ahead(self, piece: Piece) -> Decoded | None:
        """Return the piece if it was decoded with an earlier one. Pieces before it were discarded, so drop them."""
        while self._ahead:
            other, decoded = self._ahead.popleft()
            if other is piece:
                return decoded
        return None

    def _decode_together(self, piece: Piece) -> Decoded | None:
        if self._alone:
            self._alone -= 1
            return None
        joined = self._joinable(piece)
        if len(joined) < 2:
            return None
        stretches = [Stretch(batches, member.cursor.tp.partition) for member, batches in joined]
        decoded = self.decoder.decode_together(stretches, topic=piece.cursor.tp.topic)
        if decoded is None:
            self._alone = len(joined) - 1
            return None
        first, *rest = decoded
        self._ahead.extend((member, columns) for (member, _), columns in zip(joined[1:], rest, strict=False))
        return first

    def _joinable(self, piece: Piece) -> list[tuple[Piece, Batches]]:
        """Return the piece and those after it that may be decoded with it."""
        batches = _whole_batches(piece)
        limit = self.decoder.chunk_bytes
        if self.following is None or batches is None or batches.size_bytes >= limit or not self.decoder.can_join:
            return []
        joined = [(piece, batches)]
        size = batches.size_bytes
        topic = piece.cursor.tp.topic
        for other in self.following(piece, _MOST_PIECES):
            batches = _whole_batches(other)
            if batches is None or size + batches.size_bytes > limit or other.cursor.tp.topic != topic:
                break
            joined.append((other, batches))
            size += batches.size_bytes
        return joined


def _whole_batches(piece: Piece) -> Batches | None:
    """Return the batches if a scan has found them and the piece includes all of their records."""
    batches = piece.batches
    if not isinstance(batches, Batches) or batches.first_offset < piece.start or batches.next_offset > piece.stop:
        return None
    return batches
