"""Frames come out of a stream whole, however the network splits it."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.errors import WireError
from ottla.net.frames import HANDSHAKE_FRAME_BYTES, Buffers, Frames, TlsAnswered


def feed(frames: Frames, data: bytes, *, at_most: int = 1 << 30) -> list[bytes]:
    """Receive `data` in pieces of `at_most` bytes, or of the available space."""
    complete: list[bytes] = []
    while data:
        space = frames.space()
        assert len(space) > 0
        count = min(len(space), len(data), at_most)
        space[:count] = data[:count]
        complete += [bytes(frame) for frame in frames.received(count)]
        data = data[count:]
    return complete


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


sizes = st.one_of(st.integers(4, 200), st.sampled_from([65531, 65532, 65533, 70000]))


@settings(deadline=None, max_examples=60)
@given(st.lists(sizes, max_size=5), st.integers(1, 100_000), st.integers(0, 1000))
def test_any_cut_gives_the_same_frames(lengths: list[int], at_most: int, seed: int) -> None:
    chance = random.Random(seed)
    payloads = [chance.randbytes(length) for length in lengths]
    stream = b"".join(map(framed, payloads))
    pieces = max(at_most, len(stream) // 200)  # keeps the number of pieces bounded
    frames = Frames()
    assert feed(frames, stream, at_most=pieces) == payloads
    assert not frames.inside_frame


def test_a_frame_beyond_what_is_trusted_grows_as_it_arrives() -> None:
    payload = bytes(range(256)) * 300_000  # 77 MB
    frames = Frames()
    stream = memoryview(struct.pack(">i", len(payload)) + payload)
    complete: list[memoryview] = []
    while stream:
        space = frames.space()
        count = min(len(space), len(stream), 1 << 24)
        space[:count] = stream[:count]
        complete += frames.received(count)
        stream = stream[count:]
    [frame] = complete
    assert frame == payload


def test_a_size_that_lies_does_not_allocate_what_it_claims() -> None:
    frames = Frames()
    tracemalloc.start()
    try:
        assert feed(frames, struct.pack(">i", 1 << 30) + b"x" * 70_000) == []
        assert tracemalloc.get_traced_memory()[1] < 80 << 20
    finally:
        tracemalloc.stop()
    assert frames.inside_frame


def test_earlier_frames_are_not_overwritten_by_later_ones() -> None:
    frames = Frames()
    first = _receive(frames, framed(b"first"))
    for _ in range(20_000):
        _receive(frames, framed(b"later"))
    assert bytes(first) == b"first"


def _receive(frames: Frames, data: bytes) -> memoryview:
    frames.space()[: len(data)] = data
    [frame] = frames.received(len(data))
    return frame


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 3, HANDSHAKE_FRAME_BYTES + 1, 2**31 - 1])
def test_a_size_that_no_broker_sends_is_refused(size: int) -> None:
    frames = Frames(max_frame_bytes=HANDSHAKE_FRAME_BYTES)
    with pytest.raises(WireError, match=f"claims a size of {size} bytes"):
        feed(frames, struct.pack(">i", size))


def test_http_and_tls_are_recognised() -> None:
    with pytest.raises(WireError, match="HTTP"):
        feed(Frames(max_frame_bytes=HANDSHAKE_FRAME_BYTES), b"HTTP/1.1 400 Bad Request\r\n")
    with pytest.raises(TlsAnswered, match=r"Security\(tls="):
        feed(Frames(max_frame_bytes=HANDSHAKE_FRAME_BYTES), b"\x15\x03\x03\x00\x02\x02\x50")


def large(frames: Frames, byte: int, size: int = 3_000_000) -> memoryview:
    """Receive one frame of equal bytes."""
    stream = memoryview(framed(bytes([byte]) * size))
    while True:
        space = frames.space()
        count = min(len(space), len(stream))
        space[:count] = stream[:count]
        stream = stream[count:]
        for frame in frames.received(count):
            return frame


def test_memory_with_a_view_is_not_used_again() -> None:
    frames = Frames()
    frames.buffers = Buffers(16_000_000)
    first = large(frames, 1)
    part = first[10:20]
    del first
    array = np.frombuffer(large(frames, 2), np.uint8)
    assert set(large(frames, 3)) == {3}
    assert set(part) == {1}
    assert set(array.tolist()) == {2}


@pytest.mark.parametrize(
    "look",
    [
        pytest.param(lambda frame: frame[3:7][1:], id="part of a part"),
        pytest.param(lambda frame: frame.cast("b"), id="cast"),
        pytest.param(lambda frame: np.frombuffer(frame, np.uint8)[5:][::2].view(np.int8)[1:], id="views of an array"),
        pytest.param(lambda frame: np.asarray(frame.obj)[5:][1:], id="parts of the array behind it"),
        pytest.param(lambda frame: pa.py_buffer(frame[8:16]).slice(1, 4), id="Arrow"),
        pytest.param(lambda frame: pa.array(np.frombuffer(frame[8:16], np.uint8)), id="an Arrow array"),
        pytest.param(lambda frame: iter(frame), id="an iterator"),
    ],
)
def test_every_kind_of_view_keeps_its_memory(look: Callable[[memoryview], object]) -> None:
    """A bug: reuse depended on CPython's reference counts, which the next version counts differently."""
    frames = Frames()
    frames.buffers = Buffers(64_000_000)
    held = look(large(frames, 1))
    for byte in (2, 3, 4):
        large(frames, byte)
    assert set(_numbers(held)) == {1}
    del held
    places = {np.frombuffer(large(frames, byte), np.uint8).ctypes.data for byte in range(6)}
    assert len(places) == 1, "and lets it go"


def _numbers(held: object) -> list[int]:
    if isinstance(held, pa.Buffer):
        return list(held.to_pybytes())
    return held.to_pylist() if isinstance(held, pa.Array) else list(held)  # type: ignore[call-overload, no-any-return]


def test_memory_without_a_view_is_used_again() -> None:
    frames = Frames()
    frames.buffers = Buffers(16_000_000)
    places = set()
    for byte in range(20):
        frame = large(frames, byte)
        places.add(np.frombuffer(frame, np.uint8).ctypes.data)
        del frame
    assert len(places) == 1


def test_no_more_memory_is_kept_than_allowed() -> None:
    frames = Frames()
    frames.buffers = Buffers(8_000_000)
    held = [large(frames, byte) for byte in range(5)]
    assert 0 < frames.buffers.kept_bytes <= 8_000_000
    assert [set(frame) for frame in held] == [{byte} for byte in range(5)]


def test_connections_can_share_what_is_kept() -> None:
    one, other = Frames(), Frames()
    one.buffers = other.buffers = Buffers(8_000_000)
    first = large(one, 1)
    place = np.frombuffer(first, np.uint8).ctypes.data
    second = large(other, 2)
    assert (set(first), set(second)) == ({1}, {2})
    del first
    assert np.frombuffer(large(other, 3), np.uint8).ctypes.data == place
    assert one.buffers.kept_bytes <= 8_000_000


def test_nothing_is_kept_unless_asked_for() -> None:
    frames = Frames()
    large(frames, 1)
    assert frames.buffers.kept_bytes == 0
