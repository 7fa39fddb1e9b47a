"""Whole numbers as people read them. Pure."""

from __future__ import annotations


def thousands(number: int | None) -> str:
    """Return `1,234,567`; `-` if it is unknown."""
    return "-" if number is None else f"{number:,}"
