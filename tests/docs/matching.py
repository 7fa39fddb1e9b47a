"""Whether a block printed what its page shows: `...` stands for anything, and runs of spaces count as one."""

from __future__ import annotations

import difflib
import re

_ANYTHING = "..."


def matches(expected: str, printed: str) -> bool:
    """Whether the whole of `printed` is what `expected` says.

    A line of nothing but `...` stands for any number of lines, `...` within a line for anything in that line.
    """
    return re.fullmatch(_pattern(expected), _plain(printed)) is not None


def difference(expected: str, printed: str) -> str:
    """Return both, line by line, for the message of a failure."""
    lines = difflib.ndiff(_plain(expected).splitlines(), _plain(printed).splitlines())
    return "\n".join(line.rstrip() for line in lines if not line.startswith("?"))


def _pattern(expected: str) -> str:
    parts = []
    for line in _plain(expected).splitlines():
        if line.strip() == _ANYTHING:
            parts.append(r"(?:[^\n]*\n)*?")
        else:
            parts.append(r"[^\n]*?".join(re.escape(part) for part in line.split(_ANYTHING)) + r"\n")
    return "".join(parts)


def _plain(text: str) -> str:
    """Lines without what the eye does not see; the last one has its end, too."""
    lines = [re.sub(r"[ \t]+", " ", line).rstrip() for line in text.splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    while lines and not lines[0]:
        lines.pop(0)
    return "".join(f"{line}\n" for line in lines)
