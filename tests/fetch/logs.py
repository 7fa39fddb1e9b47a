"""Logs made by hand: batches of any shape, answers that carry them, and what a model says should be read of them.

Nothing here uses the product's encoder, so that logs can hold what it never writes: markers, holes, lies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tests.wire.rows import NOW, Row, raw_batch, records_bytes

from ottla.fetch.cursor import Cursor, Piece, ResponseMemory
from ottla.model import TopicPartition
from ottla.testing import FakeKafka
from ottla.testing.fake.log import StoredBatch
from ottla.wire.batch import HEADER, HEADER_BYTES, IS_CONTROL, IS_TRANSACTIONAL, Batch, BatchHeader, Codec, split
from ottla.wire.decode import Decoder
from ottla.wire.fetch import Aborted, Diverging, Fetched

AT = TopicPartition("t", 0)


def plain(
    base: int, count: int = 1, *, deltas: Sequence[int] | None = None, last: int | None = None, **more: Any
) -> bytes:
    """A batch of `count` records from offset `base` on; the value of each is its offset."""
    where = list(deltas if deltas is not None else range(count))
    rows = [Row(b"k", b"%d" % (base + delta), (), NOW + delta) for delta in where]
    records = records_bytes(rows, where) if rows else b""
    delta = (where[-1] if where else 0) if last is None else last
    return raw_batch(records, count=len(where), base_offset=base, last_delta=delta, **more)


def of_transaction(base: int, count: int, producer: int) -> bytes:
    """Records of an open transaction."""
    return plain(base, count, flags=IS_TRANSACTIONAL, producer=(producer, 0, 0))


def marker(base: int, producer: int, *, flags: int = IS_TRANSACTIONAL | IS_CONTROL) -> bytes:
    """The end of a transaction, committed or not: the header does not say which."""
    return plain(base, 1, flags=flags, producer=(producer, 0, -1))


def fetched(*batches: bytes, error: int = 0, aborted: Iterable[Aborted] = (), **more: Any) -> Fetched:
    """The answer of a broker."""
    given = {"high_watermark": 1000, "last_stable_offset": 1000, "log_start_offset": 0, **more}
    return Fetched(
        AT.topic,
        AT.partition,
        error,
        given["high_watermark"],
        given["last_stable_offset"],
        given["log_start_offset"],
        tuple(aborted),
        -1,
        memoryview(b"".join(batches)),
        None,
        given.get("diverging"),
    )


def parted(epoch: int, end_offset: int) -> Fetched:
    """The answer of a broker whose log has other records."""
    return fetched(diverging=Diverging(epoch, end_offset))


def took(cursor: Cursor, answer: Fetched, *, committed_only: bool = False, now: float = 0.0) -> Piece:
    """What the cursor makes of the answer, which must have something."""
    piece = cursor.take(answer, ResponseMemory(len(answer.records)), now, committed_only=committed_only)
    assert isinstance(piece, Piece), piece
    return piece


def offsets_in(piece: Piece) -> list[int]:
    """The offsets of the records of a piece, as a reader gets them."""
    chunks = Decoder(("offset",)).decode(piece.batches, start=piece.start, stop=piece.stop)
    return [offset for chunk in chunks for offset in chunk.records.column("offset").to_pylist()]


def parse(data: bytes) -> list[Batch]:
    """Its batches."""
    return list(split(data))


def plant(kafka: FakeKafka, data: bytes, *, base: int, stop: int, at: TopicPartition = AT) -> None:
    """Puts bytes into a log of the fake as if they were the batch of the offsets `[base, stop)`."""
    newest = HEADER.unpack_from(data)[8] if len(data) >= HEADER_BYTES else NOW
    header = BatchHeader(base, 0, 0, 2, 0, Codec.NONE, stop - base - 1, NOW, newest, -1, -1, -1, stop - base)
    with kafka._dispatcher.changed:
        log = kafka._partition(*at).log
        log.batches.append(StoredBatch(data, header))
        log.end = max(log.end, stop)
        if not log.epochs:
            log.epochs.append((0, 0))
        kafka._dispatcher.changed.notify_all()


def fill(kafka: FakeKafka, count: int, *, each: int = 10, at: TopicPartition = AT) -> None:
    """So many plain batches of `each` records, behind what is there."""
    with kafka._dispatcher.changed:
        end = kafka._partition(*at).log.end
    for number in range(count):
        base = end + number * each
        plant(kafka, plain(base, each), base=base, stop=base + each, at=at)


def cut_back(kafka: FakeKafka, offset: int, *, at: TopicPartition = AT) -> None:
    """The log ends there from now on, as after a leader that had no more of it; whole batches are left."""
    with kafka._dispatcher.changed:
        log = kafka._partition(*at).log
        log.batches = [stored for stored in log.batches if stored.header.next_offset <= offset]
        log.end = max((stored.header.next_offset for stored in log.batches), default=log.start)
