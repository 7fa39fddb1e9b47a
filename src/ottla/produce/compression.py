"""Compresses batches on all cores. The codecs release the GIL while they work.

Batches come in that already have their places in their queues, so their order does not depend on which one is done
first. It keeps no batch, and starts no thread before several batches come at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ottla.produce.packing import Sealing
from ottla.produce.topics import compress_serially
from ottla.wire.encode import NewBatch

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

_WORTH_BYTES = 1 << 16
"""From this many bytes on it pays to wake other threads."""


class CompressionPool:
    """One thread per core, started the first time that several batches are to be compressed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pool: ThreadPoolExecutor | None = None
        self._cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def compress(self, sealing: Sequence[Sealing]) -> Iterable[NewBatch]:
        """Compress the batches and return them in the order given. Blocks until all are done."""
        if len(sealing) < 2 or self._cores < 2 or sum(item.batch.raw_bytes for item in sealing) < _WORTH_BYTES:
            return compress_serially(sealing)
        if self._pool is None:
            try:
                from concurrent.futures import ThreadPoolExecutor
            except RuntimeError:  # the interpreter is shutting down and starts no threads
                return compress_serially(sealing)
            self._pool = ThreadPoolExecutor(self._cores, thread_name_prefix=f"{self._name}-codec")
        # The largest first, so that the threads end together.
        order = sorted(range(len(sealing)), key=lambda number: -sealing[number].batch.raw_bytes)
        futures = {number: self._submit(self._pool, sealing[number]) for number in order}
        return [futures[number].result() for number in range(len(sealing))]

    def _submit(self, pool: ThreadPoolExecutor, sealing: Sealing) -> Future[NewBatch]:
        """Start compressing a batch on the pool, or compress it here if the pool accepts nothing more."""
        try:
            return pool.submit(sealing.compressed)
        except RuntimeError:  # the interpreter began to shut down meanwhile
            from concurrent.futures import Future

            done: Future[NewBatch] = Future()
            done.set_result(sealing.compressed())
            return done

    def close(self) -> None:
        """Stop the threads."""
        if self._pool is not None:
            self._pool.shutdown()
