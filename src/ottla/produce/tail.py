"""Looks into the end of a partition's log for batches that may have been written although no answer came.

Comes in: the identities of batches, and from where on they can be. Goes out: the offsets of those that are there. It
reads headers only, and everything up to the end of the log at the moment of asking.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from ottla.admin import Admin, OffsetSpec
from ottla.fetch.reader import Reader
from ottla.model import OffsetRange
from ottla.net import Cluster
from ottla.produce.core import Search
from ottla.produce.outgoing import Identity

_CLOCKS_DIFFER = 600.0
"""Seconds by which a broker's clock may be behind ours, where it sets the timestamps."""


def find(cluster: Cluster, search: Search, wanted: Mapping[Identity, int]) -> dict[Identity, int]:
    """The base offsets of those of the `wanted` batches, each with its number of records, that are in the log."""
    admin = Admin(cluster)
    at = search.at
    end = admin.list_offsets([at], OffsetSpec.LATEST)[at].offset
    start = max(_start(admin, search, end), admin.list_offsets([at], OffsetSpec.EARLIEST)[at].offset)
    found: dict[Identity, int] = {}
    with closing(Reader(cluster).batches(OffsetRange(*at, start, max(start, end)))) as batches:
        for header in (raw.batch.header for raw in batches):
            identity = Identity(header.producer_id, header.producer_epoch, header.base_sequence)
            if wanted.get(identity) == header.count:  # a part of a batch that was cut begins with the same number
                found[identity] = header.base_offset
                if len(found) == len(wanted):
                    break
    return found


def _start(admin: Admin, search: Search, end: int) -> int:
    if 0 <= search.floor <= end:
        return search.floor
    # No floor, or one that the log has not reached: then the topic was created again, or its log was cut.
    # The first record of a batch is as old as its header says, or as the broker's clock was.
    oldest = min(search.timestamp_ms, int((search.created - _CLOCKS_DIFFER) * 1000))
    offset = admin.list_offsets([search.at], max(0, oldest))[search.at].offset
    return offset if offset >= 0 else end
