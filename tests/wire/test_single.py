"""A batch of one record is, byte for byte, what the kernels would make of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.wire.columns import from_bytes
from ottla.wire.encode import encode
from ottla.wire.restamp import restamp
from ottla.wire.single import one_record

CONTENT = st.one_of(
    st.none(), st.binary(max_size=200), st.integers(60, 70).map(bytes), st.sampled_from([8191, 8192, 70_000]).map(bytes)
)


@given(value=CONTENT, key=CONTENT, now_ms=st.integers(0, 1 << 50))
def test_it_is_what_the_kernels_would_make(value: bytes | None, key: bytes | None, now_ms: int) -> None:
    (expected,) = encode(from_bytes([value], keys=[key]), now_ms=now_ms)
    assert bytes(one_record(value, key, now_ms=now_ms)) == bytes(expected)


@given(
    value=CONTENT,
    producer=st.tuples(st.integers(0, 1 << 60), st.integers(0, (1 << 15) - 1), st.integers(0, (1 << 31) - 1)),
)
def test_it_bears_its_producer(value: bytes | None, producer: tuple[int, int, int]) -> None:
    (plain,) = encode(from_bytes([value]), now_ms=7)
    expected = restamp(plain.header, producer_id=producer[0], producer_epoch=producer[1], base_sequence=producer[2])
    made = one_record(value, None, now_ms=7, producer=producer)
    assert made.header == expected
    assert bytes(made.records) == bytes(plain.records)
