"""Tables of plain text that fit a terminal: durations and times lose their smallest parts, then columns are left out,
then the widest texts lose their middle.

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
_DURATION = re.compile(r"-?|(?P<most>[~<]?(?:\d+(?:ms|[dhms])){1,2})(?:\d+(?:ms|[dhms]))*|[~<]?[0-9][0-9,]*(\.[0-9]+)?")
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
    least: Sequence[str] = (),
) -> str:
    """Return a line of headings and a line for each row; columns of numbers are right-aligned.

    Columns with a heading in `whole` are not shortened. Where not all columns fit, those without a value are left out,
    then those in `least`, in this order. A cell that is `Styled` looks so on a terminal.
    """
    columns = [_Column(heading, [row[index] for row in rows]) for index, heading in enumerate(headings)]
    if width is not None:
        columns = [column for column in columns if not rows or any(column.cells)]
        _shorten_durations(columns, width - indent)
        _shorten_times(columns, [column.is_fixed(whole) for column in columns], _room(columns, width - indent))
        columns = _most_worth(columns, width - indent, whole=whole, least=least)
        is_fixed = [column.is_fixed(whole) for column in columns]
        widths = _fitted([column.width for column in columns], is_fixed, _room(columns, width - indent))
    else:
        widths = [column.width for column in columns]
    lines = []
    for number in range(len(rows) + 1):
        cells = [
            _cell(column, number, size, is_styled=width is not None)
            for column, size in zip(columns, widths, strict=True)
        ]
        lines.append((" " * indent + (" " * GAP).join(cells)).rstrip())
    return "\n".join(lines)


class _Column:
    """A heading and the cells below it."""

    def __init__(self, heading: str, cells: Sequence[str]) -> None:
        self.heading = heading
        self.styles = [cell.style if isinstance(cell, Styled) else None for cell in cells]
        self.cells = [printable(cell) for cell in cells]
        self.is_number = bool(cells) and all(map(_NUMBER.fullmatch, self.cells))
        self.is_time = not self.is_number and bool(cells) and all(map(_TIME.fullmatch, self.cells))
        self.is_duration = not self.is_number and bool(cells) and all(map(_DURATION.fullmatch, self.cells))

    @property
    def width(self) -> int:
        return max(map(len, (self.heading, *self.cells)))

    @property
    def has_values(self) -> bool:
        return not self.cells or any(cell not in ("", "-") for cell in self.cells)

    def is_fixed(self, whole: Collection[str]) -> bool:
        """Return whether it keeps its width."""
        return self.is_number or self.is_time or self.is_duration or self.heading in whole


def _room(columns: Sequence[_Column], width: int) -> int:
    """Return what columns have between their gaps."""
    return width - GAP * (len(columns) - 1)


def _shorten_durations(columns: Sequence[_Column], width: int) -> None:
    """Leave two units of durations, unless everything fits."""
    if sum(column.width for column in columns) > _room(columns, width):
        for column in columns:
            if column.is_duration:
                found = map(_DURATION.fullmatch, column.cells)
                column.cells = [
                    cell if match is None else match["most"] or cell
                    for cell, match in zip(column.cells, found, strict=True)
                ]


def _most_worth(columns: list[_Column], width: int, *, whole: Collection[str], least: Sequence[str]) -> list[_Column]:
    """Return the columns that stay: enough are left out that the others can be read."""
    leaving = [column for column in columns if not column.has_values]
    leaving += [column for name in least for column in columns if column.heading == name and column.has_values]
    for column in leaving:
        needed = (
            other.width if other.is_fixed(whole) or other.heading in least else min(other.width, _READABLE)
            for other in columns
        )
        if sum(needed) <= _room(columns, width):
            break
        columns = [other for other in columns if other is not column]
    return columns


def _cell(column: _Column, number: int, size: int, *, is_styled: bool) -> str:
    """Return the heading, number 0, or a cell, as wide as its column."""
    text = shorten(column.cells[number - 1] if number else column.heading, size)
    space = " " * (size - len(text))
    painted = paint(text, (column.styles[number - 1] if number else Style.STRONG) if is_styled else None)
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
