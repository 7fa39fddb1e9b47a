"""Compresses batches on all cores: the codecs let go of the interpreter while they work.

Batches come in that have their places in their lines already, so the order is kept whichever is done first.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ottla.produce.packing import Sealing
from ottla.produce.topics import one_by_one
from ottla.wire.encode import NewBatch

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

_WORTH_BYTES = 1 << 16
"""From so many on it pays to wake other threads."""


class CompressionPool:
    """As many threads as there are cores, from the first time that several batches are to be compressed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pool: ThreadPoolExecutor | None = None
        self._cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def compress(self, sealing: Sequence[Sealing]) -> Iterable[NewBatch]:
        """All of them; returns when they are done."""
        if len(sealing) < 2 or self._cores < 2 or sum(one.batch.raw_bytes for one in sealing) < _WORTH_BYTES:
            return one_by_one(sealing)
        if self._pool is None:
            try:
                from concurrent.futures import ThreadPoolExecutor
            except RuntimeError:  # the interpreter is about to end, and starts nothing new
                return one_by_one(sealing)
            self._pool = ThreadPoolExecutor(self._cores, thread_name_prefix=f"{self._name}-codec")
        # The largest first, so that the threads end together.
        order = sorted(range(len(sealing)), key=lambda number: -sealing[number].batch.raw_bytes)
        begun = {number: self._begin(self._pool, sealing[number]) for number in order}
        return [begun[number].result() for number in range(len(sealing))]

    def _begin(self, pool: ThreadPoolExecutor, sealing: Sealing) -> Future[NewBatch]:
        try:
            return pool.submit(sealing.compressed)
        except RuntimeError:  # the same, in the meantime
            from concurrent.futures import Future

            done: Future[NewBatch] = Future()
            done.set_result(sealing.compressed())
            return done

    def close(self) -> None:
        """Ends the threads."""
        if self._pool is not None:
            self._pool.shutdown()
