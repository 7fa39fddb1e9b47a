"""What a stream of records looks like: server-sent events, or lines of JSON. Pure.

Arrow batches and cursors come in, bytes go out. Whatever was sent before, the client has a cursor with which it
continues behind it: in events each record has its own, in lines a line with the cursor follows the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
import pyarrow as pa

from ottla.gateway.http.problems import Problem
from ottla.gateway.reading.places import Cursor
from ottla.gateway.reading.rendering import Shape, as_lines, rows, shown

EVENTS = "text/event-stream"
RETRY_SECONDS = 2.0
"""After what time a client of events connects again."""


class Frames(Protocol):
    """The parts of a stream, as a client gets them."""

    def begin(self, cursor: Cursor) -> bytes:
        """Return what comes first: where the stream begins."""

    def records(self, batches: Sequence[pa.RecordBatch], before: Cursor, after: Cursor) -> bytes:
        """Return records, and where the stream is behind them."""

    def beat(self, cursor: Cursor, reason: str) -> bytes:
        """Return a sign of life: nothing has come, for a reason that may be empty."""

    def over(self, cursor: Cursor) -> bytes:
        """Return what comes last if the end of a bounded stream is reached."""

    def failed(self, problem: Problem) -> bytes:
        """Return what comes last if the stream cannot go on."""


class Events:
    """Server-sent events: one for each record, whose id is the cursor behind it."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape

    def begin(self, cursor: Cursor) -> bytes:
        """Return the pause before connecting again, and an id: a client that is cut off now has a place, too."""
        return b"retry: %d\n" % int(RETRY_SECONDS * 1000) + _id(cursor.text())

    def records(self, batches: Sequence[pa.RecordBatch], before: Cursor, after: Cursor) -> bytes:
        """Return an event for each record."""
        parts: list[bytes] = []
        cursor = Cursor(after.topic_id, before.offsets, after.stops)
        text = cursor.text()
        for batch in batches:
            if not len(batch):
                continue
            partition: int = batch.column("partition")[0].as_py()
            name = cursor.texts(partition)
            for record in rows([batch]):
                text = name(record.offset + 1)
                parts.append(b"id: %s\ndata: %s\n\n" % (text.encode(), msgspec.json.encode(shown(record, self._shape))))
            cursor = cursor.moved(partition, record.offset + 1)
        last = after.text()
        if last != text:  # offsets without records: they may be deleted before the client comes back
            parts.append(_id(last))
        return b"".join(parts)

    def beat(self, cursor: Cursor, reason: str) -> bytes:
        """Return a comment, and the cursor, which may have moved past offsets without records."""
        return f": {_one_line(reason)}\n".encode() + _id(cursor.text())

    def over(self, cursor: Cursor) -> bytes:
        """Return the event `end`."""
        return b'id: %s\nevent: end\ndata: {"next":null}\n\n' % cursor.text().encode()

    def failed(self, problem: Problem) -> bytes:
        """Return the event `error`."""
        return b"event: error\ndata: %s\n\n" % problem.body()


class Lines:
    """NDJSON: a line for each record, and lines with `next`, the cursor behind all records before it."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape

    def begin(self, cursor: Cursor) -> bytes:
        """Return the line with the cursor."""
        return _line({"next": cursor.text()})

    def records(self, batches: Sequence[pa.RecordBatch], before: Cursor, after: Cursor) -> bytes:
        """Return a line for each record, and one with the cursor."""
        return as_lines(batches, self._shape) + self.begin(after)

    def beat(self, cursor: Cursor, reason: str) -> bytes:
        """Return the line with the cursor again."""
        return _line({"next": cursor.text(), **({"waiting": _one_line(reason)} if reason else {})})

    def over(self, cursor: Cursor) -> bytes:
        """Return a line without a cursor."""
        return _line({"next": None})

    def failed(self, problem: Problem) -> bytes:
        """Return the body of the problem."""
        return problem.body() + b"\n"


def _id(text: str) -> bytes:
    """An id without data: it counts, and is no event."""
    return f"id: {text}\n\n".encode()


def _line(value: object) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def _one_line(text: str) -> str:
    return " ".join(text.split())
