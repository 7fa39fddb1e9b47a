"""The records of a piece as columns; what is noticed only in the records themselves is told as an event."""

from __future__ import annotations

from collections.abc import Iterator

from ottla.events import Events, TimesClamped
from ottla.fetch.course import Piece
from ottla.wire.decode import Decoded, Decoder


def decode(decoder: Decoder, piece: Piece, *, events: Events) -> Iterator[Decoded]:
    """Stretch by stretch, in order."""
    course = piece.course
    topic, partition = course.at
    for decoded in decoder.decode(piece.batches, topic=topic, partition=partition, start=piece.start, stop=piece.stop):
        if decoded.clamped:
            before, course.clamped = course.clamped, course.clamped + decoded.clamped
            if before.bit_length() < course.clamped.bit_length():  # a log full of them is not a log full of warnings
                events.emit(TimesClamped(topic, partition, course.clamped))
        yield decoded
        del decoded  # its memory is free before the next one is made
