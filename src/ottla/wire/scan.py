"""Finds the batches of a whole response with one kernel call. Their headers are unpacked only on demand.

Comes in: spans of bytes with batches, one per partition. Goes out: `Batches` for those that are sound. For all others
`wire/batch.py:split` reports what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from ottla.wire.batch import HEADER, Batch, BatchHeader
from ottla.wire.kernels import scanning as k

_FEW_BATCHES = 64


class Batches(Sequence[Batch]):
    """The whole batches of one partition in a response, in order. `table` has a row for each."""

    __slots__ = (
        "all_attributes",
        "any_attributes",
        "epoch",
        "first_offset",
        "next_offset",
        "size_bytes",
        "source",
        "table",
    )

    def __init__(
        self, source: memoryview, table: npt.NDArray[np.int64], verdict: Sequence[int], size_bytes: int
    ) -> None:
        self.source = source
        self.table = table
        self.size_bytes = size_bytes
        """The size of all batches, and of a partial one after them."""
        _, _, self.first_offset, self.next_offset, self.epoch, self.any_attributes, self.all_attributes = verdict

    def __len__(self) -> int:
        return len(self.table)

    def __iter__(self) -> Iterator[Batch]:
        return map(self._batch, self.table[:, k.AT].tolist())

    @overload
    def __getitem__(self, index: int) -> Batch: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Batch]: ...
    def __getitem__(self, index: int | slice) -> Batch | Sequence[Batch]:
        if isinstance(index, slice):
            return list(map(self._batch, self.table[index, k.AT].tolist()))
        return self._batch(int(self.table[index, k.AT]))

    def _batch(self, start: int) -> Batch:
        return Batch(self.source, start, BatchHeader._make(HEADER.unpack_from(self.source, start)))


def scan(source: memoryview, spans: Sequence[tuple[int, int]]) -> list[Batches | None]:
    """Return the batches in each span, or None if it has no whole batch or anything contradictory."""
    source = source.toreadonly()
    data = np.frombuffer(source, np.uint8)
    span_table = np.array(spans, np.int64).reshape(-1, k.SPAN_FIELDS)
    verdicts: Any = np.zeros((len(span_table), k.VERDICT_FIELDS), np.int64)
    state: Any = np.zeros(k.STATE_FIELDS, np.int64)
    table: Any = np.empty((4 * len(span_table) + _FEW_BATCHES, k.BATCH_FIELDS), np.int64)
    # The kernel stops if the table is full, and continues with a larger one.
    while k.scan_batches(data, span_table, table, verdicts, state) == k.FULL:
        grown = np.empty((4 * len(table), k.BATCH_FIELDS), np.int64)
        grown[: len(table)] = table
        table = grown
    batches: list[Batches | None] = []
    first = 0
    for verdict, (start, end) in zip(verdicts.tolist(), spans, strict=True):
        count = verdict[k.COUNT]
        # A span with anything unusual is parsed again by `split`, which raises the right error.
        is_usable = count and verdict[k.IS_SOUND]
        batches.append(Batches(source, table[first : first + count], verdict, end - start) if is_usable else None)
        first += count
    return batches
