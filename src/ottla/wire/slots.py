"""The open batches of many partitions in one block of memory, so that one call encodes rows for all of them.

Comes in: rows sorted by partition. Goes out: how far each partition got. A batch begins in the slot of its partition;
when it is complete or outgrows the slot, it leaves as a `Draft`. With a draft per partition from the start, a few rows
for each of a thousand partitions would cost a thousand calls. The caller passes the current time.
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
"""In place of a partition: these rows are not for a slot."""
_TOTAL_BYTES = 16 << 20
_MIN_SLOT_BYTES, _MAX_SLOT_BYTES = 2 << 10, 64 << 10
MOST_PARTITIONS = _TOTAL_BYTES // _MIN_SLOT_BYTES


class Appended(NamedTuple):
    """The outcome for each run of rows: the row it reached, the records already in the slot, the bytes it added."""

    reached: list[int]
    firsts: list[int]
    grown: list[int]


class Slots:
    """One slot per partition."""

    def __init__(self, partitions: int) -> None:
        self._slot_bytes = min(max(_TOTAL_BYTES // partitions, _MIN_SLOT_BYTES), _MAX_SLOT_BYTES)
        self._memory = np.empty(partitions * self._slot_bytes, np.uint8)  # untouched pages take no memory
        self._results = np.zeros((partitions, k.RESULT_FIELDS), np.int64)

    def __len__(self) -> int:
        return len(self._results)

    def begin(self, partition: int) -> Slot:
        """Return an empty slot. Discards what it held."""
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
        """Add `rows[edges[i] : edges[i + 1]]` to the slot of `partitions[i]`, for each i, until the slot is full.

        A partition appears at most once. Rows with ELSEWHERE as their partition are skipped. Rows without a time get
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
        """The number of records so far."""
        return int(self._slots._results[self._partition, k.COUNT])

    @property
    def size_bytes(self) -> int:
        """The size of the records, uncompressed and without the header."""
        return int(self._slots._results[self._partition, k.SIZE])

    def leave(self, limits: BatchLimits) -> Draft:
        """Move the batch to memory of its own and free the slot."""
        start = self._partition * self._slots._slot_bytes
        records = self._slots._memory[start : start + self.size_bytes]
        draft = Draft.holding(limits, records, self._slots._results[self._partition])
        self._slots._results[self._partition] = 0
        return draft
