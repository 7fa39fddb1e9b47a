"""Tables of plain text that fit a terminal: times lose their smallest parts, then the widest texts their middle.

Numbers are never shortened, because a part of a number is a wrong number. On a terminal, headings are strong, cells
have their style, and a column without any text is left out. Elsewhere nothing is shortened, left out or styled.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Collection, Sequence

from ottla.cli.output.styles import Style, Styled, paint
from ottla.text import printable

GAP = 2
_LEAST = 8
"""The least width of a shortened column."""
_READABLE = 24
"""As far as this, texts are shortened before times lose more than the fraction of a second."""
_NUMBER = re.compile(r"-|[~<]?[-+]?[0-9][0-9,]*(\.[0-9]+)?( ?%|[A-Za-z]{0,3}(/s)?)")
_TIME = re.compile(
    r"-?|(?P<date>\d{4}-(?P<day>\d\d-\d\d))T(?P<minute>\d\d:\d\d)(?::(?P<second>\d\d)(?:\.\d+)?)?(?P<zone>Z|[+-]\d\d:\d\d)"
)
_SHORTER_TIMES = (
    r"\g<date>T\g<minute>:\g<second>\g<zone>",
    r"\g<date>T\g<minute>\g<zone>",
    r"\g<day>T\g<minute>\g<zone>",
)
"""Without the fraction of the second, the second, the year."""


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

    Columns with a heading in `whole` are not shortened. A cell that is `Styled` looks so on a terminal.
    """
    kept = [
        index for index, heading in enumerate(headings) if width is None or not rows or any(row[index] for row in rows)
    ]
    headings = [headings[index] for index in kept]
    rows = [[row[index] for index in kept] for row in rows]
    styles = [[cell.style if isinstance(cell, Styled) else None for cell in row] for row in rows]
    columns = [_Column(heading, [printable(row[index]) for row in rows]) for index, heading in enumerate(headings)]
    if width is not None:
        room = width - indent - GAP * (len(columns) - 1)
        is_whole = [column.is_number or column.is_time or column.heading in whole for column in columns]
        _shorten_times(columns, is_whole, room)
        widths = _fitted([column.width for column in columns], is_whole, room)
    else:
        widths = [column.width for column in columns]
    strong: list[Style | None] = [Style.STRONG] * len(columns)
    lines = []
    for number, row_styles in enumerate([strong, *styles]):
        cells = [
            _cell(column, number, size, None if width is None else style)
            for column, size, style in zip(columns, widths, row_styles, strict=True)
        ]
        lines.append((" " * indent + (" " * GAP).join(cells)).rstrip())
    return "\n".join(lines)


class _Column:
    """A heading and the cells below it."""

    def __init__(self, heading: str, cells: list[str]) -> None:
        self.heading = heading
        self.cells = cells
        self.is_number = bool(cells) and all(map(_NUMBER.fullmatch, cells))
        self.is_time = not self.is_number and bool(cells) and all(map(_TIME.fullmatch, cells))

    @property
    def width(self) -> int:
        return max(map(len, (self.heading, *self.cells)))


def _cell(column: _Column, number: int, size: int, style: Style | None) -> str:
    """Return the heading, number 0, or a cell, as wide as its column."""
    text = shorten(column.cells[number - 1] if number else column.heading, size)
    space = " " * (size - len(text))
    painted = paint(text, style)
    return space + painted if column.is_number else painted + space


def _shorten_times(columns: Sequence[_Column], is_whole: Sequence[bool], room: int) -> None:
    """Write times shorter, step by step, until everything fits."""
    for step, form in enumerate(_SHORTER_TIMES):
        longest = _READABLE if step else room
        widths = (
            column.width if fixed else min(column.width, longest)
            for column, fixed in zip(columns, is_whole, strict=True)
        )
        if sum(widths) <= room:
            return
        for column in columns:
            if column.is_time:
                # Each step is applied to what the step before left.
                column.cells = [_shorter(cell, form) for cell in column.cells]


def _shorter(cell: str, form: str) -> str:
    match = _TIME.fullmatch(cell)
    return cell if match is None or match["date"] is None else match.expand(form)


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
