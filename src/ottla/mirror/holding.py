"""Takes over a target partition: shuts out its previous holder, and finds out how far that one came.

A target partition and the journal come in; the new holder's term, with the position to continue at, goes out. All calls
block: the forwarder runs them in the background. What the log and the journal mean is decided in `takeover.py`, what to
do about a fault in `rules.py`.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from uuid import UUID

from ottla.admin import Admin, OffsetSpec
from ottla.errors import DeadlineExceeded, Fenced, MirrorError
from ottla.fetch.reader import Reader
from ottla.mirror.journal import Entry, Journal
from ottla.mirror.passage import Acceptance
from ottla.mirror.rules import Policy
from ottla.mirror.takeover import Fault, Position, Tail, locate, scan_start
from ottla.mirror.terms import Mark, Term, written_counts
from ottla.model import Isolation, OffsetRange, TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.deadline import Deadline
from ottla.produce import coordinator
from ottla.produce.coordinator import PreparedTransaction
from ottla.produce.identity import ProducerIdentity, transactional_producer_id
from ottla.wire.batch import BatchHeader
from ottla.wire.codecs import parse_codec

_TRANSACTION_SECONDS = 60.0
_SETTINGS_SECONDS = 1.0
"""How long the settings of a target topic are good for several takeovers."""
_FIRST_NAP, _LONGEST_NAP = 0.002, 0.1
"""How long to wait for our marker to appear in the log, in seconds."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A target partition that was taken over."""

    identity: ProducerIdentity
    position: Position
    terms: tuple[Term, ...]
    """The terms that the journal has of the partition."""
    next_target: int
    """The target offset of the first record that the new holder writes."""
    log_start: int
    """The first offset of the target's log."""
    target_id: UUID | None


def transactional_id(link: str, target: TopicPartition) -> str:
    """Return the name under which brokers count the epochs of a partition's holders."""
    return f"ottla-mirror.{link}.{target.topic}.{target.partition}"


def take_over(
    cluster: Cluster, journal: Journal, target: TopicPartition, *, source_id: UUID | None, deadline: Deadline
) -> Holding:
    """Take over a partition.

    Raises `Fenced` if another mirror does the same a moment later, `BrokerError` if the brokers refuse, and
    `DeadlineExceeded` or `NoBrokerReachable` when time runs out.
    """
    name = transactional_id(journal.link, target)
    identity = transactional_producer_id(cluster, name, transaction_timeout=_TRANSACTION_SECONDS)
    # An empty transaction, aborted at once: its marker makes the broker refuse all batches of earlier epochs.
    transaction = PreparedTransaction(name, identity.producer_id, identity.epoch)
    coordinator.add_partitions(cluster, transaction, [target])
    coordinator.end(cluster, transaction, commit=False, deadline=deadline)
    terms = journal.terms(target, deadline=deadline)
    for term in terms:
        if term.producer_id == identity.producer_id and term.epoch > identity.epoch:
            raise Fenced(f"another mirror of link {journal.link} has taken over {target}", records=0)
    log_start = Admin(cluster).list_offsets([target], OffsetSpec.EARLIEST, timeout=deadline.remaining())[target].offset
    target_id = cluster.topics([target.topic], deadline=deadline)[target.topic].id  # the cache may have the last one
    start = scan_start(terms, log_start)
    while True:
        tail = _read_tail(cluster, target, identity, start=start, log_start=log_start, limit=deadline)
        position = locate(terms, tail, producer_id=identity.producer_id, source_id=source_id, target_id=target_id)
        if start == log_start or all(finding.fault is not Fault.TARGET_LOST_RECORDS for finding in position.findings):
            break
        start = log_start  # only all that is left of the log says how far our records go
    return Holding(identity, position, tuple(terms), tail.marker + 1, log_start, target_id)


def acceptance(cluster: Cluster, topic: str, *, deadline: Deadline) -> Acceptance:
    """Return what a target topic accepts, from its settings."""
    settings = Admin(cluster).settings(topic, timeout=deadline.remaining())[topic]
    compression = settings["compression.type"].value or "producer"
    return Acceptance(
        max_bytes=int(settings["max.message.bytes"].value or 1 << 20),
        codec=None
        if compression == "producer"
        else parse_codec({"uncompressed": "none"}.get(compression, compression)),
        append_time=settings["message.timestamp.type"].value == "LogAppendTime",
    )


