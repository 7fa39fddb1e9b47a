"""The journal of a mirror: a compacted topic on the target cluster that keeps the terms of every mirrored partition.

Terms come in and are acknowledged before their records are sent; the terms of a partition come out after a takeover. An
entry has the key `link/target topic/partition/producer id-epoch/chunk`, so a holder that was shut out overwrites only
its own entries. Values are JSON. The journal knows no batches and decides nothing.
"""

from __future__ import annotations

import json
import logging
import threading
import zlib
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any, NamedTuple

from ottla.admin import Admin, NewTopic, OffsetSpec
from ottla.admin.topics import BROKER_DEFAULT
from ottla.errors import BrokerError, ConfigError, DeadlineExceeded, ErrorCode
from ottla.fetch.reader import Reader
from ottla.mirror.terms import Term, in_order, joined
from ottla.model import Isolation, OffsetRange, TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.deadline import Deadline
from ottla.produce.delivery import Delivery
from ottla.produce.options import Batching
from ottla.produce.producer import Producer

_log = logging.getLogger(__name__)
TOPIC = "ottla-mirror"
"""The topic's name, unless configured otherwise."""
ORIGINS = "origins"
"""The note that says from where the records of a link's source topics came."""
_PARTITIONS = 8
_NOTE_SECONDS = 5.0
"""How long a note may take: nothing depends on it."""
_SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 << 20),  # small, so that compaction keeps the topic small
    "segment.ms": str(600_000),
    "min.cleanable.dirty.ratio": "0.1",
    "compression.type": "producer",
}


class Entry(NamedTuple):
    """A term of one mirrored partition."""

    source: TopicPartition
    target: TopicPartition
    term: Term


class _Key(NamedTuple):
    target: TopicPartition
    identity: str
    chunk: int


