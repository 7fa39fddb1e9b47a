"""Runs a command line in a pseudo terminal, and gives what the terminal shows.

A command line comes in, a `Shown` goes out: rows of cells with colors. The command sees a terminal of a fixed width.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyte

COLUMNS = 110
_ROWS = 60
_LIMIT = 120.0
_CHUNK = 65536


@dataclass(frozen=True, slots=True)
class Cell:
    """One character with its looks; `color` is a name of the terminal's palette, or "default"."""

    text: str
    color: str = "default"
    is_bold: bool = False
    is_faint: bool = False


Shown = list[list[Cell]]


class _Faint(pyte.Screen):
    """pyte knows no faint text: here it has a color of its own."""

    def select_graphic_rendition(self, *attributes: int, **settings: Any) -> None:
        """Take the parameters of a style."""
        super().select_graphic_rendition(*[attribute for attribute in attributes if attribute != 2], **settings)
        if 2 in attributes:
            self.cursor.attrs = self.cursor.attrs._replace(fg="faint")


class Terminal:
    """A command in a terminal. Leaving the block ends it."""

    def __init__(self, command: str, *, folder: Path, environment: Mapping[str, str], columns: int = COLUMNS) -> None:
        self._screen = _Faint(columns, _ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self._main, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, columns, 0, 0))
        self._process = subprocess.Popen(
            ["bash", "-c", command],
            stdin=side,
            stdout=side,
            stderr=side,
            cwd=folder,
            env={**environment, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(_ROWS)},
            start_new_session=True,
        )
        os.close(side)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGINT)
        deadline = time.monotonic() + _LIMIT
        while self._process.poll() is None and time.monotonic() < deadline:
            self._read(0.1)  # a command that prints while it ends must not wait for a reader
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._main)

    def until(self, is_enough: Callable[[str], bool]) -> None:
        """Read until the text on the screen is enough, or the command has ended."""
        deadline = time.monotonic() + _LIMIT
        while time.monotonic() < deadline:
            if not self._read(0.2) and self._process.poll() is not None:
                return
            if is_enough(self.text):
                return
        raise TimeoutError(f"the terminal shows:\n{self.text}")

    @property
    def text(self) -> str:
        """What the terminal shows, without colors."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    def shown(self) -> Shown:
        """Return the rows of the terminal, without the empty ones at its end."""
        rows = [
            [_cell(self._screen.buffer[row][column]) for column in range(self._screen.columns)]
            for row in range(self._screen.lines)
        ]
        while rows and not any(cell.text.strip() for cell in rows[-1]):
            rows.pop()
        return rows

    def _read(self, seconds: float) -> bool:
        if not select.select([self._main], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._main, _CHUNK)
        except OSError:  # the other side is closed
            return False
        self._stream.feed(data)
        return bool(data)


def _cell(char: Any) -> Cell:
    is_faint = char.fg == "faint"
    return Cell(char.data, "default" if is_faint else str(char.fg), bool(char.bold), is_faint)
