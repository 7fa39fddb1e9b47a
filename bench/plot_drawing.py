"""Charts of measurements as SVG files: rows of bars from zero, in columns that have a scale each.

A `Chart` comes in, the text of a file goes out, the same text for the same chart. The file has its own background, and
colors for light and dark screens, so that any page can show it. It decides nothing about what is shown. Pure.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ottla.cli.output.plots import ticks

Kind = Literal["ours", "peer", "limit"]

_WIDTH, _MARGIN, _LABELS = 960, 20, 290
_ROW, _BAR, _NUMBER = 22, 13, 62
_STYLE = """
.back{fill:#ffffff;stroke:#d8dee6}.ink{fill:#17202b}.soft{fill:#5b6775}.grid{stroke:#e4e8ed}.base{stroke:#8a94a1}
.ours{fill:#2f6fb2}.peer{fill:#d9822b}.limit{fill:#9aa5b1}.gap{stroke:#ffffff;stroke-width:3}
text{font:12px system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif}.title{font-size:16px;font-weight:600}
.panel{font-weight:600}.tick{font-size:10px}.best{font-weight:700}
@media (prefers-color-scheme:dark){
.back{fill:#12171d;stroke:#2a323c}.ink{fill:#e3e9f0}.soft{fill:#9aa7b5}.grid{stroke:#2a323c}.base{stroke:#77828f}
.ours{fill:#6aa9e6}.peer{fill:#eda75c}.limit{fill:#6b7683}.gap{stroke:#12171d}}
"""
_CUT = " A bar with a gap is longer than its axis."
_LEGEND: tuple[tuple[Kind, str], ...] = (("ours", "Ottla"), ("peer", "others"), ("limit", "what bounds everybody"))


@dataclass(frozen=True, slots=True)
class Column:
    """A scale of its own. `is_more_better` decides which number is the best."""

    heading: str
    show: Callable[[float], str]
    is_more_better: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One way to do the work, with a value for each column, or None where it was not measured."""

    label: str
    kind: Kind
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """Rows that do the same work."""

    heading: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """One file. `note` says what was measured when and where."""

    title: str
    note: str
    panels: tuple[Panel, ...]


def draw(chart: Chart) -> str:
    """Return the text of an SVG file."""
    parts: list[str] = []
    top = 74.0
    for panel in chart.panels:
        parts += _panel(panel, top)
        top += _height(panel)
    height = top + 4
    head = [
        f'<rect class="back" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1:.0f}" rx="6"/>',
        _text(_MARGIN, 30, chart.title, "ink title"),
        _text(_MARGIN, 50, chart.note + _CUT * any('class="gap"' in part for part in parts), "soft"),
        *_legend(chart),
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}"'
            f' height="{height:.0f}" role="img" aria-label="{html.escape(chart.title)}">',
            f"<style>{_STYLE}</style>",
            *head,
            *parts,
            "</svg>\n",
        ]
    )


def axis_end(bars: Sequence[tuple[Kind, float | None]]) -> float:
    """Where an axis from zero ends.

    Among many, one or two of the others far beyond the rest do not shrink the rest to nothing. Ours is never cut.
    """
    values = sorted((value, kind) for kind, value in bars if value is not None)
    for _ in range(2):
        if len(values) > 5 and values[-1][1] != "ours" and values[-1][0] > 2.5 * values[-2][0]:
            values.pop()
    return values[-1][0] if values and values[-1][0] > 0 else 1.0


def _height(panel: Panel) -> float:
    return 46 + len(panel.rows) * _ROW + 26


def _panel(panel: Panel, top: float) -> list[str]:
    parts = [_text(_MARGIN, top + 16, panel.heading, "ink panel")]
    first, bottom = top + 46, top + 46 + len(panel.rows) * _ROW
    for number, row in enumerate(panel.rows):
        parts.append(_text(_LABELS - 8, first + number * _ROW + 13, row.label, "ink", anchor="end"))
    width = (_WIDTH - _LABELS - _MARGIN) / len(panel.columns)
    for number, column in enumerate(panel.columns):
        values = [row.values[number] for row in panel.rows]
        bars = [(row.kind, value) for row, value in zip(panel.rows, values, strict=True)]
        left = _LABELS + number * width
        parts.append(_text(left, top + 36, column.heading, "soft"))
        parts += _column(column, bars, (left, first, bottom), width - _NUMBER)
    return parts


def _column(
    column: Column, bars: Sequence[tuple[Kind, float | None]], place: tuple[float, float, float], room: float
) -> list[str]:
    left, first, bottom = place
    end = axis_end(bars)
    parts = []
    for tick in ticks(0, end, count=4):
        across = left + tick / end * room
        parts.append(_line(across, first - 4, bottom, "grid" if tick else "base"))
        parts.append(_text(across, bottom + 12, column.show(tick) if tick else "0", "soft tick", anchor="middle"))
    best = _best(column, bars)
    for number, (kind, value) in enumerate(bars):
        top = first + number * _ROW + 2
        if value is None:
            parts.append(_text(left + 4, top + 11, "-", "soft"))
            continue
        length = min(value / end, 1.0) * room
        parts.append(f'<rect class="{kind}" x="{left:.1f}" y="{top:.1f}" width="{length:.1f}" height="{_BAR}"/>')
        if value > end:
            cut = left + length - 16
            parts.append(
                f'<line class="gap" x1="{cut:.1f}" y1="{top + _BAR + 2:.1f}" x2="{cut + 7:.1f}" y2="{top - 2:.1f}"/>'
            )
        style = "ink best" if value == best else "ink"
        parts.append(_text(left + length + 5, top + 11, column.show(value), style))
    return parts


def _best(column: Column, bars: Sequence[tuple[Kind, float | None]]) -> float | None:
    """The best value of those that do the work, if there is something to compare."""
    values = [value for kind, value in bars if kind != "limit" and value is not None]
    if len(values) < 2:
        return None
    return max(values) if column.is_more_better else min(values)


def _legend(chart: Chart) -> list[str]:
    kinds = {row.kind for panel in chart.panels for row in panel.rows}
    parts, across = [], float(_WIDTH - _MARGIN)
    for kind, name in reversed(_LEGEND):
        if kind in kinds:
            across -= 6.6 * len(name) + 4
            parts += [
                _text(across, 30, name, "soft"),
                f'<rect class="{kind}" x="{across - 18:.1f}" y="20" width="12" height="12"/>',
            ]
            across -= 34
    return parts


def _text(across: float, up: float, text: str, style: str, *, anchor: str = "start") -> str:
    shown = html.escape(text, quote=False)
    return f'<text class="{style}" x="{across:.1f}" y="{up:.1f}" text-anchor="{anchor}">{shown}</text>'


def _line(across: float, top: float, bottom: float, style: str) -> str:
    return f'<line class="{style}" x1="{across:.1f}" y1="{top:.1f}" x2="{across:.1f}" y2="{bottom:.1f}"/>'
