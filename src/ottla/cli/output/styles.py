"""Colors and weights of what people read: red for what failed, yellow for warnings, green for what is well, faint for
what needs no look.

A text and a style come in, a text with escape sequences goes out. Only views for a terminal style anything; where
output is no terminal, or NO_COLOR is set, `click.echo` takes the sequences out again (`cli/root.py` decides). No
meaning is in a color alone. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from enum import Enum

_RESET = "\x1b[0m"
_SEQUENCE = re.compile("\x1b\\[[0-9;]*m")


class Style(Enum):
    """How a text looks: the parameter of the terminal's escape sequence."""

    BAD = "31"
    WARNING = "33"
    GOOD = "32"
    MOVING = "36"
    """Work that is done, in bars and sparklines."""
    FAINT = "2"
    STRONG = "1"


class Styled(str):
    """A cell of a table with a style; anywhere else, it is its text."""

    __slots__ = ("style",)
    style: Style

    def __new__(cls, text: str, style: Style) -> Styled:
        """Return the text with its style."""
        made = super().__new__(cls, text)
        made.style = style
        return made


def paint(text: str, style: Style | None, *, on: bool = True) -> str:
    """Return the text between the sequences of a style; unchanged if `on` is false, or there is nothing to see."""
    if style is None or not on or not text.strip():
        return text
    return f"\x1b[{style.value}m{text}{_RESET}"


def visible(text: str) -> str:
    """Return the text without sequences."""
    return _SEQUENCE.sub("", text)


def cut(text: str, size: int) -> str:
    """Return at most `size` visible characters of a line. A style that is open there is ended."""
    if len(visible(text)) <= size:
        return text
    parts: list[str] = []
    at = 0
    for match in _SEQUENCE.finditer(text):
        parts += [text[at : match.start()], match[0]]
        at = match.end()
    kept, left = [], size
    for part in [*parts, text[at:]]:
        if part.startswith("\x1b"):
            kept.append(part)
        else:
            kept.append(part[:left])
            left -= len(kept[-1])
    return "".join(kept)


def faint(cells: Iterable[str]) -> list[str]:
    """Return the cells of a row that needs no look."""
    return [Styled(cell, Style.FAINT) for cell in cells]


def state(
    text: str, *, good: Collection[str] = ("ok",), warning: Collection[str] = (), bad: Collection[str] = ()
) -> str:
    """Return a cell that shows a state, by the word that it is. A word in none of the collections has no style."""
    for words, style in ((bad, Style.BAD), (warning, Style.WARNING), (good, Style.GOOD)):
        if text in words:
            return Styled(text, style)
    return text
