"""Hand-made logs: batches of any shape, and fetch responses that carry them.

Nothing here uses the product's encoder, so logs can hold what it never writes: markers, holes, lies.
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
    """Return a batch of `count` records from offset `base` on. The value of each record is its offset."""
    where = list(deltas if deltas is not None else range(count))
    rows = [Row(b"k", b"%d" % (base + delta), (), NOW + delta) for delta in where]
    records = records_bytes(rows, where) if rows else b""
    delta = (where[-1] if where else 0) if last is None else last
    return raw_batch(records, count=len(where), base_offset=base, last_delta=delta, **more)


def of_transaction(base: int, count: int, producer: int) -> bytes:
    """Return a batch of an open transaction."""
    return plain(base, count, flags=IS_TRANSACTIONAL, producer=(producer, 0, 0))


def marker(base: int, producer: int, *, flags: int = IS_TRANSACTIONAL | IS_CONTROL) -> bytes:
    """Return the marker that ends a transaction. The header does not say whether it was committed."""
    return plain(base, 1, flags=flags, producer=(producer, 0, -1))


def fetched(*batches: bytes, error: int = 0, aborted: Iterable[Aborted] = (), **more: Any) -> Fetched:
    """Return a broker's response for one partition."""
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
    """Return the response of a broker whose log has diverged."""
    return fetched(diverging=Diverging(epoch, end_offset))


def took(cursor: Cursor, answer: Fetched, *, committed_only: bool = False, now: float = 0.0) -> Piece:
    """Return the piece that the cursor takes from a response, which must have records."""
    piece = cursor.take(answer, ResponseMemory(len(answer.records)), now, committed_only=committed_only)
    assert isinstance(piece, Piece), piece
    return piece


def offsets_in(piece: Piece) -> list[int]:
    """Return the offsets of a piece's records, as a reader gets them."""
    chunks = Decoder(("offset",)).decode(piece.batches, start=piece.start, stop=piece.stop)
    return [offset for chunk in chunks for offset in chunk.records.column("offset").to_pylist()]


def parse(data: bytes) -> list[Batch]:
    """Return the batches in the data."""
    return list(split(data))


def plant(kafka: FakeKafka, data: bytes, *, base: int, stop: int, at: TopicPartition = AT) -> None:
    """Put bytes into a log of the fake as if they were the batch of the offsets `[base, stop)`."""
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
    """Append `count` plain batches of `each` records."""
    with kafka._dispatcher.changed:
        end = kafka._partition(*at).log.end
    for number in range(count):
        base = end + number * each
        plant(kafka, plain(base, each), base=base, stop=base + each, at=at)


def cut_back(kafka: FakeKafka, offset: int, *, at: TopicPartition = AT) -> None:
    """Truncate the log to whole batches before `offset`, as an unclean leader election does."""
    with kafka._dispatcher.changed:
        log = kafka._partition(*at).log
        log.batches = [stored for stored in log.batches if stored.header.next_offset <= offset]
        log.end = max((stored.header.next_offset for stored in log.batches), default=log.start)
