"""Rows of a terminal as an SVG picture that is legible on light and dark pages. Pure.

The picture has the size of its rows and columns. Each run of cells with one look is a text of exactly its width, so
that columns stay aligned in any font of the reader.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from itertools import groupby

from screens.terminal import Cell, Shown

_WIDE, _HIGH = 8.0, 19.0
_PAD, _HEAD = 16.0, 14.0
_STYLE = """\
:root{--back:#fbfbfa;--line:#dcdcd6;--ink:#22272e;--soft:#7b838c;--red:#c2362b;--green:#1f7a3d;--brown:#96690a;\
--cyan:#10707f;--prompt:#5b5bd6}
@media (prefers-color-scheme:dark){:root{--back:#14171b;--line:#2d333b;--ink:#dfe4ea;--soft:#87909b;--red:#ff7b72;\
--green:#6cc788;--brown:#e3b341;--cyan:#5cc8d8;--prompt:#a5a5ff}}
rect{fill:var(--back);stroke:var(--line)}
text{font:13px ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:var(--ink);white-space:pre}
.b{font-weight:600}.f{fill:var(--soft)}.p{fill:var(--prompt)}
.red{fill:var(--red)}.green{fill:var(--green)}.brown{fill:var(--brown)}.cyan{fill:var(--cyan)}"""


def picture(command: str, rows: Shown, *, columns: int, title: str) -> str:
    """Return a picture of a command line and what it printed."""
    lines = [[Cell("$", "prompt"), Cell(" "), *map(Cell, command)], *rows]
    width, height = columns * _WIDE + 2 * _PAD, len(lines) * _HIGH + 2 * _HEAD
    texts = "".join(_line(cells, _HEAD + (number + 0.72) * _HIGH) for number, cells in enumerate(lines))
    label = html.escape(title, quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}"'
        f' height="{height:g}" role="img" aria-label="{label}">\n<style>{_STYLE}</style>\n'
        f'<rect x=".5" y=".5" width="{width - 1:g}" height="{height - 1:g}" rx="8"/>\n{texts}</svg>\n'
    )


def _line(cells: Sequence[Cell], up: float) -> str:
    texts = list(_texts(cells, up))
    return f"{''.join(texts)}\n" if texts else ""


def _texts(cells: Sequence[Cell], up: float) -> Iterator[str]:
    place = 0
    for looks, run in groupby(_with_looks(cells), key=lambda pair: pair[0]):
        text = "".join(cell.text for _, cell in run)
        start, place = place, place + len(text)
        # Wide gaps are places, not spaces: so each part begins where its column does.
        for part_start, part in _parts(text):
            name = f' class="{looks}"' if looks else ""
            yield (
                f'<text x="{_PAD + (start + part_start) * _WIDE:g}" y="{up:g}" textLength="{len(part) * _WIDE:g}"'
                f' lengthAdjust="spacingAndGlyphs"{name}>{html.escape(part, quote=False)}</text>'
            )


def _parts(text: str) -> Iterator[tuple[int, str]]:
    place = 0
    for part in text.split("  "):
        if part.strip():
            yield place + len(part) - len(part.lstrip()), part.strip()
        place += len(part) + 2


def _with_looks(cells: Sequence[Cell]) -> Iterator[tuple[str, Cell]]:
    """Yield each cell with the names of its styles; a space looks like what is before it: words stay together."""
    looks = ""
    for cell in cells:
        looks = _looks(cell) if cell.text.strip() else looks
        yield looks, cell


def _looks(cell: Cell) -> str:
    if cell.color == "prompt":
        return "p"
    names = [cell.color] if cell.color in ("red", "green", "brown", "cyan") else []
    return " ".join([*names, *(["b"] if cell.is_bold else []), *(["f"] if cell.is_faint else [])])
