"""The demo's own way to write and read a topic, straight on the wire and net rooms.

`write` sends one batch at a time for each partition, stamped with a producer id and sequence, until the broker has
acknowledged it; `read` fetches ranges until they are complete. Both go on when a broker dies.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from ottla.errors import BrokerError, DeadlineExceeded, NetworkError, OttlaError, WireError
from ottla.model import Fingerprint, OffsetRange, TopicPartition
from ottla.net.cluster import Cluster, VersionOf
from ottla.net.connection import Pending
from ottla.net.deadline import Deadline
from ottla.net.targets import AnyBroker
from ottla.wire import fetch, messages, produce
from ottla.wire.batch import pack_header, split
from ottla.wire.decode import Decoder
from ottla.wire.encode import NewBatch
from ottla.wire.restamp import restamp

_INIT_PRODUCER_ID = 22
_ACKS_ALL = -1
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


def producer_identity(cluster: Cluster) -> tuple[int, int]:
    """A producer id and epoch from the cluster: with them the broker recognises a batch that it has already."""

    def build(version_of: VersionOf) -> messages.Message:
        fields = {
            "transactional_id": None,
            "transaction_timeout": timedelta(minutes=1),
            "producer_id": -1,
            "producer_epoch": -1,
        }
        message: messages.Message = messages.compose(
            messages.request_type(_INIT_PRODUCER_ID, version_of(_INIT_PRODUCER_ID)), fields
        )
        return message

    def check(response: Any) -> tuple[int, int]:
        if response.error_code:
            raise BrokerError(response.error_code, "InitProducerId")
        return int(response.producer_id), int(response.producer_epoch)

    return cluster.call(AnyBroker(), build, check=check, what="InitProducerId")


def write(cluster: Cluster, topic: str, batches: Mapping[int, Iterator[NewBatch]], *, progress: Progress) -> Moved:
    """Send the batches of every partition in order; returns once each is acknowledged by all in-sync replicas."""
    identity = producer_identity(cluster)
    queues = {p: _stamped(source, *identity) for p, source in batches.items()}
    heads = {p: batch for p, queue in queues.items() if (batch := next(queue, None)) is not None}
    troubles = _Troubles(cluster, f"writing to {topic}")
    total = Fingerprint()
    while heads:
        error = None
        for partition, outcome in _send_round(cluster, topic, heads):
            if isinstance(outcome, OttlaError):
                error = outcome
                continue
            total += heads.pop(partition).fingerprint or Fingerprint()
            if (following := next(queues[partition], None)) is not None:
                heads[partition] = following
        if error is None:
            troubles.succeeded()
        else:
            troubles.failed(error, topic)
        progress(total.count)
    return Moved(total, troubles.count, troubles.first, troubles.longest_pause)


def _stamped(batches: Iterator[NewBatch], producer_id: int, epoch: int) -> Iterator[NewBatch]:
    sequence = 0
    for batch in batches:
        header = restamp(batch.header, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
        yield NewBatch(header, batch.records, batch.fingerprint)
        sequence += batch.header.count


def _send_round(
    cluster: Cluster, topic: str, heads: Mapping[int, NewBatch]
) -> Iterator[tuple[int, produce.Produced | OttlaError]]:
    """One request to every leader with the next batch of each of its partitions; the outcome for each partition."""
    sent: deque[tuple[list[int], Pending | OttlaError]] = deque()
    for leader, partitions in _by_leader(cluster, topic, heads).items():
        parts: dict[TopicPartition, list[bytes | memoryview]] = {
            TopicPartition(topic, p): [pack_header(heads[p].header), heads[p].records] for p in partitions
        }
        body = produce.produce_request(parts, acks=_ACKS_ALL, timeout_ms=int(_REQUEST_SECONDS * 1000))
        sent.append((partitions, _submit(cluster, topic, leader, produce.API_KEY, produce.HIGHEST_VERSION, body)))
    for partitions, pending in sent:
        yield from _outcomes(partitions, pending)


def _outcomes(
    partitions: list[int], pending: Pending | OttlaError
) -> Iterator[tuple[int, produce.Produced | OttlaError]]:
    try:
        if isinstance(pending, OttlaError):
            raise pending
        answers = produce.produce_response(pending.result())
    except OttlaError as error:
        yield from ((partition, error) for partition in partitions)
        return
    answered = {answer.partition: answer for answer in answers}
    yield from ((partition, _outcome(partition, answered.get(partition))) for partition in partitions)


def _outcome(partition: int, answer: produce.Produced | None) -> produce.Produced | OttlaError:
    if answer is None:
        return WireError(f"the answer to Produce says nothing of partition {partition}")
    if answer.error_code:
        return BrokerError(answer.error_code, f"Produce to {answer.topic}-{partition}", answer.message)
    return answer


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


def _by_leader(cluster: Cluster, topic: str, partitions: Mapping[int, object]) -> dict[int, list[int]]:
    """Partitions with the same leader together, under one of them."""
    groups: dict[int, list[int]] = {}
    for partition in partitions:
        groups.setdefault(cluster.leader(topic, partition).id, []).append(partition)
    return {group[0]: group for group in groups.values()}


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
