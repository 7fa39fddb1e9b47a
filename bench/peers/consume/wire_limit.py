"""No client at all: fetches with the sizes of our reader, found out how far they go, and dropped. What nobody can beat.

Over one connection, and over two that share the partitions, or the offsets of the only one; one request at a time on
each. Nothing is checked or decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

from bench.harness import Stopwatch
from bench.peers.consume import WAIT_SECONDS, Job, Received, warmed
from ottla.errors import BrokerError
from ottla.fetch.options import Fetching
from ottla.model import OffsetRange
from ottla.net.cluster import Cluster
from ottla.net.connection import Connection
from ottla.net.deadline import Deadline
from ottla.wire import fetch
from ottla.wire.batch import Batch

_FETCHING = Fetching()
_PREFIX = struct.Struct(">qi")


def _over(connections: int) -> Callable[[Job], Received]:
    def run(job: Job) -> Received:
        with Cluster(job.bootstrap) as cluster, ThreadPoolExecutor(connections) as threads:
            leader = cluster.leader(job.topic, 0)
            lines = [cluster.connection(leader, channel=f"limit-{i}") for i in range(connections)]
            shares = _shares(job, connections)
            watch = Stopwatch()
            received = list(threads.map(_fetch_all, lines, shares))
            return Received(sum(received), watch.stop())

    return run


def _shares(job: Job, connections: int) -> list[list[OffsetRange]]:
    """What each connection fetches: some of the partitions, or a part of the only one."""
    stop = job.start + job.records // job.partitions
    if job.partitions == 1:
        ends = [job.start + (stop - job.start) * i // connections for i in range(connections + 1)]
        return [[OffsetRange(job.topic, 0, a, b)] for a, b in pairwise(ends)]
    whole = [OffsetRange(job.topic, index, job.start, stop) for index in range(job.partitions)]
    return [whole[i::connections] for i in range(connections)]


def _fetch_all(connection: Connection, ranges: Sequence[OffsetRange]) -> int:
    reached = {one.partition: one.start for one in ranges}
    stops = {one.partition: one.stop for one in ranges}
    topic = ranges[0].topic
    while open_ones := [index for index, offset in reached.items() if offset < stops[index]]:
        each = _FETCHING.request_bytes // len(open_ones)
        wanted = [fetch.FetchPartition(topic, index, reached[index], each) for index in open_ones]
        for got in _fetch(connection, wanted):
            if got.error_code:
                raise BrokerError(got.error_code, "Fetch")
            if got.records:
                reached[got.partition] = _next_offset(got.records)
    return sum(min(reached[one.partition], one.stop) - one.start for one in ranges)


def _fetch(connection: Connection, wanted: Sequence[fetch.FetchPartition]) -> list[fetch.Fetched]:
    version = fetch.LOWEST_VERSION
    body = fetch.fetch_request(
        wanted,
        version=version,
        max_wait_ms=int(_FETCHING.max_wait * 1000),
        min_bytes=_FETCHING.min_bytes,
        max_bytes=_FETCHING.request_bytes,
    )
    pending = connection.submit(fetch.API_KEY, version, body, deadline=Deadline.after(WAIT_SECONDS))
    return fetch.fetch_response(pending.result(), version=version).partitions


def _next_offset(records: memoryview) -> int:
    """After the last whole batch, found by the lengths of those before it."""
    at = last = 0
    while at + _PREFIX.size <= len(records):
        _, length = _PREFIX.unpack_from(records, at)
        if at + _PREFIX.size + length > len(records):
            break
        last, at = at, at + _PREFIX.size + length
    return Batch.parse(records, last).header.next_offset


VARIANTS = {"one connection": warmed(_over(1)), "two connections": warmed(_over(2))}
PACED: dict[str, Any] = {}