def _read_tail(
    cluster: Cluster, target: TopicPartition, identity: ProducerIdentity, *, start: int, log_start: int, limit: Deadline
) -> Tail:
    """Read the headers from `start` to our marker, which the coordinator appends soon."""
    admin = Admin(cluster)
    headers: list[BatchHeader] = []
    reached, nap = start, _FIRST_NAP
    while not limit.expired():
        end = admin.list_offsets([target], OffsetSpec.LATEST, timeout=limit.remaining())[target].offset
        if end < reached or (end == start and not headers):
            reached = max(log_start, 0)  # the log is shorter than the journal says: read all that is left of it
            headers.clear()
        if end > reached:
            for header in _headers(cluster, OffsetRange(*target, reached, end)):
                if header.is_control and (header.producer_id, header.producer_epoch) == identity:
                    return Tail(tuple(headers), log_start, header.base_offset)
                headers.append(header)
                reached = header.next_offset
        time.sleep(min(nap, limit.remaining()))
        nap = min(2 * nap, _LONGEST_NAP)
    raise DeadlineExceeded(f"waiting for the marker of epoch {identity.epoch} in {target}", limit.seconds)


def _headers(cluster: Cluster, unit: OffsetRange) -> list[BatchHeader]:
    reader = Reader(cluster, isolation=Isolation.READ_UNCOMMITTED)
    try:
        with closing(reader.batches(unit)) as batches:
            return [raw.batch.header for raw in batches]
    finally:
        reader.close()


@dataclass(frozen=True, slots=True)
class Begun:
    """A partition whose new term is in the journal: mirroring may begin."""

    term: Term
    accepts: Acceptance
    accepted: tuple[MirrorError, ...]
    """Faults that the link's rules accept."""


class Taker:
    """Takes partitions over, in any number of threads."""

    def __init__(self, source: Cluster, target: Cluster, journal: Journal, policy: Policy) -> None:
        self._source = source
        self._target = target
        self._journal = journal
        self._policy = policy
        self._settings: dict[str, tuple[Acceptance, float]] = {}
        """What target topics accept, and when that was asked."""

    def begin(self, source: TopicPartition, target: TopicPartition, *, first: int) -> Begun:
        """Take a partition over and write its new term to the journal. `first` is where a new mirror begins.

        Raises as `take_over` does, and `MirrorError` if something is wrong that the link's rules do not accept.
        """
        deadline = Deadline.after(self._target.timeouts.total)
        source_id = self._source.topics([source.topic], deadline=deadline)[source.topic].id
        accepts = self._acceptance(target.topic, deadline)
        held = take_over(self._target, self._journal, target, source_id=source_id, deadline=deadline)
        accepted = self._policy.judge(source, target, held.position.findings)
        start, epoch, previous = held.position.source, held.position.leader_epoch, held.position.previous
        if start is None:  # nothing was mirrored before, or all of it is to be mirrored again
            start, epoch = self._earliest(source, deadline) if held.terms else first, -1
        term = Term(
            index=held.terms[-1].index + 1 if held.terms else 0,
            producer_id=held.identity.producer_id,
            epoch=held.identity.epoch,
            source_id=source_id,
            target_id=held.target_id,
            start=Mark(0, start, held.next_target),
            start_epoch=epoch,
            previous=None if previous is None else previous.identity,
            previous_count=held.position.previous_count,
        )
        self._journal.write([Entry(source, target, term)])
        self._prune(source, target, held)
        return Begun(term, accepts, accepted)

    def _acceptance(self, topic: str, deadline: Deadline) -> Acceptance:
        """Asked once for all partitions that are taken over at the same time."""
        known, asked_at = self._settings.get(topic, (None, 0.0))
        if known is None or time.monotonic() > asked_at + _SETTINGS_SECONDS:
            known = acceptance(self._target, topic, deadline=deadline)
            self._settings[topic] = known, time.monotonic()
        return known

    def _earliest(self, source: TopicPartition, deadline: Deadline) -> int:
        offsets = Admin(self._source).list_offsets([source], OffsetSpec.EARLIEST, timeout=deadline.remaining())
        return offsets[source].offset

    def _prune(self, source: TopicPartition, target: TopicPartition, held: Holding) -> None:
        """Remove terms of which nothing is left in the target's log, or never was."""
        counts = written_counts(held.terms)
        gone = [
            term
            for term, successor in zip(held.terms, held.terms[1:], strict=False)
            if (successor.start.target <= held.log_start or not counts[term.identity])
            and term is not held.position.previous
        ]
        if gone:
            chunks = [chunk for term in gone for chunk in self._journal.chunks(target, term)]
            self._journal.remove(Entry(source, target, chunk) for chunk in chunks)
