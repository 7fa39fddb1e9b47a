"""Tables of plain text that fit a terminal: columns as wide as needed, the widest texts shortened in their middle.

Headings and rows of strings come in, whatever they hold, printable lines go out. Numbers are never shortened, for half
a number is a wrong one; and where the output is no terminal nothing is. It prints nothing.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence

from ottla.text import printable

GAP = 2
_LEAST = 8
"""Characters that a shortened column keeps."""
_NUMBER = re.compile(r"-|[-+]?[0-9][0-9,]*(\.[0-9]+)?[A-Za-z]{0,3}")


def terminal_width() -> int | None:
    """Columns of the terminal that standard output is, None when it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, width: int | None, indent: int = 0) -> str:
    """One line for the headings and one for each row; columns of nothing but numbers stand on the right."""
    rows = [[printable(cell) for cell in row] for row in rows]
    columns = [[heading, *(row[at] for row in rows)] for at, heading in enumerate(headings)]
    numeric = [bool(rows) and all(map(_NUMBER.fullmatch, column[1:])) for column in columns]
    natural = [max(map(len, column)) for column in columns]
    room = None if width is None else width - indent - GAP * (len(columns) - 1)
    widths = natural if room is None else _fitted(natural, numeric, room)
    lines = []
    for row in (headings, *rows):
        cells = [
            shorten(cell, size).rjust(size) if right else shorten(cell, size).ljust(size)
            for cell, size, right in zip(row, widths, numeric, strict=True)
        ]
        lines.append((" " * indent + (" " * GAP).join(cells)).rstrip())
    return "\n".join(lines)


def shorten(text: str, size: int) -> str:
    """The text, or its beginning and end where it is longer than `size`."""
    if len(text) <= size:
        return text
    tail = (size - 1) // 2
    return text[: size - 1 - tail] + "…" + text[len(text) - tail :]


def _fitted(natural: Sequence[int], numeric: Sequence[bool], room: int) -> list[int]:
    """Widths that fit, taken from the widest column of texts first, as far as they can be shortened."""
    widths = list(natural)
    while sum(widths) > room:
        texts = [at for at, size in enumerate(widths) if not numeric[at] and size > _LEAST]
        if not texts:
            break
        widest = max(texts, key=lambda at: widths[at])
        widths[widest] -= 1
    return widths
