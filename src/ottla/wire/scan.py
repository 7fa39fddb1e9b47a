"""The batches of a whole answer, found by one call of a kernel: their headers are read one by one only if asked for.

Spans of bytes in which batches lie come in, one for each partition; `Batches` go out for those with which nothing is
wrong. For all others `wire/batch.py:split` says what it is.
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
    """The whole batches of one partition in one answer, in order. `table` has a row for each."""

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
        """Of all of them, and of a partial one behind them."""
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

    def _batch(self, at: int) -> Batch:
        return Batch(self.source, at, BatchHeader._make(HEADER.unpack_from(self.source, at)))


def scan(source: memoryview, spans: Sequence[tuple[int, int]]) -> list[Batches | None]:
    """What lies in each of the spans: None if there is no whole batch, or anything that contradicts itself."""
    source = source.toreadonly()
    data = np.frombuffer(source, np.uint8)
    places = np.array(spans, np.int64).reshape(-1, k.SPAN_FIELDS)
    verdicts: Any = np.zeros((len(places), k.VERDICT_FIELDS), np.int64)
    state: Any = np.zeros(k.STATE_FIELDS, np.int64)
    table: Any = np.empty((4 * len(places) + _FEW_BATCHES, k.BATCH_FIELDS), np.int64)
    while k.scan_batches(data, places, table, verdicts, state) == k.FULL:
        grown = np.empty((4 * len(table), k.BATCH_FIELDS), np.int64)
        grown[: len(table)] = table
        table = grown
    found: list[Batches | None] = []
    first = 0
    for verdict, (start, end) in zip(verdicts.tolist(), spans, strict=True):
        count = verdict[k.COUNT]
        is_usable = count and verdict[k.IS_SOUND]
        found.append(Batches(source, table[first : first + count], verdict, end - start) if is_usable else None)
        first += count
    return found
