"""Batches that are compressed on several threads are the same, in the same order, and the threads end."""

from __future__ import annotations

import threading

import pytest

from ottla.produce import compression
from ottla.produce.compression import CompressionPool
from ottla.produce.outgoing import Outgoing
from ottla.produce.packing import Sealing
from ottla.produce.topics import compress_serially
from ottla.wire.batch import Codec
from ottla.wire.columns import from_list
from ottla.wire.draft import Draft
from ottla.wire.encode import BatchLimits, NewBatch


def sealing_of(number: int, codec: Codec) -> Sealing:
    draft = Draft(BatchLimits())
    columns = from_list([b"%d" % (number * i) * 50 for i in range(1, 400 - 30 * number)])
    draft.append(columns, start=0, stop=columns.count, now_ms=number)
    batch = Outgoing("t", number, opened=0.0, created=0.0)
    batch.raw_bytes = draft.size_bytes
    return Sealing(batch, draft, codec, None)


def many(codec: Codec) -> list[Sealing]:
    return [sealing_of(number, codec) for number in range(1, 12)]


@pytest.fixture
def pool() -> CompressionPool:
    new = CompressionPool("test")
    new._cores = 3
    return new


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_they_are_what_one_thread_would_make(codec: Codec, pool: CompressionPool) -> None:
    expected = [bytes(batch) for batch in compress_serially(many(codec))]
    assert [bytes(batch) for batch in pool.compress(many(codec))] == expected
    pool.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("test-codec")]


def test_several_threads_are_at_it(pool: CompressionPool, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(2, timeout=30.0)
    compressed = Sealing.compressed

    def meet(self: Sealing) -> NewBatch:
        together.wait()
        return compressed(self)

    monkeypatch.setattr(Sealing, "compressed", meet)
    assert len(list(pool.compress(many(Codec.ZSTD)[:2]))) == 2
    pool.close()


@pytest.mark.parametrize("count", [0, 1])
def test_a_single_batch_starts_no_threads(count: int, pool: CompressionPool) -> None:
    assert len(list(pool.compress(many(Codec.ZSTD)[:count]))) == count
    assert pool._pool is None


def test_small_batches_start_no_threads(pool: CompressionPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "_WORTH_BYTES", 1 << 30)
    assert len(list(pool.compress(many(Codec.ZSTD)))) == 11
    assert pool._pool is None


def test_an_interpreter_that_ends_starts_no_threads_and_all_is_compressed(pool: CompressionPool) -> None:
    expected = [bytes(batch) for batch in compress_serially(many(Codec.ZSTD))]
    list(pool.compress(many(Codec.ZSTD)))
    pool.close()  # submitting to a closed pool raises the same error
    assert [bytes(batch) for batch in pool.compress(many(Codec.ZSTD))] == expected
