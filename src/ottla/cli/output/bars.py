"""Bars, sparklines and the parts of a line of progress, as text. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.cli.output.styles import Style, paint

_WIDTH = 24
_DONE, _LEFT = "━", "─"
_LEVELS = "▁▂▃▄▅▆▇█"


def bar(share: float, *, width: int = _WIDTH, on: bool = True) -> str:
    """Return a bar and a percentage, such as `━━━━━━──────────────────  25%`. 100% means all of it."""
    done = max(0, min(width, int(share * width)))
    percent = 100 if share >= 1 else max(0, min(99, int(share * 100)))
    line = paint(_DONE * done, Style.MOVING, on=on) + paint(_LEFT * (width - done), Style.FAINT, on=on)
    return f"{line} {percent:3d}%"


def sparkline(values: Sequence[float], *, width: int = 30, on: bool = True) -> str:
    """Return the last values as columns, such as `▁▂▅█▇`, from 0 to the largest of them."""
    shown = [max(0.0, value) for value in values[-width:]]
    most = max(shown, default=0.0)
    if most <= 0:
        return paint(_LEVELS[0] * len(shown), Style.FAINT, on=on)
    steps = len(_LEVELS) - 1
    # What is not zero does not look like zero.
    levels = (max(1, round(value / most * steps)) if value else 0 for value in shown)
    return paint("".join(_LEVELS[level] for level in levels), Style.MOVING, on=on)


def clock(seconds: float) -> str:
    """Return a rough time to wait: `0:07`, `12:40`, `3:05:00`, or `4d 3h`."""
    whole = max(0, round(seconds))
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24:,}d {hours % 24}h"
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
