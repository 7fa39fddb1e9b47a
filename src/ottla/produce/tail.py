"""Looks into the end of a partition's log for batches that may have been written although no answer came.

Comes in: the identities of batches, and from where on they can be. Goes out: the offsets of those that are there. It
reads headers only, and everything up to the end of the log at the moment of asking.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ottla.admin import Admin, OffsetSpec
from ottla.errors import BrokerError, OttlaError
from ottla.model import TopicPartition
from ottla.net import Cluster
from ottla.net.deadline import Deadline
from ottla.net.targets import LeaderOf
from ottla.produce.outgoing import Identity
from ottla.wire import fetch
from ottla.wire.batch import Batch, split

_CLOCKS_DIFFER = 600.0
"""Seconds by which a broker's clock may be behind ours, where it sets the timestamps."""
_FETCH_BYTES = 4 << 20
_WAIT_MS = 500


class Search(NamedTuple):
    """Where to look: from `floor` on, or, if that is -1, from the first record that is as old as the batches."""

    at: TopicPartition
    floor: int
    created: float
    timestamp_ms: int


def find(cluster: Cluster, search: Search, wanted: Mapping[Identity, int]) -> dict[Identity, int]:
    """The base offsets of those of the `wanted` batches, each with its number of records, that are in the log."""
    admin = Admin(cluster)
    at = search.at
    end = admin.list_offsets([at], OffsetSpec.LATEST)[at].offset
    offset = max(_start(admin, search, end), admin.list_offsets([at], OffsetSpec.EARLIEST)[at].offset)
    found: dict[Identity, int] = {}
    while offset < end and len(found) < len(wanted):
        batches = _fetch(cluster, at, offset)
        for header in (batch.header for batch in batches):
            identity = Identity(header.producer_id, header.producer_epoch, header.base_sequence)
            if wanted.get(identity) == header.count:  # a part of a batch that was cut begins with the same number
                found[identity] = header.base_offset
        offset = max(batches[-1].header.next_offset, offset + 1) if batches else end
    return found


def _start(admin: Admin, search: Search, end: int) -> int:
    if search.floor >= 0:
        return search.floor
    # The first record of a batch is as old as its header says, or as the broker's clock was.
    oldest = min(search.timestamp_ms, int((search.created - _CLOCKS_DIFFER) * 1000))
    offset = admin.list_offsets([search.at], max(0, oldest))[search.at].offset
    return offset if offset >= 0 else end


def _fetch(cluster: Cluster, at: TopicPartition, offset: int) -> list[Batch]:
    """The batches from `offset` on, as many as one answer has; at least one, unless the log ends there."""
    effort = cluster.effort(f"reading {at} at offset {offset}")
    max_bytes = _FETCH_BYTES
    while True:
        try:
            answer = _ask(cluster, at, offset, max_bytes, effort.deadline)
            if answer.error_code:
                raise BrokerError(answer.error_code, f"reading {at} at offset {offset}")
        except OttlaError as error:
            cluster.doubt(LeaderOf(*at))
            effort.failed(error)
            continue
        batches = list(split(answer.records))
        if batches or not len(answer.records):
            return batches
        max_bytes *= 4  # a batch that is larger than was asked for


def _ask(cluster: Cluster, at: TopicPartition, offset: int, max_bytes: int, deadline: Deadline) -> fetch.Fetched:
    version = fetch.LOWEST_VERSION
    wanted = fetch.Wanted(at.topic, at.partition, offset, max_bytes)
    body = fetch.fetch_request([wanted], version=version, max_wait_ms=_WAIT_MS, min_bytes=1, max_bytes=max_bytes)
    leader = cluster.leader(at.topic, at.partition, deadline=deadline)
    limit = deadline.sooner(cluster.timeouts.request)
    connection = cluster.connection(leader, lane="tail", deadline=limit)
    pending = connection.submit(fetch.API_KEY, version, body, deadline=limit)
    answer = fetch.fetch_response(pending.result(), version=version)
    if answer.error_code or not answer.partitions:
        raise BrokerError(answer.error_code, f"reading {at} at offset {offset}")
    return answer.partitions[0]
