"""The load of a running cluster, from how the ends of its logs move and how large its logs are. No JMX.

`look` asks brokers once; two `Look` values some time apart come into `observed`, which is pure, and a load goes out,
with what it cannot be sure of. Records that transactions and compaction have removed count as offsets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ottla.admin.sizes import find_sizes
from ottla.errors import InputError
from ottla.model import OffsetRange, TopicPartition
from ottla.operations.capacity.load import RECORD_FRAMING, Load

if TYPE_CHECKING:
    from ottla.admin.admin import Admin

_RETENTION, _POLICY = "retention.ms", "cleanup.policy"
_FOREVER = 100 * 365 * 86400.0


@dataclass(frozen=True, slots=True)
class Look:
    """A cluster at a moment. Logs and sizes that are unknown are left out."""

    at: float
    """Seconds of a monotonic clock."""
    logs: Mapping[TopicPartition, OffsetRange]
    sizes: Mapping[TopicPartition, int]
    """Bytes of the largest replica."""
    replicas: Mapping[str, int]
    retention: Mapping[str, float]
    """Seconds, by topic; topics that are kept for ever are left out."""
    compacted: frozenset[str]
    """Topics that compaction keeps small, not retention."""
    brokers: int
    groups: int
    away: Mapping[int, str] = field(default_factory=dict)
    """Brokers that did not report sizes, and why."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What was measured, and what there is to say about it."""

    load: Load
    seconds: float
    brokers: int
    stored_bytes: int
    """In all logs, one replica of each."""
    notes: tuple[str, ...]


def look(admin: Admin, *, now: float, topics: Sequence[str] | None = None) -> Look:
    """Ask the brokers. `topics` are all but Kafka's own unless named. Raises `InputError` without any."""
    described = [topic for topic in admin.describe_topics(topics) if topics is not None or not topic.internal]
    if not described:
        raise InputError("the cluster has no topics to measure")
    names = [topic.name for topic in described]
    partitions = [TopicPartition(topic.name, part.index) for topic in described for part in topic.partitions]
    settings = admin.visible_settings(names)
    sizes = find_sizes(admin.cluster, described, deadline=admin.cluster.deadline())
    retention, compacted = {}, set()
    for name in settings:
        policy = settings[name].get(_POLICY)
        if policy is not None and policy.value is not None and "delete" not in policy.value.split(","):
            compacted.add(name)
        setting = settings[name].get(_RETENTION)
        if setting is not None and setting.value is not None and int(setting.value) >= 0:
            retention[name] = int(setting.value) / 1000
    return Look(
        at=now,
        logs=admin.visible_log_ranges(partitions),
        sizes={at: size for at in partitions if (size := sizes.largest(at)) is not None},
        replicas={topic.name: topic.replicas for topic in described},
        retention=retention,
        compacted=frozenset(compacted),
        brokers=len(admin.cluster.known.brokers),
        groups=len(admin.groups.list_groups()),
        away=sizes.away,
    )


def observed(before: Look, after: Look, *, groups: int | None = None) -> Observed:
    """Return the load between two looks. Raises `InputError` if no record was written in between."""
    seconds = after.at - before.at
    if seconds <= 0:
        raise InputError("two looks at the same moment show no rate")
    records, size, stored, notes = 0.0, 0.0, sum(after.sizes.values()), []
    per_topic: dict[str, float] = {}
    reset = 0
    for at, log in after.logs.items():
        earlier = before.logs.get(at)
        moved = 0 if earlier is None else log.stop - earlier.stop
        if moved < 0:
            reset += 1
        elif moved:
            grown = moved * _record_bytes(before, after, at)
            records += moved
            size += grown
            per_topic[at.topic] = per_topic.get(at.topic, 0.0) + grown
    if reset:
        notes.append(f"{reset} logs went back and were left out: topics deleted and created again, or records lost")
    if missing := len(before.logs.keys() - after.logs.keys()):
        notes.append(f"{missing} logs of the first look were gone at the second")
    if after.away:
        brokers = ", ".join(map(str, sorted(after.away)))
        notes.append(f"brokers {brokers} did not report sizes: those of other replicas were taken")
    if records <= 0 or size <= 0:
        raise InputError(f"no records were written in {seconds:.0f} s: measure for longer, or when there is traffic")
    for_ever = sorted(per_topic.keys() - after.retention.keys())
    notes += [f"topic {topic} has no retention by time: it is planned as if kept for 100 years" for topic in for_ever]
    notes += [
        f"topic {topic} is compacted: it is planned as if everything were kept for its retention"
        for topic in sorted(per_topic.keys() & after.compacted)
    ]
    retention = _weighted(per_topic, {topic: after.retention.get(topic, _FOREVER) for topic in per_topic})
    replication = max(after.replicas.get(topic, 1) for topic in per_topic)
    stored_record = size / records
    return Observed(
        Load(
            records_per_second=records / seconds,
            record_bytes=max(1.0, stored_record - RECORD_FRAMING),
            stored_record_bytes=stored_record,
            retention=max(60.0, retention),
            replication=replication,
            groups=after.groups if groups is None else groups,
            topics=len(per_topic),
        ),
        seconds,
        after.brokers,
        stored,
        tuple(notes),
    )


def _record_bytes(before: Look, after: Look, at: TopicPartition) -> float:
    """Return what a record of a log takes: of the new ones, unless old ones were removed meanwhile."""
    log, earlier = after.logs[at], before.logs[at]
    grown = after.sizes.get(at, 0) - before.sizes.get(at, 0)
    if log.start == earlier.start and at in before.sizes and grown > 0:
        return grown / (log.stop - earlier.stop)
    return after.sizes.get(at, 0) / max(1, len(log))


def _weighted(weights: Mapping[str, float], values: Mapping[str, float]) -> float:
    return sum(weights[name] * values[name] for name in weights) / sum(weights.values())
