"""A batch with another identity: as if it had been written with it, and still damaged if it was."""

from __future__ import annotations

import struct

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import CorruptBatch
from ottla.wire.batch import Batch, BatchHeader, Codec, pack_header
from ottla.wire.encode import NewBatch
from ottla.wire.kernels.checksum import shift
from ottla.wire.restamp import restamp

from .rows import NOW, Row, encoded, quick, row_lists, thorough, written

int16, int32, int64 = (st.integers(-(2**bits), 2**bits - 1) for bits in (15, 31, 63))
FLAGS = 0x38  # who set the time, transactional, control


@given(
    input_rows=row_lists,
    codec=st.sampled_from(list(Codec)),
    identity=st.tuples(int64, int16, int32),
    base_offset=st.integers(0, 2**62),
    leader_epoch=int32,
    flags=st.integers(0, 0xFF).map(lambda bits: bits & FLAGS),
)
@thorough
def test_a_new_identity_gives_the_bytes_of_a_full_encoding(
    input_rows: list[Row],
    codec: Codec,
    identity: tuple[int, int, int],
    base_offset: int,
    leader_epoch: int,
    flags: int,
) -> None:
    producer_id, producer_epoch, base_sequence = identity
    (new,) = encoded(input_rows, codec=codec)
    stamped = restamp(
        new.header,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        attributes=codec | flags,
    )
    data = pack_header(stamped) + bytes(new.records)
    whole = written(input_rows, codec=codec, flags=flags, producer=identity, base_offset=base_offset)
    expected = bytearray(whole.data)
    expected[12:16] = struct.pack(">i", leader_epoch)
    assert stamped.crc == crc32c.crc32c(data[21:])
    Batch.parse(data).verify()
    if codec is Codec.NONE:
        assert data == bytes(expected)


@given(input_rows=row_lists, base_offset=st.integers(0, 2**62), leader_epoch=int32)
@quick
def test_base_offset_and_leader_epoch_leave_the_checksum_alone(
    input_rows: list[Row], base_offset: int, leader_epoch: int
) -> None:
    header = written(input_rows).header
    stamped = restamp(header, base_offset=base_offset, leader_epoch=leader_epoch)
    assert stamped == header._replace(base_offset=base_offset, leader_epoch=leader_epoch)
    assert stamped.crc == header.crc


def test_nothing_given_changes_nothing() -> None:
    header = written([Row(b"k", b"v")]).header
    assert restamp(header) == header
    assert restamp(header, producer_id=header.producer_id, attributes=header.attributes) == header


@given(input_rows=row_lists, identity=st.tuples(int64, int16, int32), data=st.data())
@thorough
def test_a_damaged_batch_stays_damaged(
    input_rows: list[Row], identity: tuple[int, int, int], data: st.DataObject
) -> None:
    good = written(input_rows)
    position = data.draw(st.integers(61, good.header.size_bytes - 1))
    damaged = bytearray(good.data)
    damaged[position] ^= data.draw(st.integers(1, 255))
    producer_id, epoch, sequence = identity
    stamped = restamp(
        Batch.parse(bytes(damaged)).header, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )
    with pytest.raises(CorruptBatch, match="checksum is"):
        Batch.parse(pack_header(stamped) + bytes(damaged[61:])).verify()


@given(input_rows=row_lists, first=st.tuples(int64, int16, int32), second=st.tuples(int64, int16, int32))
@quick
def test_stamping_twice_is_stamping_once(
    input_rows: list[Row], first: tuple[int, int, int], second: tuple[int, int, int]
) -> None:
    def stamp(header: BatchHeader, identity: tuple[int, int, int]) -> BatchHeader:
        producer_id, epoch, sequence = identity
        return restamp(header, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)

    (new,) = encoded(input_rows)
    assert stamp(stamp(new.header, first), second) == stamp(new.header, second)


def test_a_stamped_batch_is_sent_with_its_records_untouched() -> None:
    (new,) = encoded([Row(b"k", b"v", (), NOW)])
    stamped = NewBatch(restamp(new.header, producer_id=7, producer_epoch=0, base_sequence=3), new.records)
    assert stamped.parts()[1] is new.records
    assert repr(stamped) == "NewBatch(count=1, codec=none, bytes=70, producer=7)"
    header = Batch.parse(bytes(stamped)).header
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 0, 3)


@given(before=st.binary(min_size=1, max_size=60), data=st.data(), rest=st.binary(max_size=400))
@thorough
def test_the_checksum_of_the_rest_is_never_needed(before: bytes, data: st.DataObject, rest: bytes) -> None:
    after = data.draw(st.binary(min_size=len(before), max_size=len(before)))
    difference = crc32c.crc32c(before) ^ crc32c.crc32c(after)
    assert crc32c.crc32c(before + rest) ^ shift(difference, len(rest)) == crc32c.crc32c(after + rest)


@pytest.mark.parametrize("size", [0, 1, 2, 255, 256, 65_535, 1 << 20, (1 << 24) + 12_345])
def test_the_checksum_is_adjusted_for_any_length(size: int) -> None:
    rest = bytes(size)
    difference = crc32c.crc32c(b"before") ^ crc32c.crc32c(b"after!")
    assert crc32c.crc32c(b"before" + rest) ^ shift(difference, size) == crc32c.crc32c(b"after!" + rest)
