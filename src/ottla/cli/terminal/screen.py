"""Whole screens that are drawn again in place, and whether colors are wanted.

A text comes in, and goes to standard output: on a terminal over the last one, elsewhere behind it. Lines that do not
fit the height of the terminal are left out.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import TextIO

import click

from ottla.cli.output.styles import visible

_HOME, _END_OF_LINE, _BELOW, _ALL = "\x1b[H", "\x1b[K", "\x1b[J", "\x1b[2J"


CLEAR = "\r\x1b[K"
"""Empties the line at the cursor."""


def has_colors() -> bool:
    """Whether text on a terminal may have styles: not with NO_COLOR, and not where the terminal knows none."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def is_drawn_on(stream: TextIO | None) -> bool:
    """Return whether what is shown there can be drawn over: on a terminal that knows how."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


class Screen:
    """Shows a text again and again. With `is_plain`, or where nothing can be drawn over, one below the other."""

    def __init__(self, *, is_plain: bool = False) -> None:
        self._is_live = not is_plain and is_drawn_on(sys.stdout)
        self._is_empty = True

    def show(self, text: str) -> None:
        """Show a text instead of the last one."""
        if not self._is_live:
            click.echo(text)
            return
        size = shutil.get_terminal_size()
        shown = text if has_colors() else visible(text)
        lines = "".join(f"{line}{_END_OF_LINE}\n" for line in _fitting(shown, size.columns, size.lines - 1))
        clear, self._is_empty = _ALL if self._is_empty else "", False
        # Each line is cleared only behind its end, so that nothing flickers.
        click.echo(clear + _HOME + lines + _BELOW, nl=False, color=True)


def _fitting(text: str, columns: int, rows: int) -> list[str]:
    """Return the first lines, as many as fit; long lines take several rows."""
    fitting = []
    for line in text.splitlines():
        rows -= max(1, -(-len(visible(line)) // max(1, columns)))
        if rows < 0:
            break
        fitting.append(line)
    return fitting
