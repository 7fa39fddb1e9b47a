"""Receives many datagrams with one system call, each into its slot of one piece of memory.

Comes in: a socket that does not block. Goes out: how many came, and for each its size, sender and whether it was cut.
No object is made for any of them. Linux only (`recvmmsg`).
"""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import os
import socket
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

# struct mmsghdr on 64-bit Linux, as words: the last two are flags and the length, each 32 bits in 64.
_NAME, _NAME_SIZE, _PIECES, _PIECE_COUNT, _CONTROL, _CONTROL_SIZE, _FLAGS, _LENGTH = range(8)
_WORDS = 8
_HEADER_BYTES = 8 * _WORDS
_LOW = 0xFFFFFFFF
_TRUNCATED, _DO_NOT_WAIT = int(socket.MSG_TRUNC), int(socket.MSG_DONTWAIT)
_NAME_BYTES, _CONTROL_BYTES = 32, 64
_NAME_WORDS = _NAME_BYTES // 8
_OVERFLOWS = 40  # SO_RXQ_OVFL
_CONTROL_HEADER = struct.Struct("@Nii")
_MOST_SOURCES = 10_000
_MAPPED = bytes(10) + b"\xff\xff"


class Slots:
    """Memory for datagrams, and the headers that say so to the system."""

    def __init__(self, slots: int, slot_bytes: int, *, family: int) -> None:
        """Slots for a socket of this family: those of a unix socket have no senders and no control messages."""
        self.count = slots
        self.slot_bytes = slot_bytes
        self.data: npt.NDArray[np.uint8] = np.empty(slots * slot_bytes, np.uint8)
        self.starts = np.arange(slots, dtype=np.int64) * slot_bytes
        self._names = np.zeros((slots, _NAME_WORDS), np.uint64)
        self._controls = np.zeros((slots, _CONTROL_BYTES), np.uint8)
        self._pieces = np.empty((slots, 2), np.uint64)
        self._pieces[:, 0] = self.data.ctypes.data + self.starts.astype(np.uint64)
        self._pieces[:, 1] = slot_bytes
        self._headers = np.zeros((slots, _WORDS), np.uint64)
        self._headers[:, _PIECES] = _addresses(self._pieces)
        self._headers[:, _PIECE_COUNT] = 1
        self._family = family
        if family != socket.AF_UNIX:
            self._headers[:, _NAME] = _addresses(self._names)
            self._headers[:, _CONTROL] = _addresses(self._controls)
        self._address = self._headers.ctypes.data
        self._used = slots
        """How many headers the system has written to."""
        self._receive: Any = ctypes.CDLL(None, use_errno=True).recvmmsg
        self._receive.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p)
        self._texts: dict[bytes, str] = {}

    def receive(self, descriptor: int, first: int) -> int:
        """Receive what is there into the slots from `first` on. Returns how many came, 0 for none. Raises `OSError`."""
        if self._family != socket.AF_UNIX and first == 0:
            self._headers[: self._used, _NAME_SIZE] = _NAME_BYTES
            self._headers[: self._used, _CONTROL_SIZE] = _CONTROL_BYTES
        came: int = self._receive(
            descriptor, self._address + first * _HEADER_BYTES, self.count - first, _DO_NOT_WAIT, None
        )
        if came >= 0:
            self._used = first + came
            return came
        number = ctypes.get_errno()
        if number in (errno.EAGAIN, errno.EINTR):
            return 0
        raise OSError(number, os.strerror(number))

    def sizes(self, count: int) -> npt.NDArray[np.int64]:
        """Return the sizes of the first datagrams."""
        return (self._headers[:count, _LENGTH] & _LOW).astype(np.int64)

    def cut(self, count: int) -> npt.NDArray[np.bool_]:
        """Return which of the first datagrams were larger than their slot."""
        return np.asarray(self._headers[:count, _FLAGS] & _TRUNCATED, np.bool_)

    def overflows(self, count: int) -> int | None:
        """Return how many datagrams the system has dropped on this socket, up to the last one here. None: no word."""
        if self._family == socket.AF_UNIX:
            return None
        size = int(self._headers[count - 1, _CONTROL_SIZE])
        control = self._controls[count - 1, :size].tobytes()
        if len(control) < _CONTROL_HEADER.size + 4:
            return None
        _, level, kind = _CONTROL_HEADER.unpack_from(control)
        if (level, kind) != (socket.SOL_SOCKET, _OVERFLOWS):
            return None
        return int.from_bytes(control[_CONTROL_HEADER.size :][:4], "little")

    def sources(self, count: int) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
        """Return the addresses of the senders, each once, and which one each of the first datagrams has."""
        names = self._names[:count]
        if self._family == socket.AF_INET:
            words, index = np.unique(names[:, 0] >> np.uint64(32), return_inverse=True)
            packed = [int(word).to_bytes(4, "little") for word in words]
        elif self._family == socket.AF_INET6:
            octets = np.ascontiguousarray(names).view(np.uint8).reshape(count, _NAME_BYTES)[:, 8:24]
            found, index = np.unique(np.ascontiguousarray(octets).view("V16").ravel(), return_inverse=True)
            packed = [entry.tobytes() for entry in found]
        else:
            return ("",), np.zeros(count, np.int64)
        return tuple(map(self._text, packed)), index.astype(np.int64)

    def _text(self, packed: bytes) -> str:
        text = self._texts.get(packed)
        if text is None:
            if len(self._texts) >= _MOST_SOURCES:
                self._texts.clear()
            plain = packed[12:] if packed.startswith(_MAPPED) and len(packed) == 16 else packed
            text = self._texts[packed] = str(ipaddress.ip_address(plain))
        return text


def _addresses(table: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Return the address of each row."""
    rows = np.arange(len(table), dtype=np.uint64)
    return np.uint64(table.ctypes.data) + rows * np.uint64(table.strides[0])
