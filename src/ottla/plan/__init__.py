"""Offsets into ranges: how much to read next, and in how many pieces. Pure; it asks nobody and knows no engine."""

from ottla.plan.cutting import cut
from ottla.plan.limiting import limit, limit_bytes
from ottla.plan.sizes import RecordBytes, bytes_of

__all__ = ["RecordBytes", "bytes_of", "cut", "limit", "limit_bytes"]
