"""Bars that show a share of work as text."""

from __future__ import annotations

_WIDTH = 24


def bar(share: float) -> str:
    """Return a bar and a percentage, such as `[######------------------]  25%`."""
    return f"[{'#' * int(share * _WIDTH):-<{_WIDTH}}] {share:4.0%}"
