"""Plans what to read next, and in how many pieces: offsets in, ranges out. Pure: no requests, and no engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla._lazy import lazy

if TYPE_CHECKING:
    from ottla.plan.cuts import cut
    from ottla.plan.limits import limit, limit_bytes
    from ottla.plan.sizes import RecordBytes, bytes_of

_HOMES = {
    "RecordBytes": "ottla.plan.sizes",
    "bytes_of": "ottla.plan.sizes",
    "cut": "ottla.plan.cuts",
    "limit": "ottla.plan.limits",
    "limit_bytes": "ottla.plan.limits",
}

__all__ = ["RecordBytes", "bytes_of", "cut", "limit", "limit_bytes"]

if not TYPE_CHECKING:  # otherwise a type checker would accept any misspelled name
    __getattr__, __dir__ = lazy(__name__, _HOMES)
