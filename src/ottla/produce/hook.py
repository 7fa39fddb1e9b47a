"""Batches that a program's batch hook may change before they are encoded, and batches that have to be split.

Rows of columns, or a sealed batch, come in. Parts go out whose outcomes are combined in the batch that the shipments
know. Used for `batch_hook`, and for batches that a broker rejects as too large. It sends nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.errors import InputError
from ottla.produce.options import BatchHook
from ottla.produce.outgoing import Outgoing
from ottla.wire.batch import Batch, BatchHeader, Codec, pack_header
from ottla.wire.columns import Columns, as_arrow, from_arrow
from ottla.wire.decode import Decoder
from ottla.wire.encode import ALL_ROWS, LARGEST_BATCH, BatchLimits, NewBatch, encode
from ottla.wire.produce import Produced

_COLUMNS = ("key", "value", "headers", "timestamp")


class HookedDraft:
    """Takes rows like a `Draft`, but keeps them as columns."""

    __slots__ = ("_limits", "_pieces", "count", "size_bytes")

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self._pieces: list[pa.RecordBatch] = []
        self.count = 0
        self.size_bytes = 0

    def append(
        self, columns: Columns, *, rows: npt.NDArray[np.int64] = ALL_ROWS, start: int, stop: int, now_ms: int
    ) -> int:
        """Add rows until the batch is full. Returns the next row to add."""
        row_bytes = columns.data_bytes // max(1, columns.count) + 1
        room = max((self._limits.max_bytes - self.size_bytes) // row_bytes, 0 if self.count else 1)
        taken = min(stop - start, room, self._limits.max_records - self.count)
        if taken > 0:
            piece = as_arrow(columns, now_ms=now_ms)
            numbers = rows[start : start + taken]
            self._pieces.append(piece.take(pa.array(numbers)) if len(numbers) else piece.slice(start, taken))
            self.count += taken
            self.size_bytes += taken * row_bytes
        return start + taken

    def parts(self, whole: Outgoing, hook: BatchHook, *, codec: Codec, level: int | None) -> list[Outgoing]:
        """The batches that the hook makes of the rows; none if it returns no rows.

        Raises `InputError` if the hook raises or does not return a batch.
        """
        rows = pa.Table.from_batches(self._pieces).combine_chunks().to_batches()[0]
        whole.count = self.count
        try:
            changed_rows = hook(whole.topic, whole.partition, rows)
            batches = list(
                encode(
                    _columns(changed_rows),
                    now_ms=int(whole.created * 1000),
                    codec=codec,
                    level=level,
                    limits=self._limits,
                )
            )
        except BaseException as error:
            raise _hook_failed(whole, error) from error
        return make_parts(whole, batches, changed=changed_rows.num_rows != rows.num_rows)


def _columns(rows: object) -> Columns:
    """The columns of what a hook returned. Raises `InputError` if it is not a batch with known columns."""
    if isinstance(rows, pa.Table):
        rows = rows.combine_chunks()
    if not isinstance(rows, pa.RecordBatch | pa.Table) or "value" not in rows.schema.names:
        raise InputError(f"it returned {type(rows).__name__}, expected a RecordBatch with a column value")
    unknown = set(rows.schema.names) - set(_COLUMNS)
    if unknown:
        raise InputError(f"it returned the columns {sorted(unknown)}; known are {', '.join(_COLUMNS)}")
    others = {name: rows.column(name) for name in _COLUMNS if name != "value" and name in rows.schema.names}
    return from_arrow(rows.column("value"), **others)


def _hook_failed(whole: Outgoing, error: BaseException) -> InputError:
    return InputError(f"the batch hook of topic {whole.topic} failed on {whole.count} records: {error}")


def invalid_records(batch: Outgoing, answer: Produced) -> set[int]:
    """Return the records that a broker named as invalid; none if it would not take the batch without them either."""
    named = {row for row, _ in answer.record_errors if 0 <= row < batch.count}
    return named if len(named) < batch.count and not batch.is_doubtful else set()


def split_batch(
    batch: Outgoing, invalid: Collection[int] = (), *, level: int | None
) -> tuple[list[Outgoing], list[Outgoing]]:
    """Split a sealed batch: in two smaller ones, or into those without invalid records, and those of nothing else."""
    assert batch.header is not None
    assert batch.records is not None
    rows = decoded(batch.header, batch.records, topic=batch.topic, partition=batch.partition)
    is_invalid = np.zeros(batch.count, np.bool_)
    is_invalid[list(invalid)] = True
    inner = (np.flatnonzero(np.diff(is_invalid)) + 1).tolist() if invalid else [(batch.count + 1) // 2]
    limits = BatchLimits(max_bytes=LARGEST_BATCH, max_records=batch.count)
    new = [
        each
        for start, stop in itertools.pairwise((0, *inner, batch.count))
        for each in encode(
            _columns(rows.slice(start, stop - start)), now_ms=0, codec=batch.header.codec, level=level, limits=limits
        )
    ]
    parts = make_parts(batch, new, changed=False)
    is_refused = [part.parent is not None and bool(is_invalid[part.parent[1]]) for part in parts]
    kept = [part for part, is_out in zip(parts, is_refused, strict=True) if not is_out]
    return kept, [part for part, is_out in zip(parts, is_refused, strict=True) if is_out]


def decoded(header: BatchHeader, records: bytes | memoryview, *, topic: str, partition: int) -> pa.RecordBatch:
    """Key, value, headers and timestamp of a sealed batch."""
    source = Batch.parse(pack_header(header) + bytes(records))
    pieces = Decoder(columns=_COLUMNS).decode([source], topic=topic, partition=partition)
    table = pa.Table.from_batches([piece.records for piece in pieces])
    return table.combine_chunks().to_batches()[0]


def make_parts(whole: Outgoing, batches: Iterable[NewBatch], *, changed: bool) -> list[Outgoing]:
    """Make an outgoing batch of each; their outcomes together decide the whole."""
    parts: list[Outgoing] = []
    first = 0
    for new in batches:
        part = Outgoing(whole.topic, whole.partition, opened=whole.opened, created=whole.created)
        part.due, part.deadline = whole.due, whole.deadline
        part.raw_bytes = len(new.records)
        part.seal(new.header, new.records)
        part.parent = (whole, -1 if changed else first)
        first += part.count
        parts.append(part)
    whole.parts_left = len(parts)
    return parts
