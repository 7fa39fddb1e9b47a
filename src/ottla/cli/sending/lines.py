"""Reads standard input and files as blocks of whole lines, as bytes, and never more than a block and a line in memory.

Comes in: names of files, `-` for standard input. Goes out: blocks with the place of every line end, lines that are too
long to be a record, and None whenever nothing came for a moment. Nothing is decoded; no line waits for a full block.
"""

from __future__ import annotations

import fcntl
import os
import select
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ottla.cli import Misuse

STDIN = "-"
_BLOCK_BYTES = 1 << 20
_IDLE_SECONDS = 0.2
_NEWLINE = ord("\n")


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines of one source: line `first + i` ends at `data[stops[i]]`, which is a newline."""

    source: str
    first: int
    data: bytes
    stops: npt.NDArray[np.int64]

    @property
    def numbers(self) -> range:
        """The line numbers, counted from 1."""
        return range(self.first, self.first + len(self.stops))


@dataclass(frozen=True, slots=True)
class TooLong:
    """A line that was skipped because no record can be so large."""

    source: str
    line: int
    size_bytes: int


def check_input(files: tuple[str, ...]) -> None:
    """Refuses standard input that is closed, or asked for twice; else a file opened later would be taken for it."""
    if files.count(STDIN) > 1:
        raise Misuse("standard input (-) is named twice")
    if (not files or STDIN in files) and sys.stdin is None:
        raise Misuse("standard input is closed: name files to read")


def blocks(file: str, *, longest_bytes: int) -> Iterator[Block | TooLong | None]:
    """The lines of a file, or of standard input."""
    if file == STDIN:
        yield from _split(_Pieces(sys.stdin.fileno()), "stdin", longest_bytes)
        return
    with open(file, "rb", buffering=0) as opened:
        yield from _split(_Pieces(opened.fileno()), file, longest_bytes)


class _Pieces:
    """What can be read at the moment, in pieces of at most about a block."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._ended = False
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        try:  # a pipe holds 64 KB, which is a small block
            fcntl.fcntl(fd, getattr(fcntl, "F_SETPIPE_SZ", 1031), _BLOCK_BYTES)
        except OSError:
            pass  # no pipe, or not allowed

    def is_at_end(self) -> bool:
        """Whether nothing more will come."""
        return self._ended

    def read(self) -> bytes:
        """All that is there; nothing after a moment without input, or at the end."""
        piece = self._read(_BLOCK_BYTES) if self._poll.poll(_IDLE_SECONDS * 1000) else b""
        while piece and len(piece) < _BLOCK_BYTES and not self._ended and self._poll.poll(0):
            piece += self._read(_BLOCK_BYTES - len(piece))
        return piece

    def _read(self, size: int) -> bytes:
        try:
            read = os.read(self._fd, size)
        except BlockingIOError:  # somebody else has read it
            return b""
        self._ended = not read
        return read


def _split(pieces: _Pieces, source: str, longest_bytes: int) -> Iterator[Block | TooLong | None]:
    number = 1
    held = bytearray()  # of a line whose end has not come
    skipped = 0  # bytes of a line that is too long
    while not pieces.is_at_end():
        piece = pieces.read()
        if not piece:
            yield None
            continue
        if pieces.is_at_end() and not piece.endswith(b"\n"):
            piece += b"\n"  # the last line is one, whatever it ends with
        if skipped:
            end = piece.find(b"\n")
            if end < 0:
                skipped += len(piece)
                continue
            yield TooLong(source, number, skipped + end)
            number, skipped, piece = number + 1, 0, piece[end + 1 :]
        end = piece.rfind(b"\n") + 1
        if end:
            block = _block(source, number, bytes(held) + piece[:end] if held else piece[:end])
            held.clear()
            yield block
            number += len(block.stops)
        held += piece[end:]
        if len(held) > longest_bytes:
            skipped = len(held)
            held.clear()
    if skipped:
        yield TooLong(source, number, skipped)
    elif held:
        yield _block(source, number, bytes(held) + b"\n")


def _block(source: str, first: int, data: bytes) -> Block:
    return Block(source, first, data, np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE))
