"""Sentences on a terminal: broken between words, with the lines after the first one indented. Pure."""

from __future__ import annotations

import textwrap

_LEAST = 20
"""What is narrower than this is not worth breaking for."""


def wrapped(text: str, width: int | None, *, indent: int = 0, before: int = 0) -> str:
    """Return the text in lines of at most `width` characters; unchanged without a width, which is no terminal.

    `before` is how much of the first line is taken already, and `indent` begins each of the others.
    """
    if width is None or width - indent < _LEAST:
        return text
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=" " * before,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines)[before:]
