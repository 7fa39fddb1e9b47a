"""Compares declared topics with those of a cluster: what to create, grow, alter, delete, and what cannot be.

A `Declaration` and `LiveTopic` values come in, a `Plan` goes out. Nothing is lost without permission: what would delete
records, settings or topics is in the plan, marked as held back, until `Allow` has it. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ottla.admin.movement import THROTTLED
from ottla.admin.settings import Setting, SettingSource, keeps_less
from ottla.operations.topics.declaration import Declaration, DeclaredTopic


class Allow(StrEnum):
    """What a plan may lose."""

    DATA = "data"
    """Records, by a shorter retention or another cleanup policy."""
    SETTINGS = "settings"
    """Topics' own settings that the file does not have."""
    TOPICS = "topics"
    """Topics that the file does not have."""


class Action(StrEnum):
    """What happens to a topic."""

    CREATE = "create"
    GROW = "grow"
    """It gets more partitions."""
    ALTER = "alter"
    """A setting gets another value."""
    UNSET = "unset"
    """It loses a setting of its own."""
    REPLICAS = "replicas"
    """Its replicas change: another command moves them."""
    DELETE = "delete"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True, slots=True)
class LiveTopic:
    """A topic as it is."""

    name: str
    partitions: int
    replicas: int
    settings: Mapping[str, Setting] = field(default_factory=dict)
    is_internal: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """One difference of a topic. `before` and `after` are texts for people; None stands for nothing."""

    topic: str
    action: Action
    what: str = ""
    """The setting, or partitions, or replicas."""
    before: str | None = None
    after: str | None = None
    needs: Allow | None = None
    """What must be allowed first; None if it may be applied."""
    note: str = ""

    @property
    def is_held(self) -> bool:
        """Whether applying the plan leaves it as it is."""
        return self.needs is not None or self.action in (Action.REPLICAS, Action.IMPOSSIBLE)

    def to_json(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "topic": self.topic,
            "action": self.action.value,
            "what": self.what or None,
            "before": self.before,
            "after": self.after,
            "needs": None if self.needs is None else self.needs.value,
            "note": self.note or None,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """All differences, in the order in which to apply them."""

    changes: tuple[Change, ...] = ()
    unchanged: tuple[str, ...] = ()
    undeclared: tuple[str, ...] = ()
    """Topics that the file does not have, and that stay."""
    declared: Mapping[str, DeclaredTopic] = field(default_factory=dict)

    @property
    def to_apply(self) -> tuple[Change, ...]:
        """The changes that may be applied."""
        return tuple(change for change in self.changes if not change.is_held)

    @property
    def held(self) -> tuple[Change, ...]:
        """The changes that are left, because they need permission, another command, or are impossible."""
        return tuple(change for change in self.changes if change.is_held)

    @property
    def impossible(self) -> tuple[Change, ...]:
        """What no command can do: the file must change."""
        return tuple(change for change in self.changes if change.action is Action.IMPOSSIBLE)


_ORDER = {action: place for place, action in enumerate(Action)}


def diff(
    declaration: Declaration, live: Collection[LiveTopic], *, brokers: int, allowed: Collection[Allow] = ()
) -> Plan:
    """Return what differs between `declaration` and `live`, the topics that are there.

    `brokers` is how many are up; `allowed` is what may be lost.
    """
    present = {topic.name: topic for topic in live}
    declared = {topic.name: topic for topic in declaration.topics}
    changes: list[Change] = []
    unchanged: list[str] = []
    for name, wanted in declared.items():
        found = [*_of_topic(wanted, present.get(name), brokers, allowed)]
        changes += found
        if not found:
            unchanged.append(name)
    others = sorted(name for name, topic in present.items() if name not in declared and not topic.is_internal)
    if Allow.TOPICS in allowed:
        changes += [Change(name, Action.DELETE, note="with all its records") for name in others]
        others = []
    changes.sort(key=lambda change: (_ORDER[change.action], change.topic, change.what))
    return Plan(tuple(changes), tuple(unchanged), tuple(others), declared)


def _of_topic(
    wanted: DeclaredTopic, found: LiveTopic | None, brokers: int, allowed: Collection[Allow]
) -> Iterator[Change]:
    if wanted.replicas is not None and wanted.replicas > brokers:
        before = None if found is None else str(found.replicas)
        note = f"the cluster has {brokers} broker{'s' if brokers != 1 else ''}"
        if found is None or found.replicas != wanted.replicas:
            yield Change(wanted.name, Action.IMPOSSIBLE, "replicas", before, str(wanted.replicas), note=note)
            return
    if found is None:
        yield Change(wanted.name, Action.CREATE, after=_summary(wanted))
        return
    if wanted.partitions is not None and wanted.partitions != found.partitions:
        before, after = str(found.partitions), str(wanted.partitions)
        if wanted.partitions > found.partitions:
            note = "keys go to other partitions from then on"
            yield Change(wanted.name, Action.GROW, "partitions", before, after, note=note)
        else:
            note = "partitions cannot be removed"
            yield Change(wanted.name, Action.IMPOSSIBLE, "partitions", before, after, note=note)
    if wanted.replicas is not None and wanted.replicas != found.replicas:
        note = "'ottla topics replicas' changes it"
        yield Change(wanted.name, Action.REPLICAS, "replicas", str(found.replicas), str(wanted.replicas), note=note)
    yield from _of_settings(wanted, found, allowed)


def _of_settings(wanted: DeclaredTopic, found: LiveTopic, allowed: Collection[Allow]) -> Iterator[Change]:
    for name, value in wanted.settings.items():
        setting = found.settings.get(name)
        own = setting is not None and setting.source is SettingSource.TOPIC
        if setting is not None and own and setting.means(value):
            continue
        before = None if setting is None else setting.value
        loses = keeps_less(name, before, value) and Allow.DATA not in allowed
        note = "" if own or before is None else "the brokers' value so far"
        yield Change(wanted.name, Action.ALTER, name, before, value, Allow.DATA if loses else None, note)
    for name, setting in found.settings.items():
        if setting.source is not SettingSource.TOPIC or name in wanted.settings or setting.value is None:
            continue
        if name in THROTTLED:
            continue  # of replicas that move now: without it, they would move at full speed
        needs = None if Allow.SETTINGS in allowed else Allow.SETTINGS
        if needs is None and keeps_less(name, setting.value, setting.inherited) and Allow.DATA not in allowed:
            needs = Allow.DATA
        yield Change(wanted.name, Action.UNSET, name, setting.value, setting.inherited, needs)


def _summary(wanted: DeclaredTopic) -> str:
    numbers = [
        f"{count} {noun}{'s' if count != 1 else ''}"
        for count, noun in ((wanted.partitions, "partition"), (wanted.replicas, "replica"))
        if count is not None
    ]
    settings = [f"{name}={value}" for name, value in sorted(wanted.settings.items())]
    return ", ".join([*numbers, *settings]) or "the brokers' defaults"
