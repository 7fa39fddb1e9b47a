"""Throttles that no running move needs: found, and removed.

Comes in: a cluster. Goes out: every throttle, and which of them are left over. A list that is `*` is a person's and
stays. The judgement is pure (`judge`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ottla.admin.movement import THROTTLED, Reassignment, broker_settings, running_reassignments, topic_settings
from ottla.admin.throttles import alter_broker, alter_topics, parse_replicas, show_replicas
from ottla.errors import OttlaError
from ottla.model import TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.deadline import Deadline
from ottla.operations.moves.throttling import RATES

_LEFT_OVER = "left over: no running move needs it"
_DEFAULT = "default of all brokers: set by a person, stays"


@dataclass(frozen=True, slots=True)
class Found:
    """All throttles of a cluster, and the changes that remove those that are left over."""

    brokers: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    topics: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    moving: int = 0
    """Partitions that move at the moment."""
    topic_changes: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    broker_changes: Mapping[int, Mapping[str, str | None]] = field(default_factory=dict)
    defaults: frozenset[tuple[int, str]] = frozenset()
    """Rates that a broker has from the defaults of all, by broker and setting."""

    @property
    def has_leftovers(self) -> bool:
        """Whether anything is left over."""
        return bool(self.topic_changes or self.broker_changes)

    @property
    def summary(self) -> str:
        """What is left over."""
        parts = []
        if self.topic_changes:
            parts.append(f"throttled replicas of {_count(len(self.topic_changes), 'topic')}")
        if self.broker_changes:
            parts.append(f"rates of {_count(len(self.broker_changes), 'broker')}")
        return " and ".join(parts)

    def rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield where a throttle is, its setting, its value, and what is to be said about it."""
        for broker, rates in sorted(self.brokers.items()):
            for name, value in sorted(rates.items()):
                note = _LEFT_OVER if name in self.broker_changes.get(broker, {}) else self._default(broker, name)
                yield f"broker {broker}", name, f"{value} bytes/s", note
        for topic, lists in sorted(self.topics.items()):
            for name, value in sorted(lists.items()):
                yield f"topic {topic}", name, value, self._note(topic, name, value)

    def _default(self, broker: int, name: str) -> str:
        return _DEFAULT if (broker, name) in self.defaults else ""

    def _note(self, topic: str, name: str, value: str) -> str:
        if parse_replicas(value) is None:
            return "all replicas: set by a person, stays"
        changes = self.topic_changes.get(topic, {})
        if name not in changes:
            return ""
        return _LEFT_OVER if changes[name] is None else f"left over, except {changes[name]}"

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "moving_partitions": self.moving,
            "throttles": [
                {"where": where, "setting": setting, "value": value, "note": note}
                for where, setting, value, note in self.rows()
            ],
            "left_over": {
                "topics": {topic: dict(own) for topic, own in self.topic_changes.items()},
                "brokers": {str(broker): dict(own) for broker, own in self.broker_changes.items()},
            },
        }


def judge(
    brokers: Mapping[int, Mapping[str, str]],
    topics: Mapping[str, Mapping[str, str]],
    running: Collection[Reassignment],
    own: Mapping[int, Mapping[str, str]] | None = None,
) -> Found:
    """Return which throttles no running move needs. `own` has the rates of single brokers, without defaults of all."""
    moving = {each.partition for each in running}
    topic_changes: dict[str, dict[str, str | None]] = {}
    for topic, lists in topics.items():
        for name, value in lists.items():
            replicas = parse_replicas(value)
            if replicas is None:
                continue
            kept = {each for each in replicas if TopicPartition(topic, each[0]) in moving}
            if kept != replicas:
                topic_changes.setdefault(topic, {})[name] = show_replicas(kept) if kept else None
    # A rate without moves slows nothing, until the next move finds it.
    removable = brokers if own is None else own
    broker_changes = {} if moving else {broker: dict.fromkeys(rates) for broker, rates in removable.items() if rates}
    defaults = frozenset(
        (broker, name) for broker, rates in brokers.items() for name in rates if name not in removable.get(broker, {})
    )
    return Found(brokers, topics, len(moving), topic_changes, broker_changes, defaults)


def find_throttles(cluster: Cluster, *, deadline: Deadline) -> Found:
    """Ask brokers for all throttles, and judge them. Raises as `Cluster.call` does."""
    metadata = cluster.metadata(None, deadline=deadline)
    lists = topic_settings(cluster, list(metadata.topics), only=THROTTLED, deadline=deadline)
    rates = broker_settings(cluster, metadata.brokers.values(), only=RATES, deadline=deadline)
    own = broker_settings(cluster, metadata.brokers.values(), only=RATES, own_only=True, deadline=deadline)
    # Last: a move that begins meanwhile is then known before its throttles are judged.
    running = running_reassignments(cluster, deadline=deadline)
    topics = {topic: {name: value for name, value in own.items() if value} for topic, own in lists.items()}
    brokers = {broker: {name: value for name, value in own.items() if name in RATES} for broker, own in rates.items()}
    return judge(
        {broker: own for broker, own in brokers.items() if own},
        {topic: lists for topic, lists in topics.items() if lists},
        running,
        own,
    )


def clear_leftovers(cluster: Cluster, found: Found, *, deadline: Deadline) -> dict[int, str]:
    """Remove what is left over. Returns the brokers that kept their rate, and why."""
    alter_topics(cluster, found.topic_changes, deadline=deadline)
    failed = {}
    for broker, changes in sorted(found.broker_changes.items()):
        try:
            alter_broker(cluster, broker, changes, deadline=deadline)
        except OttlaError as error:
            failed[broker] = str(error)
    return failed


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' if count != 1 else ''}"
