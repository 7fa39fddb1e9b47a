"""Tables of other libraries, and streams of rows, as a producer takes them.

Anything with `__arrow_c_stream__` comes in. What is in memory goes out as a pyarrow Table; the rest as a stream of
batches, of which no more is read than can be sent. This module does not know what becomes of the rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import pyarrow as pa

from ottla.errors import BufferFull, InputError, NotDelivered, OttlaError, StreamFailed
from ottla.model import OffsetRange
from ottla.produce.delivery import BulkDelivery, Decided, Shipment, as_not_delivered, joined

_FRAMES = frozenset({"pandas", "polars"})
"""Libraries whose tables are in memory, so that all rows can be checked before the first one is accepted."""
_INDEX = re.compile(r"__index_level_\d+__")
"""What pandas calls an index without a name, for example that of a filtered frame."""
_FOLD_FROM = 16
"""How many slices of a stream may wait for their outcome before those that have one are summed up."""


class ArrowTable(Protocol):
    """What exports Arrow data: a table of pyarrow, polars, pandas, DuckDB and others, or a stream of batches."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Export the rows by Arrow's PyCapsule interface."""


class Batches:
    """The batches of a stream. What was not accepted is put back: the next call with the stream, or its rest, sends it.

    So sending the rest again and again is no chain of streams in streams.
    """

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self.schema = reader.schema
        self._reader = reader
        self._returned = _RETURNED.setdefault(reader, [])
        """What comes before the next batch of the reader, last one first."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        return self._returned.pop() if self._returned else next(self._reader)

    def put_back(self, rows: pa.Table) -> None:
        """Make these rows the next ones."""
        self._returned += reversed(rows.to_batches())

    def rest(self) -> pa.RecordBatchReader:
        """What is left, as a stream for programs. `opened` recognizes it."""
        rest = pa.RecordBatchReader.from_batches(self.schema, self)
        _RESTS[rest] = self
        return rest

    @contextmanager
    def reserved(self) -> Iterator[None]:
        """Keep other calls from reading the stream meanwhile. Raises `InputError` if one does."""
        call = object()
        try:
            if _READING.setdefault(self._reader, call) is not call:
                raise InputError("another call is sending this stream: give each call a stream of its own")
            yield
        finally:
            if _READING.get(self._reader) is call:
                del _READING[self._reader]


_RESTS: WeakKeyDictionary[pa.RecordBatchReader, Batches] = WeakKeyDictionary()
"""What is behind the streams that `Batches.rest` has returned."""
_RETURNED: WeakKeyDictionary[pa.RecordBatchReader, list[pa.RecordBatch]] = WeakKeyDictionary()
"""What was read from streams and not accepted."""
_READING: WeakKeyDictionary[pa.RecordBatchReader, object] = WeakKeyDictionary()
"""The streams that are being sent, and the calls that do."""


def opened(table: object) -> pa.Table | Batches:
    """Return a table as a pyarrow Table if it is in memory, else as a stream of batches. Raises `InputError`."""
    if isinstance(table, pa.Table):
        return table
    if isinstance(table, pa.RecordBatchReader):
        return _RESTS.get(table) or Batches(table)
    if isinstance(table, pa.RecordBatch):
        return pa.Table.from_batches([table])
    library = type(table).__module__.partition(".")[0]
    kind = type(table).__name__ if library == "builtins" else f"{library}.{type(table).__name__}"
    if not hasattr(table, "__arrow_c_stream__"):
        hint = ": call collect() first" if hasattr(table, "collect") else ""
        raise InputError(
            f"a table is anything with __arrow_c_stream__ (of pyarrow, polars, pandas, DuckDB), not {kind}{hint}"
        )
    try:
        stream = pa.RecordBatchReader.from_stream(table)
        return _without_index(stream.read_all()) if library in _FRAMES else Batches(stream)
    except Exception as error:  # whatever the library raises while it exports
        raise InputError(f"the {kind} cannot be read as a table: {error}") from error


def _without_index(table: pa.Table) -> pa.Table:
    return table.drop_columns([name for name in table.schema.names if _INDEX.fullmatch(name)])


class StreamDelivery(BulkDelivery):
    """The delivery of all records of a stream, in bounded memory: `outcomes` names only the rows that failed."""

    __slots__ = ("_failed", "_fold_at", "_ranges", "_records")

    def __init__(self) -> None:
        super().__init__([])
        self._records = 0
        self._ranges: list[OffsetRange] = []
        self._failed: list[Decided] = []
        self._fold_at = _FOLD_FROM

    def add(self, shipments: list[Shipment]) -> NotDelivered | None:
        """Add what was handed in. Returns the first failure if there is one already."""
        self._sent += shipments
        if len(self._sent) >= self._fold_at:
            self._fold()
        return as_not_delivered(self._failed[0].error) if self._failed and self._failed[0].error else None

    def decided(self) -> Iterator[Decided]:
        """Yield the rows that are known to have failed by now, without waiting."""
        yield from self._failed
        yield from (decided for decided in super().decided() if decided.error is not None)

    def _failed_rows(self) -> list[tuple[NotDelivered, int]]:
        kept = [(each.error, len(each.rows)) for each in self._failed if isinstance(each.error, NotDelivered)]
        return kept + super()._failed_rows()

    def _delivered(self) -> tuple[int, list[OffsetRange]]:
        if self._failed and (failure := self._failure()) is not None:
            raise failure
        records, ranges = super()._delivered()
        return self._records + records, self._ranges + ranges

    def _fold(self) -> None:
        """Keep no more than numbers and ranges of what was delivered, and the rows of what was not."""
        settled = [shipment for shipment in self._sent if shipment.unsettled == 0]
        self._sent = [shipment for shipment in self._sent if shipment.unsettled != 0]
        self._settled = 0
        self._fold_at = max(_FOLD_FROM, 2 * len(self._sent))
        for shipment in settled:
            delivery = BulkDelivery([shipment])
            if delivery.exception(0) is not None:  # then `result` raises, and needs no ranges
                self._failed += [decided for decided in delivery.decided() if decided.error is not None]
                continue
            records, ranges = delivery._delivered()
            self._records += records
            self._ranges += ranges
        self._ranges = list(joined(sorted(self._ranges)))


def sent_stream(stream: Batches, send: Callable[[pa.Table, int], list[Shipment]], *, stops: bool) -> StreamDelivery:
    """Send a stream batch by batch. `send` gets rows and the number of the first one in the stream.

    With `stops`, a record that was not delivered ends it. Raises `StreamFailed`, `InputError` if another call is
    sending the stream, or what `send` raises about the first batch if none of it was accepted.
    """
    with stream.reserved():
        return _sent(stream, send, stops=stops)


def _sent(stream: Batches, send: Callable[[pa.Table, int], list[Shipment]], *, stops: bool) -> StreamDelivery:
    delivery, accepted = StreamDelivery(), 0
    while True:
        try:
            batch = next(stream, None)
        except Exception as error:  # of the program's own generator, or of another library
            raise StreamFailed(_text(error), accepted=accepted, cause=error) from error
        if batch is None:
            return delivery
        rows = pa.Table.from_batches([batch])
        try:
            shipments = send(rows, accepted)
        except Exception as error:  # of the program's own functions, too
            taken: int = getattr(error, "accepted", 0)
            accepted += taken
            stream.put_back(rows.slice(taken))
            if not accepted and not isinstance(error, BufferFull):
                raise
            raise StreamFailed(_text(error), accepted=accepted, cause=error, rest=stream.rest()) from error
        failure = delivery.add(shipments)
        accepted += rows.num_rows
        if failure is not None and stops:
            raise StreamFailed(str(failure), accepted=accepted, cause=failure, rest=stream.rest())


def _text(error: Exception) -> str:
    """What a stream raised, with the kind of error where the text is not ours."""
    return str(error) if isinstance(error, OttlaError) else f"{type(error).__name__}: {error}"
