"""Plots as inline SVG: lines over an axis, and bars. For pages that load nothing from anywhere.

Numbers and labels come in, a text of SVG goes out; colors are CSS variables, light and dark, which `STYLE` defines.
Text from outside is escaped. Pure.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ottla.text import printable

STYLE = """
:root{--p0:#2f6fb2;--p1:#d9822b;--p2:#3f9c5a;--p3:#a05195;--p4:#7a6a58;--p5:#c0392b;--grid:#e4e8ed;--axis:#8a94a1}
@media (prefers-color-scheme:dark){:root{--p0:#6aa9e6;--p1:#eda75c;--p2:#74c48c;--p3:#c98fd0;--p4:#b5a591;--p5:#e57368;
--grid:#2a323c;--axis:#77828f}}
svg.plot{display:block;width:100%;height:auto;max-width:880px;margin:.2em 0 1.4em}
svg.plot text{font:12px system-ui,sans-serif;fill:var(--soft)}svg.plot .title{font-size:14px;fill:var(--ink)}
svg.plot .grid{stroke:var(--grid)}svg.plot .axis{stroke:var(--axis)}svg.plot polyline{fill:none;stroke-width:2}
"""
COLORS = 6
_WIDTH, _HEIGHT = 880, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 16, 34, 56
_BAR, _BAR_GAP, _LABEL = 24, 10, 170

Show = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of a plot: points in order of x. A y of None leaves a gap."""

    name: str
    points: Sequence[tuple[float, float | None]]


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a plot."""

    label: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """How an axis is labelled. `ticks` are places with their text; without, round numbers are chosen."""

    label: str
    show: Show
    ticks: Sequence[tuple[float, str]] = ()
    is_logarithmic: bool = False


def ticks(low: float, high: float, *, count: int = 5) -> list[float]:
    """Return round numbers from `low` to `high`: 1, 2 or 5 times a power of ten apart."""
    if not high > low:
        return [low]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def line_plot(title: str, curves: Sequence[Curve], *, x: Axis, y: Axis) -> str:
    """Return lines over a common axis, which begins at 0 unless it is logarithmic."""
    drawn = [curve for curve in curves if any(_is_drawn(value, y) for _, value in curve.points)]
    if not drawn:
        return ""
    xs = [place for curve in drawn for place, _ in curve.points]
    ys = [value for curve in drawn for _, value in curve.points if value is not None and _is_drawn(value, y)]
    across = _Scale(min(xs), max(xs), _LEFT, _WIDTH - _RIGHT, is_logarithmic=x.is_logarithmic)
    low, high = (min(ys), max(ys)) if y.is_logarithmic else (0.0, max(ys) * 1.05 or 1.0)
    up = _Scale(low, high, _HEIGHT - _BOTTOM, _TOP, is_logarithmic=y.is_logarithmic)
    parts = [_text(_LEFT, 18, title, kind="title", anchor="start")]
    for place, text in _marks(y, up):
        parts.append(_line(_LEFT, up(place), _WIDTH - _RIGHT, up(place), "grid"))
        parts.append(_text(_LEFT - 8, up(place) + 4, text, anchor="end"))
    for place, text in _marks(x, across):
        parts.append(_line(across(place), _HEIGHT - _BOTTOM, across(place), _HEIGHT - _BOTTOM + 5, "axis"))
        parts.append(_text(across(place), _HEIGHT - _BOTTOM + 18, text))
    parts.append(_line(_LEFT, _HEIGHT - _BOTTOM, _WIDTH - _RIGHT, _HEIGHT - _BOTTOM, "axis"))
    parts.append(_text(_WIDTH - _RIGHT, 18, y.label, anchor="end"))
    parts.append(_text(_WIDTH - _RIGHT, _HEIGHT - 8, x.label, anchor="end"))
    parts += [_curve(curve, number, across, up, y) for number, curve in enumerate(drawn)]
    parts += _legend(drawn)
    return _svg(title, _HEIGHT, parts)


def bar_plot(title: str, bars: Sequence[Bar], *, show: Show) -> str:
    """Return horizontal bars from 0, each with its value."""
    if not bars:
        return ""
    most = max(max(bar.value for bar in bars), 0.0) or 1.0
    room = _WIDTH - _LABEL - 110
    parts = [_text(0, 18, title, kind="title", anchor="start")]
    for number, bar in enumerate(bars):
        top = _TOP + number * (_BAR + _BAR_GAP)
        length = max(0.0, bar.value) / most * room
        parts.append(_text(_LABEL - 8, top + _BAR / 2 + 4, bar.label, anchor="end"))
        parts.append(
            f'<rect x="{_LABEL}" y="{top}" width="{length:.1f}" height="{_BAR}" rx="2"'
            f' style="fill:var(--p{number % COLORS})"/>'
        )
        parts.append(_text(_LABEL + length + 6, top + _BAR / 2 + 4, show(bar.value), anchor="start"))
    return _svg(title, _TOP + len(bars) * (_BAR + _BAR_GAP) + 6, parts)


@dataclass(frozen=True, slots=True)
class _Scale:
    """Places values between two coordinates."""

    low: float
    high: float
    start: float
    stop: float
    is_logarithmic: bool

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.is_logarithmic:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
        share = 0.5 if high <= low else (value - low) / (high - low)
        return self.start + (self.stop - self.start) * share


def _is_drawn(value: float | None, axis: Axis) -> bool:
    return value is not None and math.isfinite(value) and (value > 0 or not axis.is_logarithmic)


def _marks(axis: Axis, scale: _Scale) -> list[tuple[float, str]]:
    if axis.ticks:
        return [(place, text) for place, text in axis.ticks if scale.low <= place <= scale.high]
    if not axis.is_logarithmic:
        return [(place, axis.show(place)) for place in ticks(scale.low, scale.high)]
    powers = range(math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high)) + 1)
    factors = (1, 2, 5) if len(powers) <= 4 else (1,)
    places = [factor * 10.0**power for power in powers for factor in factors]
    return [(place, axis.show(place)) for place in places if scale.low <= place <= scale.high]


def _curve(curve: Curve, number: int, across: _Scale, up: _Scale, y: Axis) -> str:
    runs: list[list[str]] = [[]]
    for place, value in curve.points:
        if value is not None and _is_drawn(value, y):
            runs[-1].append(f"{across(place):.1f},{up(value):.1f}")
        elif runs[-1]:
            runs.append([])
    style = f'style="stroke:var(--p{number % COLORS})"'
    return "".join(
        f'<polyline points="{" ".join(run)}" {style}/>' if len(run) > 1 else _dot(run[0], number) for run in runs if run
    )


def _dot(place: str, number: int) -> str:
    across, _, up = place.partition(",")
    return f'<circle cx="{across}" cy="{up}" r="3" style="fill:var(--p{number % COLORS})"/>'


def _legend(curves: Sequence[Curve]) -> list[str]:
    parts, place = [], float(_LEFT)
    for number, curve in enumerate(curves):
        parts.append(
            f'<rect x="{place:.0f}" y="{_HEIGHT - 18}" width="12" height="12" rx="2"'
            f' style="fill:var(--p{number % COLORS})"/>'
        )
        parts.append(_text(place + 17, _HEIGHT - 8, curve.name, anchor="start"))
        place += 34 + 7.2 * len(curve.name)
    return parts


def _text(across: float, up: float, text: str, *, kind: str = "", anchor: str = "middle") -> str:
    shown = html.escape(printable(text))
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{across:.1f}" y="{up:.1f}" text-anchor="{anchor}"{style}>{shown}</text>'


def _line(left: float, top: float, right: float, bottom: float, kind: str) -> str:
    return f'<line x1="{left:.1f}" y1="{top:.1f}" x2="{right:.1f}" y2="{bottom:.1f}" class="{kind}"/>'


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    label = html.escape(printable(title), quote=True)
    return (
        f'<svg class="plot" role="img" aria-label="{label}" viewBox="0 0 {_WIDTH} {height:.0f}"'
        f' xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )
