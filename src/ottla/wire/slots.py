"""The open batches of many partitions in one piece of memory: rows for all of them are encoded in one call.

Rows that are sorted by partition come in, and how far each partition got goes out. A batch begins in a slot of its
partition; when it is complete, or outgrows the slot, it leaves as a `Draft` of its own. With a draft for each partition
from the start, a few rows for each of a thousand cost a thousand calls. The current time comes from the caller.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ottla.wire.batch import HEADER_BYTES
from ottla.wire.columns import Columns
from ottla.wire.draft import Draft
from ottla.wire.encode import BatchLimits
from ottla.wire.kernels import encoding as k

Numbers = npt.NDArray[np.int64]

ELSEWHERE = -1
"""Instead of a partition: its rows are not for a slot."""
_ALL_BYTES = 16 << 20
_LEAST_BYTES, _MOST_BYTES = 2 << 10, 64 << 10
MOST_PARTITIONS = _ALL_BYTES // _LEAST_BYTES


class Appended(NamedTuple):
    """What became of each run of rows: the row it got to, the records that were there before, the bytes it added."""

    reached: list[int]
    firsts: list[int]
    grown: list[int]


class Slots:
    """One slot for each of so many partitions."""

    def __init__(self, partitions: int) -> None:
        self._slot_bytes = min(max(_ALL_BYTES // partitions, _LEAST_BYTES), _MOST_BYTES)
        self._memory = np.empty(partitions * self._slot_bytes, np.uint8)  # pages that are not used take no memory
        self._results = np.zeros((partitions, k.RESULT_FIELDS), np.int64)

    def __len__(self) -> int:
        return len(self._results)

    def begin(self, partition: int) -> Slot:
        """An empty one. What was in it before is gone."""
        self._results[partition] = 0
        return Slot(self, partition)

    def append(
        self,
        columns: Columns,
        *,
        limits: BatchLimits,
        rows: Numbers,
        edges: Numbers,
        partitions: Numbers,
        now_ms: int,
    ) -> Appended:
        """Adds `rows[edges[i] : edges[i + 1]]` to the slot of `partitions[i]`, for each i, as far as it takes them.

        A partition appears once; with ELSEWHERE instead of one, the rows are left out. Rows without a time get
        `now_ms`.
        """
        before = self._results[partitions]
        reached = np.empty(len(partitions), np.int64)
        k.encode_runs(
            self._memory,
            self._slot_bytes,
            min(self._slot_bytes, limits.max_bytes - HEADER_BYTES),
            limits.max_records,
            rows,
            edges,
            partitions,
            columns.key,
            columns.value,
            columns.headers,
            columns.times,
            now_ms,
            reached,
            self._results,
        )
        grown = self._results[partitions, k.SIZE] - before[:, k.SIZE]
        return Appended(reached.tolist(), before[:, k.COUNT].tolist(), grown.tolist())


class Slot:
    """The open batch of one partition."""

    __slots__ = ("_partition", "_slots")

    def __init__(self, slots: Slots, partition: int) -> None:
        self._slots = slots
        self._partition = partition

    @property
    def count(self) -> int:
        """Records so far."""
        return int(self._slots._results[self._partition, k.COUNT])

    @property
    def size_bytes(self) -> int:
        """What they take, uncompressed and without the header."""
        return int(self._slots._results[self._partition, k.SIZE])

    def leave(self, limits: BatchLimits) -> Draft:
        """The same batch with memory of its own; the slot is free."""
        start = self._partition * self._slots._slot_bytes
        records = self._slots._memory[start : start + self.size_bytes]
        draft = Draft.holding(limits, records, self._slots._results[self._partition])
        self._slots._results[self._partition] = 0
        return draft
