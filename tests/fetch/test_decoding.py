"""Decoding pieces together gives the same result as decoding them one by one."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from tests.wire.rows import NOW, Row, raw_batch, records_bytes

from ottla.errors import CorruptBatch
from ottla.events import Events
from ottla.fetch.cursor import Cursor, Piece, ResponseMemory
from ottla.fetch.decoding import PieceDecoder, decode
from ottla.model import TopicPartition
from ottla.wire.batch import IS_LOG_APPEND, Codec
from ottla.wire.decode import COLUMNS, Decoded, Decoder
from ottla.wire.scan import scan

from .logs import marker, of_transaction, plain

RICH = [Row(None, b"v", (("h", b"1"), ("h", None))), Row(b"k", None, (), NOW + 5), Row(b"", b"", (("", b""),))]


def rich(base: int, *, deltas: Sequence[int] = (0, 1, 2), codec: Codec = Codec.NONE, flags: int = 0) -> bytes:
    """Return a batch with nulls, headers and holes."""
    records = records_bytes(RICH, deltas)
    return raw_batch(
        records, count=3, codec=codec, flags=flags, base_offset=base, base_time=NOW, last_delta=max(deltas)
    )


def pieces_of(*logs: bytes, start: int = 0, stop: int = 1 << 62, topic: str = "t") -> list[Piece]:
    """Return the pieces of one response with a log for each partition."""
    source = memoryview(b"".join(logs))
    spans, position = [], 0
    for log in logs:
        spans.append((position, position + len(log)))
        position += len(log)
    memory = ResponseMemory(len(source))
    pieces = []
    for number, batches in enumerate(scan(source, spans)):
        assert batches is not None
        cursor = Cursor(TopicPartition(topic, number), start, stop)
        pieces.append(Piece(cursor, batches, start, stop, batches.next_offset, memory))
    return pieces


class Counting(Decoder):
    """Counts how often it decodes pieces one by one."""

    single = 0

    def decode(self, *arguments: object, **more: object) -> object:  # type: ignore[override]
        self.single += 1
        return super().decode(*arguments, **more)  # type: ignore[arg-type]


def together(pieces: Sequence[Piece], columns: Sequence[str] = COLUMNS, **settings: int) -> tuple[list[Decoded], int]:
    """Decode the pieces, and return how many of them were decoded alone."""
    decoder = Counting(columns, **settings)  # type: ignore[arg-type]
    decoding = PieceDecoder(decoder, Events(), lambda piece, most: pieces[_index(pieces, piece) + 1 :][:most])
    return [decoded for piece in pieces for decoded in decoding.decode(piece)], decoder.single


def _index(pieces: Sequence[Piece], expected: Piece) -> int:
    return next(number for number, piece in enumerate(pieces) if piece is expected)


def alone(pieces: Sequence[Piece], columns: Sequence[str] = COLUMNS) -> list[Decoded]:
    """Decode the pieces one by one."""
    decoder = Decoder(columns)
    return [decoded for piece in pieces for decoded in decode(decoder, piece, events=Events())]


def assert_same(pieces: Sequence[Piece], columns: Sequence[str] = COLUMNS, *, single: int = 0) -> None:
    decoded, count = together(pieces, columns)
    expected = alone(pieces, columns)
    assert [chunk.records for chunk in decoded] == [chunk.records for chunk in expected]
    assert [chunk[1:] for chunk in decoded] == [chunk[1:] for chunk in expected]
    assert count == single
    for chunk in decoded:
        chunk.records.validate(full=True)


@pytest.mark.parametrize("columns", [COLUMNS, ("value",), ("partition", "offset"), ("key", "headers"), ()])
def test_columns_are_the_same(columns: tuple[str, ...]) -> None:
    logs = [plain(0, 3) + rich(10), rich(5, deltas=(0, 4, 9)), plain(7, 20) + plain(27, 20), rich(0)]
    assert_same(pieces_of(*logs), columns)


@pytest.mark.parametrize("codec", list(Codec)[1:])
def test_compressed_batches_are_decoded_together(codec: Codec) -> None:
    assert_same(pieces_of(rich(0, codec=codec) + rich(3, codec=codec), rich(0, codec=codec), plain(0, 2, codec=codec)))


def test_what_decompresses_to_more_than_a_chunk_is_decoded_in_several_calls() -> None:
    pieces = pieces_of(*(plain(0, 50, codec=Codec.ZSTD) for _ in range(20)))
    decoded, single = together(pieces, chunk_bytes=3000)
    assert [chunk.records for chunk in decoded] == [chunk.records for chunk in alone(pieces)]
    assert single == 0
    memory = {chunk.records.column("value").buffers()[2].address for chunk in decoded}
    assert 1 < len(memory) < 20


def test_some_compressed_and_some_not_are_decoded_one_by_one() -> None:
    assert_same(pieces_of(rich(0, codec=Codec.LZ4), rich(0)), single=2)


def test_times_of_the_broker_are_decoded_together_but_not_with_others() -> None:
    assert_same(pieces_of(rich(0, flags=IS_LOG_APPEND), rich(9, flags=IS_LOG_APPEND)))
    assert_same(pieces_of(rich(0, flags=IS_LOG_APPEND), rich(9)), single=2)


def test_markers_of_transactions_are_left_out() -> None:
    pieces = pieces_of(of_transaction(0, 3, 7) + marker(3, 7), marker(0, 7), of_transaction(0, 2, 8))
    decoded, single = together(pieces)
    assert [chunk.records.column("offset").to_pylist() for chunk in decoded] == [[0, 1, 2], [0, 1]]
    assert single == 0


def test_a_piece_of_which_some_records_are_not_wanted_is_decoded_alone() -> None:
    assert_same(pieces_of(plain(0, 10), plain(0, 10), start=4), single=2)
    assert_same(pieces_of(plain(0, 10), plain(0, 10), stop=4), single=2)


def test_a_damaged_batch_is_reported_of_its_own_partition_after_all_before_it() -> None:
    damaged = bytearray(plain(5, 3))
    damaged[-3] ^= 1
    pieces = pieces_of(plain(0, 2), plain(3, 1) + plain(4, 1) + bytes(damaged), plain(0, 4), plain(0, 1))
    decoder = Decoder()
    decoding = PieceDecoder(decoder, Events(), lambda piece, most: pieces[_index(pieces, piece) + 1 :][:most])
    assert [chunk.rows for chunk in decoding.decode(pieces[0])] == [2]
    second = decoding.decode(pieces[1])
    assert next(second).records.column("offset").to_pylist() == [3, 4]
    with pytest.raises(CorruptBatch) as caught:
        next(second)
    assert (caught.value.topic, caught.value.partition, caught.value.base_offset) == ("t", 1, 5)
    assert [[chunk.rows for chunk in decoding.decode(piece)] for piece in pieces[2:]] == [[4], [1]]


def test_pieces_that_do_not_come_are_passed_over() -> None:
    pieces = pieces_of(*(plain(0, number + 1) for number in range(5)))
    decoding = PieceDecoder(Decoder(), Events(), lambda piece, most: pieces[_index(pieces, piece) + 1 :][:most])
    rows = [chunk.rows for number in (0, 3, 4) for chunk in decoding.decode(pieces[number])]
    assert rows == [1, 4, 5]
    decoding.forget()
    assert [chunk.rows for chunk in decoding.decode(pieces[1])] == [2]


def test_pieces_of_different_topics_are_not_joined() -> None:
    mixed = [pieces_of(plain(0, 2))[0], pieces_of(plain(0, 2), topic="u")[0]]
    decoded, single = together(mixed)
    assert [chunk.records.column("topic").to_pylist() for chunk in decoded] == [["t", "t"], ["u", "u"]]
    assert single == 2


def test_neighbours_share_memory_and_each_is_a_record_batch() -> None:
    decoded, _ = together(pieces_of(plain(0, 2), plain(0, 2)))
    first, second = (chunk.records for chunk in decoded)
    assert isinstance(first, pa.RecordBatch)
    assert first.column("value").buffers()[2].address == second.column("value").buffers()[2].address
    assert pa.Table.from_batches([first, second]).num_rows == 4
