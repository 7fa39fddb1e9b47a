"""Words that do not come back: where one of them stands, a plain one says it better.

Reads docstrings, comments and texts of the source, and the documents. `docs/`, the README and the rooms in `ROOMS` are
held against the list.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
BANNED = {
    "whoever": "name who it is: the caller, the reader, the next owner",
    "whomever": "name who it is",
    "nobody": "say who does not",
    "somebody": "name who it is",
    "anew": "again",
    "is told": "say who tells whom, or: gets an error, is reported",
    "are told": "say who tells whom",
    "hears of": "is notified of, gets",
    "that which": "what",
    "so many": "this many, N",
    "such a one": "name it",
    "exclude one another": "are mutually exclusive",
}
_PATTERN = re.compile(r"\b(" + "|".join(map(re.escape, BANNED)) + r")\b", re.IGNORECASE)


def problems(rooms: tuple[str, ...], pages: tuple[str, ...]) -> Iterator[str]:
    """Each banned word with its place and what to write instead."""
    for room in rooms:
        path = ROOT / "src" / "ottla" / room
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            for number, text in _prose(file):
                yield from _found(file, number, text)
    for page in pages:
        for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1):
            yield from _found(ROOT / page, number, line)


def _prose(file: Path) -> Iterator[tuple[int, str]]:
    """Strings and comments, line by line."""
    with tokenize.open(file) as source:
        for token in tokenize.generate_tokens(io.StringIO(source.read()).readline):
            if token.type in (tokenize.STRING, tokenize.COMMENT):
                for offset, line in enumerate(token.string.splitlines()):
                    yield token.start[0] + offset, line


def _found(file: Path, number: int, text: str) -> Iterator[str]:
    for match in _PATTERN.finditer(text):
        word = match.group(1).lower()
        yield f"{file.relative_to(ROOT)}:{number}: {word!r}: {BANNED[word]}"
