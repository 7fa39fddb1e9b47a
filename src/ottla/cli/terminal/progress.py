"""A live line of progress on stderr, and messages that do not disturb it.

A thread draws the line, so that it stays current while the command waits; the block starts and joins the thread. A
reader of stderr that has gone never stops the command.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import click

from ottla.cli.output.styles import cut, visible
from ottla.cli.terminal.screen import CLEAR, has_colors, is_drawn_on
from ottla.text import printable

_EVERY_SECONDS = 0.2


class LiveLine:
    """A line that is redrawn while the block runs, if stderr is a terminal that can be drawn on."""

    def __init__(self, status: Callable[[], str], *, is_shown: bool = True) -> None:
        self._status = status
        self._is_shown = is_shown
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._is_shown and is_drawn_on(sys.stderr):
            self._thread = threading.Thread(target=self._draw, name="ottla-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._write(CLEAR)

    @property
    def is_live(self) -> bool:
        """Whether the line is shown."""
        return self._thread is not None

    def say(self, text: str) -> None:
        """Print a message on its own lines."""
        clear = CLEAR if self._thread is not None else ""
        self._write(clear + printable(text, keep="\n") + "\n")

    def _draw(self) -> None:
        while not self._ended.wait(_EVERY_SECONDS):
            width = shutil.get_terminal_size().columns - 1
            status = self._status()
            self._write(CLEAR + cut(status if has_colors() else visible(status), width))

    def _write(self, text: str) -> None:
        with self._lock:
            try:
                # Not for click to take out: only a terminal gets sequences.
                click.echo(text, nl=False, err=True, color=True)
            except OSError:
                # The unwritten text stays in the buffer, and would fail again when the interpreter exits.
                sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - open until then
