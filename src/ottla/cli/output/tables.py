"""Tables of plain text that fit a terminal: the widest texts are shortened in their middle.

Numbers are never shortened, because a part of a number is a wrong number. Nothing is shortened if the output is not a
terminal.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Collection, Sequence

from ottla.text import printable

GAP = 2
_LEAST = 8
"""The least width of a shortened column."""
_NUMBER = re.compile(r"-|[-+]?[0-9][0-9,]*(\.[0-9]+)?[A-Za-z]{0,3}")


def terminal_width() -> int | None:
    """Return the width of the terminal, None if standard output is not a terminal, or was closed by the caller."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    return shutil.get_terminal_size().columns if is_terminal else None


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    width: int | None,
    indent: int = 0,
    whole: Collection[str] = (),
) -> str:
    """Return a line of headings and a line for each row; columns of numbers are right-aligned.

    Columns with a heading in `whole` are not shortened.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    columns = [[heading, *(row[index] for row in rows)] for index, heading in enumerate(headings)]
    numeric = [bool(rows) and all(map(_NUMBER.fullmatch, column[1:])) for column in columns]
    is_whole = [is_number or heading in whole for heading, is_number in zip(headings, numeric, strict=True)]
    natural = [max(map(len, column)) for column in columns]
    room = None if width is None else width - indent - GAP * (len(columns) - 1)
    widths = natural if room is None else _fitted(natural, is_whole, room)
    lines = []
    for row in (headings, *rows):
        cells = [
            shorten(cell, size).rjust(size) if right else shorten(cell, size).ljust(size)
            for cell, size, right in zip(row, widths, numeric, strict=True)
        ]
        lines.append((" " * indent + (" " * GAP).join(cells)).rstrip())
    return "\n".join(lines)


def shorten(text: str, size: int) -> str:
    """Return the text; only its start and end if it is longer than `size`."""
    if len(text) <= size:
        return text
    tail = (size - 1) // 2
    return text[: size - 1 - tail] + "…" + text[len(text) - tail :]


def _fitted(natural: Sequence[int], is_whole: Sequence[bool], room: int) -> list[int]:
    """Return widths that fit; the widest columns of text are shortened first."""
    widths = list(natural)
    while sum(widths) > room:
        texts = [index for index, size in enumerate(widths) if not is_whole[index] and size > _LEAST]
        if not texts:
            break
        widest = max(texts, key=lambda index: widths[index])
        widths[widest] -= 1
    return widths
