"""Searches the end of a partition's log for batches that may have been written although no answer came.

The identities of the batches and where to start come in; the offsets of those in the log go out. It reads only headers,
up to the end of the log at the time of the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from ottla.admin import Admin, OffsetSpec
from ottla.fetch.reader import Reader
from ottla.model import Isolation, OffsetRange
from ottla.net import Cluster
from ottla.produce.effects import Search
from ottla.produce.outgoing import Identity

_CLOCKS_DIFFER = 600.0
"""Seconds by which a broker's clock may be behind ours, where it sets the timestamps."""


def find(cluster: Cluster, search: Search, counts: Mapping[Identity, int]) -> dict[Identity, int]:
    """The base offsets of the batches in the log. `counts` has the number of records of each batch to search for.

    Raises what `Admin.list_offsets` and `Reader.batches` raise.
    """
    admin = Admin(cluster)
    tp = search.tp
    end = admin.list_offsets([tp], OffsetSpec.LATEST)[tp].offset
    start = max(_start(admin, search, end), admin.list_offsets([tp], OffsetSpec.EARLIEST)[tp].offset)
    offsets: dict[Identity, int] = {}
    # Uncommitted: the batches may belong to a transaction of ours that is still open.
    reader = Reader(cluster, isolation=Isolation.READ_UNCOMMITTED)
    with closing(reader.batches(OffsetRange(*tp, start, max(start, end)))) as batches:
        for header in (raw.batch.header for raw in batches):
            identity = Identity(header.producer_id, header.producer_epoch, header.base_sequence)
            if counts.get(identity) == header.count:  # the first part of a split batch has the same sequence
                offsets[identity] = header.base_offset
                if len(offsets) == len(counts):
                    break
    return offsets


def _start(admin: Admin, search: Search, end: int) -> int:
    """The offset from which on the batches can be."""
    if 0 <= search.floor <= end:
        return search.floor
    # No floor, or one past the end: then the topic was recreated, or its log was truncated. The first record of a
    # batch is as old as its header says, or as the broker's clock was.
    oldest = min(search.timestamp_ms, int((search.created - _CLOCKS_DIFFER) * 1000))
    offset = admin.list_offsets([search.tp], max(0, oldest))[search.tp].offset
    return offset if offset >= 0 else end
