"""Cuts the bytes of a connection into response frames. It never reads a socket itself.

The owner receives into `space()` and reports the count to `received()`, which returns the complete frames. Small
frames are copied out of one reused buffer; a large frame gets a buffer of its own and is received straight into
it. A frame size that no broker would send is a `WireError`, and memory grows only as bytes actually arrive.
"""

from __future__ import annotations

import threading
import weakref
from struct import Struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ottla.errors import Advice, WireError

HANDSHAKE_FRAME_BYTES = 1 << 20
"""The limit until the handshake has shown that the other side is a broker. No response before that is nearly as
large."""
MAX_FRAME_BYTES = 1 << 30
_INBOX_BYTES = 1 << 16
_TRUSTED_BYTES = 1 << 26
"""A frame up to this size (64 MiB) is allocated at once. For a larger one the buffer doubles as data arrives."""
_ROUND_BYTES = 1 << 20
_SIZE = Struct(">i")


class TlsAnswered(WireError):
    """The other side sent a TLS record instead of a frame."""


class _Kept(NamedTuple):
    """Memory, and a weak reference to the array that was lent: only views of the memory keep that array alive."""

    memory: npt.NDArray[np.uint8]
    user: weakref.ref[npt.NDArray[np.uint8]]


class Buffers:
    """A memory pool for large frames: memory without a live view is reused, up to `keep_bytes`.

    The system zeroes fresh memory, which costs a third of receiving into it. Connections and threads may share a pool.
    """

    def __init__(self, keep_bytes: int = 0) -> None:
        self._keep_bytes = keep_bytes
        self._kept: list[_Kept] = []
        self._lock = threading.RLock()  # reentrant: a signal handler may interrupt a call of its own thread

    @property
    def kept_bytes(self) -> int:
        """The size of the pool, lent memory included."""
        return sum(len(kept.memory) for kept in self._kept)

    def take(self, size_bytes: int) -> npt.NDArray[np.uint8]:
        """Return a buffer of exactly this size."""
        with self._lock:
            return self._take(size_bytes)

    def _take(self, size_bytes: int) -> npt.NDArray[np.uint8]:
        for number, (memory, user) in enumerate(self._kept):
            if size_bytes <= len(memory) <= 2 * size_bytes and user() is None:
                lent = _lent(memory, size_bytes)
                self._kept[number] = _Kept(memory, weakref.ref(lent))
                return lent
        memory = np.empty(-(-size_bytes // _ROUND_BYTES) * _ROUND_BYTES, np.uint8)
        lent = _lent(memory, size_bytes)
        self._make_room(len(memory))
        if len(memory) <= self._keep_bytes:
            self._kept.append(_Kept(memory, weakref.ref(lent)))
        return lent

    def _make_room(self, size_bytes: int) -> None:
        while self._kept and self.kept_bytes + size_bytes > self._keep_bytes:
            self._kept.pop(0)


def _lent(memory: npt.NDArray[np.uint8], size_bytes: int) -> npt.NDArray[np.uint8]:
    """Return an array over the memory that lives as long as any view of it.

    A slice of `memory` would not do: the base of a view of a slice is the whole array, not the slice. The base of this
    array is a memoryview, so its views keep the array itself alive.
    """
    return np.frombuffer(memory.data, np.uint8, size_bytes)


class Frames:
    """The receiving state of one connection."""

    def __init__(self, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        self.buffers = Buffers()
        self._inbox = bytearray(_INBOX_BYTES)
        self._start = 0
        self._end = 0
        self._large: npt.NDArray[np.uint8] | None = None
        self._large_size = 0
        self._large_filled = 0

    def space(self) -> memoryview:
        """Return the memory to receive the next bytes into."""
        if self._large is not None:
            return self._large.data[self._large_filled :]
        return memoryview(self._inbox)[self._end :]

    def received(self, count: int) -> list[memoryview]:
        """Return the frames, without their sizes, that `count` more bytes in `space()` complete.

        Raises `WireError` if a frame size is implausible.
        """
        if self._large is not None:
            return self._grow_large(count)
        self._end += count
        frames: list[memoryview] = []
        while self._end - self._start >= 4:
            size = self._frame_size()
            first = self._start + 4
            if first + size > self._end:
                self._make_room(size)
                break
            frames.append(memoryview(bytes(memoryview(self._inbox)[first : first + size])))
            self._start = first + size
        self._compact()
        return frames

    @property
    def inside_frame(self) -> bool:
        """Whether the bytes received so far end in the middle of a frame."""
        return self._large is not None or self._end > self._start

    def _frame_size(self) -> int:
        size: int = _SIZE.unpack_from(self._inbox, self._start)[0]
        if not 4 <= size <= self.max_frame_bytes:
            raise _refusal(bytes(self._inbox[self._start : self._start + 4]), size, self.max_frame_bytes)
        return size

    def _make_room(self, size: int) -> None:
        """Move a frame that does not fit into the inbox to a buffer of its own."""
        if 4 + size <= _INBOX_BYTES:
            return
        part = np.frombuffer(self._inbox, np.uint8, self._end - self._start - 4, self._start + 4)
        self._large = self.buffers.take(min(size, _TRUSTED_BYTES))
        self._large[: len(part)] = part
        self._large_size, self._large_filled = size, len(part)
        self._start = self._end = 0

    def _compact(self) -> None:
        """Move the remaining bytes to the front, so that the rest of a small frame always fits."""
        if self._start:
            left = self._end - self._start
            self._inbox[:left] = self._inbox[self._start : self._end]
            self._start, self._end = 0, left

    def _grow_large(self, count: int) -> list[memoryview]:
        assert self._large is not None
        self._large_filled += count
        if self._large_filled < len(self._large):
            return []
        if self._large_filled == self._large_size:
            frame, self._large = self._large.data, None
            return [frame]
        larger = np.empty(min(self._large_size, 2 * len(self._large)), np.uint8)
        larger[: self._large_filled] = self._large
        self._large = larger
        return []


def _refusal(head: bytes, size: int, limit: int) -> WireError:
    """Guess what the other side is from the four bytes that should have been a frame size."""
    if head == b"HTTP":
        return WireError("the port speaks HTTP, it is not a Kafka broker")
    # Record types alert and handshake, then the major version of SSL 3 and of every TLS since.
    if head[0] in (0x15, 0x16) and head[1] == 0x03:
        return TlsAnswered(f"the port speaks TLS: {Advice.USE_TLS}")
    return WireError(f"the response claims a size of {size} bytes (4 to {limit} are allowed): not a Kafka broker?")
