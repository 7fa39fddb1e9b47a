"""Offsets into ranges: how much to read next, and in how many pieces. Pure; it asks nobody and knows no engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla._lazy import lazy

if TYPE_CHECKING:
    from ottla.plan.cutting import cut
    from ottla.plan.limiting import limit, limit_bytes
    from ottla.plan.sizes import RecordBytes, bytes_of

_HOMES = {
    "RecordBytes": "ottla.plan.sizes",
    "bytes_of": "ottla.plan.sizes",
    "cut": "ottla.plan.cutting",
    "limit": "ottla.plan.limiting",
    "limit_bytes": "ottla.plan.limiting",
}

__all__ = ["RecordBytes", "bytes_of", "cut", "limit", "limit_bytes"]

if not TYPE_CHECKING:  # or every misspelt name would pass a type checker
    __getattr__, __dir__ = lazy(__name__, _HOMES)
