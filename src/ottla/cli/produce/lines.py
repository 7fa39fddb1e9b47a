"""Reads standard input and files as blocks of whole lines, with at most a block and a line in memory.

Yields blocks with the positions of line ends, lines that are too long for a record, and None whenever no input arrives
for a moment. Nothing is decoded; no line waits for a full block.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ottla.cli.errors import UsageError

STDIN = "-"
_BLOCK_BYTES = 1 << 20
_IDLE_SECONDS = 0.2
_NEWLINE = ord("\n")
_TABLES = (
    (b"PAR1", (".parquet",), "a Parquet file", "pyarrow.parquet.read_table"),
    (b"ARROW1", (".arrow", ".feather"), "an Arrow file", "pyarrow.feather.read_table"),
)
"""Files that begin and end so, or have these names."""
_TABLE_BEGINS = {b"PAR1\x15": _TABLES[0][2], b"ARROW1\0\0": _TABLES[1][2]}
"""What such a file begins with where its end cannot be seen."""


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
    """A line that was skipped because it is too long for a record."""

    source: str
    line: int
    size_bytes: int


def check_input(files: tuple[str, ...]) -> None:
    """Raise `UsageError` if standard input is closed or named twice: a file opened later would be read in its place."""
    if files.count(STDIN) > 1:
        raise UsageError("standard input (-) is named twice")
    if (not files or STDIN in files) and sys.stdin is None:
        raise UsageError("standard input is closed: name files to read")


def check_lines(files: tuple[str, ...], *, topic: str, bootstrap: str) -> None:
    """Raise `UsageError` for a file with a table: its bytes are no lines."""
    for file in files:
        kind = _table_kind(file) if file != STDIN and os.path.isfile(file) else None
        if kind is not None:
            name, read = kind
            modules = f"import ottla, {read.rpartition('.')[0]}"
            raise UsageError(
                f"{file} is {name}, not lines. Python sends its columns key and value, after '{modules}':\n"
                f"  with ottla.Producer({bootstrap!r}) as producer:"
                f" producer.send_table({topic!r}, {read}({file!r})).result()"
            )


def _table_kind(file: str) -> tuple[str, str] | None:
    with open(file, "rb") as opened:
        for magic, endings, name, read in _TABLES:
            opened.seek(0)
            if opened.read(len(magic)) != magic:
                continue
            opened.seek(-len(magic), os.SEEK_END)
            if file.endswith(endings) or opened.read() == magic:
                return name, read
    return None


def blocks(file: str, *, longest_bytes: int) -> Iterator[Block | TooLong | None]:
    """Yield the lines of a file, or of standard input."""
    if file == STDIN:
        yield from _split(_Pieces(sys.stdin.fileno()), "stdin", longest_bytes)
        return
    with open(file, "rb", buffering=0) as opened:
        yield from _split(_Pieces(opened.fileno()), file, longest_bytes)


def _check_begin(piece: bytes) -> None:
    """Raise `OSError` for a table that comes through standard input or a pipe."""
    for begin, name in _TABLE_BEGINS.items():
        if piece.startswith(begin):
            raise OSError(errno.EINVAL, f"it is {name}, not lines: name the file to see how Python sends it")


class _Pieces:
    """Reads what is available, in pieces of at most about a block."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._ended = False
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        try:  # a pipe holds 64 KB, which is a small block
            fcntl.fcntl(fd, getattr(fcntl, "F_SETPIPE_SZ", 1031), _BLOCK_BYTES)
        except OSError:
            pass  # not a pipe, or not allowed

    def is_at_end(self) -> bool:
        """Return whether the input has ended."""
        return self._ended

    def read(self) -> bytes:
        """Return what is available; nothing after a moment without input, or at the end."""
        piece = self._read(_BLOCK_BYTES) if self._poll.poll(_IDLE_SECONDS * 1000) else b""
        while piece and len(piece) < _BLOCK_BYTES and not self._ended and self._poll.poll(0):
            piece += self._read(_BLOCK_BYTES - len(piece))
        return piece

    def _read(self, size: int) -> bytes:
        try:
            read = os.read(self._fd, size)
        except BlockingIOError:  # another process has read it
            return b""
        self._ended = not read
        return read


def _split(pieces: _Pieces, source: str, longest_bytes: int) -> Iterator[Block | TooLong | None]:
    number, has_begun = 1, False
    held = bytearray()  # a line without its end yet
    skipped = 0  # bytes of a line that is too long
    while not pieces.is_at_end():
        piece = pieces.read()
        if not piece:
            yield None
            continue
        if not has_begun:
            has_begun = True
            _check_begin(piece)
        if pieces.is_at_end() and not piece.endswith(b"\n"):
            piece += b"\n"  # the last line counts even without a newline
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