class Journal:
    """The journal of one link. Threads may share it."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        link: str,
        topic: str = TOPIC,
        source_cluster: str | None = None,
        replicas: int = BROKER_DEFAULT,
    ) -> None:
        self.topic = topic
        self.link = link
        self._cluster = cluster
        self._source_cluster = source_cluster
        self._replicas = replicas
        self._lock = threading.RLock()
        self._producer: Producer | None = None
        self._partitions = 0
        self._positions: dict[int, int] = {}
        """Up to where each partition of the journal was read."""
        self._entries: dict[_Key, Entry] = {}
        self._notes: dict[str, Mapping[str, Any]] = {}

    def close(self) -> None:
        """End its producer."""
        with self._lock:
            if self._producer is not None:
                self._producer.close(5.0)
                self._producer = None

    def exists(self) -> bool:
        """Whether the topic exists."""
        topic = self._cluster.metadata([self.topic]).topics.get(self.topic)
        return topic is not None and topic.error is ErrorCode.none

    def create(self) -> None:
        """Create the topic unless it exists.

        Raises `ConfigError` if it exists and is not compacted: entries would be deleted by time.
        """
        if not self.exists():
            try:
                Admin(self._cluster).create_topics([self._new_topic()])
            except BrokerError as error:
                if error.code is not ErrorCode.topic_already_exists:
                    raise
        self._require_compaction()

    def check(self) -> None:
        """Raise what `create` would raise, without creating the topic."""
        if self.exists():
            self._require_compaction()
        else:
            Admin(self._cluster).check_topic(self._new_topic())

    def _new_topic(self) -> NewTopic:
        return NewTopic(name=self.topic, partitions=_PARTITIONS, replicas=self._replicas, settings=_SETTINGS)

    def _require_compaction(self) -> None:
        policy = Admin(self._cluster).settings(self.topic)[self.topic]["cleanup.policy"].value
        if policy != "compact":
            raise ConfigError(
                f"topic {self.topic} has cleanup.policy={policy}: a mirror's journal must be compacted, or it would"
                " lose what it needs to continue"
            )

    # Writing

    def write(self, entries: Iterable[Entry], *, timeout: float | None = None) -> None:
        """Write entries. Returns when all of them are acknowledged. Raises `NotDelivered` if one is not."""
        self._send(
            [(entry.target, self._key(entry.target, entry.term), self._value(entry)) for entry in entries],
            timeout=timeout,
        )

    def remove(self, entries: Iterable[Entry]) -> None:
        """Remove entries that nothing needs any more."""
        self._send([(entry.target, self._key(entry.target, entry.term), None) for entry in entries], timeout=None)

    def write_note(self, name: str, value: Mapping[str, Any]) -> None:
        """Write something about the whole link under a name, for other programs to read.

        Raises `NotDelivered` or `DeadlineExceeded` if that does not succeed soon: nothing depends on it.
        """
        self.write_notes({name: value}, timeout=_NOTE_SECONDS)

    def write_notes(self, values: Mapping[str, Mapping[str, Any]], *, timeout: float | None = None) -> None:
        """Write notes by name. Raises `NotDelivered` or `DeadlineExceeded` unless all of them are acknowledged."""
        producer = self._open_producer()
        self._await(
            [
                producer.send(self.topic, json.dumps(value).encode(), f"{self.link}#{name}".encode(), partition=0)
                for name, value in values.items()
            ],
            timeout,
        )

    # Reading

    def terms(self, target: TopicPartition, *, deadline: Deadline | None = None) -> list[Term]:
        """Return the terms of a partition as they are in the journal now, in order."""
        with self._lock:
            self._catch_up([self._partition_of(target)], deadline)
            return self._known(target)

    def all_entries(self, *, deadline: Deadline | None = None) -> dict[TopicPartition, list[Entry]]:
        """Return all entries of the link by target partition, as they are now; chunks of a term are joined."""
        with self._lock:
            self._catch_up(range(self._partition_count()), deadline)
            sources = {key.target: entry.source for key, entry in self._entries.items()}
            return {
                target: [Entry(source, target, term) for term in self._known(target)]
                for target, source in sorted(sources.items())
            }

    def chunks(self, target: TopicPartition, term: Term) -> list[Term]:
        """Return the entries of a term as far as they were read."""
        identity = f"{term.producer_id}-{term.epoch}"
        with self._lock:
            return [
                entry.term for key, entry in self._entries.items() if key.target == target and key.identity == identity
            ]

    def note(self, name: str, *, deadline: Deadline | None = None) -> Mapping[str, Any] | None:
        """Return what `write_note` wrote last under this name, or None."""
        with self._lock:
            self._catch_up([0], deadline)
            return self._notes.get(f"{self.link}#{name}")

    def notes(self, prefix: str, *, deadline: Deadline | None = None) -> dict[str, Mapping[str, Any]]:
        """Return the notes whose names begin like this, by the rest of their names."""
        begin = f"{self.link}#{prefix}"
        with self._lock:
            self._catch_up([0], deadline)
            return {key.removeprefix(begin): note for key, note in self._notes.items() if key.startswith(begin)}

    @property
    def _seconds(self) -> float:
        return self._cluster.timeouts.total

    def _known(self, target: TopicPartition) -> list[Term]:
        by_identity: dict[str, list[Term]] = {}
        for key in sorted((key for key in self._entries if key.target == target), key=lambda key: key.chunk):
            by_identity.setdefault(key.identity, []).append(self._entries[key].term)
        return in_order(joined(chunks) for chunks in by_identity.values())

    def _catch_up(self, numbers: Iterable[int], deadline: Deadline | None) -> None:
        """Read the partitions of the journal up to their present end."""
        partitions = [TopicPartition(self.topic, number) for number in numbers]
        admin = Admin(self._cluster)
        timeout = None if deadline is None else deadline.remaining()
        starts = admin.list_offsets(partitions, OffsetSpec.EARLIEST, timeout=timeout)
        ends = admin.list_offsets(partitions, OffsetSpec.LATEST, timeout=timeout)
        ranges = []
        for tp in partitions:
            start = max(self._positions.get(tp.partition, 0), starts[tp].offset)
            if ends[tp].offset > start:
                ranges.append(OffsetRange(*tp, start, ends[tp].offset))
        if not ranges:
            return
        reader = Reader(self._cluster, isolation=Isolation.READ_UNCOMMITTED)
        try:
            with closing(reader.read(ranges, columns=("key", "value"))) as batches:
                for batch in batches:
                    for key, value in zip(
                        batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True
                    ):
                        self._learn(key, value)
        finally:
            reader.close()
        for unit in ranges:
            self._positions[unit.partition] = unit.stop

    def _learn(self, key: bytes | None, value: bytes | None) -> None:
        text = (key or b"").decode(errors="replace")
        if "#" in text:
            self._learn_note(text, value)
            return
        try:
            link, topic, partition, identity, chunk = text.split("/")
            place = _Key(TopicPartition(topic, int(partition)), identity, int(chunk))
            if link != self.link:
                return
            if value is None:
                self._entries.pop(place, None)
                return
            row = json.loads(value)
            source = TopicPartition(str(row["source_topic"]), int(row["source_partition"]))
            self._entries[place] = Entry(source, place.target, Term.from_json(row))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            _log.warning("topic %s has an entry that is not one of a mirror, key %.100r: %s", self.topic, text, error)

    def _learn_note(self, key: str, value: bytes | None) -> None:
        if not key.startswith(f"{self.link}#"):
            return
        try:
            note = json.loads(value or b"{}")
        except (ValueError, RecursionError):
            note = {}
        self._notes[key] = note if isinstance(note, dict) else {}

    def _send(self, rows: Iterable[tuple[TopicPartition, bytes, bytes | None]], *, timeout: float | None) -> None:
        producer = self._open_producer()
        deliveries = [
            producer.send(self.topic, value, key, partition=self._partition_of(target)) for target, key, value in rows
        ]
        self._await(deliveries, timeout)

    def _await(self, deliveries: Iterable[Delivery], timeout: float | None) -> None:
        deadline = Deadline.after(self._seconds if timeout is None else timeout)
        for delivery in deliveries:
            try:
                delivery.result(deadline.remaining())
            except TimeoutError:
                raise DeadlineExceeded(f"writing to the journal {self.topic}", deadline.seconds) from None

    def _open_producer(self) -> Producer:
        with self._lock:
            if self._producer is None:
                self._producer = Producer(
                    [str(address) for address in self._cluster.bootstrap],
                    security=self._cluster.security,
                    client_id=self._cluster.client_id,
                    timeouts=self._cluster.timeouts,
                    retry=self._cluster.retry,
                    batching=Batching(linger=0.0),
                    delivery_timeout=self._seconds,
                )
            return self._producer

    def _key(self, target: TopicPartition, term: Term) -> bytes:
        return f"{self.link}/{target.topic}/{target.partition}/{term.producer_id}-{term.epoch}/{term.chunk}".encode()

    def _value(self, entry: Entry) -> bytes:
        row = {
            "source_cluster": self._source_cluster,
            "source_topic": entry.source.topic,
            "source_partition": entry.source.partition,
            **entry.term.to_json(),
        }
        return json.dumps(row, separators=(",", ":")).encode()

    def _partition_of(self, target: TopicPartition) -> int:
        # Never more than at first: partitions that are added later must not change where entries are.
        return zlib.crc32(f"{self.link}/{target.topic}/{target.partition}".encode()) % min(
            self._partition_count(), _PARTITIONS
        )

    def _partition_count(self) -> int:
        if not self._partitions:
            self._partitions = len(self._cluster.topic(self.topic).partitions)
        return self._partitions


class Origin(NamedTuple):
    """A topic on a cluster, from which records come."""

    cluster: str | None
    topic: str


class Writer(NamedTuple):
    """A link that mirrors a topic to the cluster of the journal."""

    link: str
    source_cluster: str | None
    source_topic: str
    target_topic: str
    origins: frozenset[Origin] = frozenset()
    """From where the records of its source topic came, as far as the journal of that cluster said."""


def origins_of(topic: str, cluster: str | None, known: Iterable[Writer]) -> frozenset[Origin]:
    """Return all topics whose records are in a topic of this cluster, as far as the writers of its journal know."""
    by_target: dict[str, list[Writer]] = {}
    for writer in known:
        by_target.setdefault(writer.target_topic, []).append(writer)
    found: set[Origin] = set()
    waiting = [topic]
    while waiting:
        for writer in by_target.get(waiting.pop(), ()):
            new = {Origin(writer.source_cluster, writer.source_topic), *writer.origins} - found
            found |= new
            waiting += [origin.topic for origin in new if cluster is not None and origin.cluster == cluster]
    return frozenset(found)


def link_names(cluster: Cluster, *, topic: str = TOPIC) -> frozenset[str]:
    """Return the links of the journal on this cluster, also those that have published a state and mirrored nothing."""
    names = {writer.link for writer in writers(cluster, topic=topic)}
    for key, value in _latest(cluster, topic).items():
        link, _, note = (key or b"").decode(errors="replace").partition("#")
        if note == "status" and value is not None:
            names.add(link)
    return frozenset(names)


def writers(cluster: Cluster, *, topic: str = TOPIC) -> frozenset[Writer]:
    """Return the links that have a journal on this cluster, with their topics; none if there is no journal."""
    known: set[Writer] = set()
    latest = _latest(cluster, topic)
    for key, value in latest.items():
        try:
            link, target_topic, *rest = (key or b"").decode().split("/")
            row = json.loads(value or b"")
            if len(rest) == 3:
                known.add(Writer(link, row.get("source_cluster"), row["source_topic"], target_topic))
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
            continue  # a tombstone, a note, or not an entry of a mirror
    return frozenset(
        writer._replace(origins=_origins(latest.get(f"{writer.link}#{ORIGINS}".encode()), writer.target_topic))
        for writer in known
    )


def _origins(note: bytes | None, target_topic: str) -> frozenset[Origin]:
    try:
        rows = json.loads(note or b"{}")["topics"][target_topic]
        return frozenset(Origin(None if cluster is None else str(cluster), str(name)) for cluster, name in rows)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return frozenset()


def _latest(cluster: Cluster, topic: str) -> dict[bytes | None, bytes | None]:
    """Return the last value of each key; none if there is no journal."""
    latest: dict[bytes | None, bytes | None] = {}
    described = cluster.metadata([topic]).topics.get(topic)
    if described is None or described.error is not ErrorCode.none:
        return latest
    reader = Reader(cluster, isolation=Isolation.READ_UNCOMMITTED)
    try:
        with closing(reader.read(topic, columns=("key", "value"))) as batches:
            for batch in batches:
                latest.update(zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True))
    finally:
        reader.close()
    return latest
