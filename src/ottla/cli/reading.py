"""The demo's own way to read a topic, straight on the wire and net rooms.

Ranges come in and are fetched until they are complete, whatever brokers die meanwhile; what was read goes out as a
fingerprint.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ottla.errors import BrokerError, DeadlineExceeded, NetworkError, OttlaError, WireError
from ottla.model import Fingerprint, OffsetRange
from ottla.net.cluster import Cluster
from ottla.net.connection import Pending
from ottla.net.deadline import Deadline
from ottla.wire import fetch
from ottla.wire.batch import split
from ottla.wire.decode import Decoder

_FETCH_BYTES = 4 << 20
_REQUEST_SECONDS = 10.0
_STUCK_SECONDS = 60.0

Progress = Callable[[int], None]
"""Called with the number of records moved so far."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What was moved, and how often the way there failed."""

    fingerprint: Fingerprint
    failures: int = 0
    first_failure: str | None = None
    longest_pause: float = 0.0
    """Seconds between two successes."""

    def __add__(self, other: Moved) -> Moved:
        return Moved(
            self.fingerprint + other.fingerprint,
            self.failures + other.failures,
            self.first_failure or other.first_failure,
            max(self.longest_pause, other.longest_pause),
        )


class _Troubles:
    """Counts failures and waits between attempts, anew after every success."""

    def __init__(self, cluster: Cluster, what: str) -> None:
        self._cluster = cluster
        self._what = what
        self.count = 0
        self.first: str | None = None
        self.longest_pause = 0.0
        self._last_success = time.monotonic()
        self.succeeded()

    def succeeded(self) -> None:
        before, self._last_success = self._last_success, time.monotonic()
        self.longest_pause = max(self.longest_pause, self._last_success - before)
        self._deadline = Deadline.after(_STUCK_SECONDS)
        self._effort = self._cluster.effort(self._what, self._deadline)

    def nothing_came(self, offset: int) -> None:
        """A broker that had nothing yet is asked again, but not for ever."""
        if self._deadline.expired():
            causes = (f"the broker has nothing at offset {offset}",)
            raise DeadlineExceeded(self._what, self._deadline.elapsed(), causes)

    def failed(self, error: OttlaError, topic: str) -> None:
        self.count += 1
        self.first = self.first or str(error).partition("\n")[0]
        self._cluster.invalidate(topic)
        self._effort.failed(error)


def _submit(
    cluster: Cluster, topic: str, partition: int, api_key: int, highest: int, body: list[bytes | memoryview]
) -> Pending | OttlaError:
    """Send to the leader of a partition; a failure is a value here, so that the other leaders get theirs."""
    deadline = Deadline.after(_REQUEST_SECONDS)
    try:
        connection = cluster.connection(cluster.leader(topic, partition, deadline=deadline), deadline=deadline)
        return connection.submit(api_key, connection.version(api_key, highest=highest), body, deadline=deadline)
    except NetworkError as error:
        return error


def read(cluster: Cluster, ranges: list[OffsetRange], *, progress: Progress) -> Moved:
    """Fetch and decode every range completely."""
    decoder = Decoder(("key", "value", "headers"), fingerprint=True)
    total = Moved(Fingerprint())
    for wanted in ranges:
        counted = partial(_added, progress, total.fingerprint.count)
        total += _read_range(cluster, wanted, decoder, progress=counted)
    return total


def _added(progress: Progress, before: int, done: int) -> None:
    progress(before + done)


def _read_range(cluster: Cluster, wanted: OffsetRange, decoder: Decoder, *, progress: Progress) -> Moved:
    troubles = _Troubles(cluster, f"reading {wanted}")
    total = Fingerprint()
    offset = wanted.start
    while offset < wanted.stop:
        try:
            records = _fetch(cluster, wanted, offset)
        except OttlaError as error:
            troubles.failed(error, wanted.topic)
            continue
        batches = list(split(records))
        if not batches:
            troubles.nothing_came(offset)
            continue
        troubles.succeeded()
        decode = partial(decoder.decode, topic=wanted.topic, partition=wanted.partition)
        for decoded in decode(batches, start=offset, stop=wanted.stop):
            total += decoded.fingerprint or Fingerprint()
        offset = batches[-1].header.next_offset
        progress(total.count)
    return Moved(total, troubles.count, troubles.first, troubles.longest_pause)


def _fetch(cluster: Cluster, wanted: OffsetRange, offset: int) -> memoryview:
    want = fetch.Wanted(wanted.topic, wanted.partition, offset, _FETCH_BYTES)
    version = fetch.LOWEST_VERSION
    body = fetch.fetch_request([want], version=version, max_wait_ms=500, min_bytes=1, max_bytes=_FETCH_BYTES)
    pending = _submit(cluster, wanted.topic, wanted.partition, fetch.API_KEY, version, body)
    if isinstance(pending, OttlaError):
        raise pending
    answer = fetch.fetch_response(pending.result(), version=version)
    found = next(iter(answer.partitions), None)
    code = answer.error_code or (found.error_code if found else 0)
    if code:
        raise BrokerError(code, f"Fetch of {wanted.topic_partition} at offset {offset}")
    if found is None:
        raise WireError(f"the answer to Fetch says nothing of {wanted.topic_partition}")
    return found.records
