"""What `ottla work reset` and `ottla work topics` do to a group: other positions, other settings.

A store, an admin and a goal come in. The memory that a group has in Kafka is changed with the store, since the next
planner would take a store that knows less than Kafka for one that has lost something.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ottla.admin import Admin, Committed
from ottla.cli.resetting import Goal, Move, ToTime, plan, refuse_missing
from ottla.engines.fleet import kafka_memory
from ottla.engines.fleet.store import Store
from ottla.engines.fleet.units import Charter, PartitionState, Snapshot
from ottla.errors import FleetError, InputError
from ottla.model import TopicPartition

_SILENT_SECONDS = 5.0
"""Longer than a node that lives is silent."""
_LOOK_SECONDS = 0.2


class ListedTopic(NamedTuple):
    """A topic of a group, and what is there of it."""

    name: str
    planned: bool
    """Whether new offsets become units."""
    partitions: int
    waiting: int
    out: int
    failed: int
    id: str


def listed(seen: Snapshot) -> list[ListedTopic]:
    """The topics that a group works on, and those that it did."""
    names = sorted({*seen.topics, *(lane.at.topic for lane in seen.lanes)})
    return [_listed(name, seen, [lane for lane in seen.lanes if lane.at.topic == name]) for name in names]


def _listed(name: str, seen: Snapshot, lanes: Sequence[PartitionState]) -> ListedTopic:
    waiting, out, failed = (sum(getattr(lane, what) for lane in lanes) for what in ("waiting", "out", "failed"))
    return ListedTopic(name, name in seen.topics, len(lanes), waiting, out, failed, seen.topics.get(name, ""))


def plan_reset(
    admin: Admin, store: Store, group: str, topic: str, partitions: Collection[int] | None, goal: Goal
) -> list[Move]:
    """What a reset would do."""
    seen = store.look()
    lanes = {lane.at: lane for lane in seen.lanes}
    if topic not in seen.topics and not any(at.topic == topic for at in lanes):
        raise InputError(
            f"group {group} does not work on {topic}: it has {', '.join(sorted(seen.topics)) or 'no topics'}"
        )
    found = admin.cluster.topic(topic)
    there = [one.index for one in found.partitions]
    refuse_missing(topic, partitions, there)
    if partitions is not None and _is_another(seen, topic, str(found.id or "")):
        raise InputError(f"topic {topic} was deleted and created again: reset all of it, without --partition")
    wanted = [TopicPartition(topic, index) for index in (there if partitions is None else partitions)]
    moves = plan(
        goal,
        admin.log_ranges(wanted),
        before={at: Committed(lane.done) for at, lane in lanes.items()},
        found=admin.list_offsets(wanted, goal.time) if isinstance(goal, ToTime) else {},
        other={},
    )
    return [replace(move, note=_note(move, lanes.get(move.partition))) for move in moves]


def _is_another(seen: Snapshot, topic: str, identity: str) -> bool:
    known = seen.topics.get(topic, "")
    return bool(known and identity and known != identity)


def _note(move: Move, lane: PartitionState | None) -> str:
    """What is said of the offset, and which units are gone."""
    gone = (
        () if lane is None else ((lane.waiting, "waiting"), (lane.out, "in flight"), (lane.failed, "on the error list"))
    )
    units = ", ".join(f"{count:,} {what}" for count, what in gone if count)
    return "; ".join(one for one in (move.note, f"units that go: {units}" if units else "") if one)


def reset(admin: Admin, store: Store, group: str, topic: str, moves: Sequence[Move]) -> None:
    """Does it, in the store and in Kafka."""
    identity = str(admin.cluster.topic(topic).id or "")
    for move in moves:
        store.reset(move.partition, move.after)
    if identity and topic in store.look().topics:
        store.add_topics({topic: identity})
    _remember(admin, store, group, {move.partition for move in moves})


def settings_of(store: Store, changes: dict[str, Any]) -> tuple[Charter, Charter]:
    """What nodes of a group that is there agree on, before and after."""
    before = store.found(Charter())
    return before, replace(before, **changes)


def refuse_busy(store: Store, group: str) -> None:
    """Settings change while nobody works. Nodes that say nothing for some seconds have died."""
    seen = store.look()
    failed = sum(lane.failed for lane in seen.lanes)
    if failed:
        raise FleetError(f"group {group} has {failed:,} units on its error list, lost by this: retry or drop them")
    beats = {node.name: node.beat for node in seen.nodes}
    until = time.monotonic() + (_SILENT_SECONDS if beats else 0.0)
    while time.monotonic() < until:
        alive = [node.name for node in store.look().nodes if beats.get(node.name) != node.beat]
        if alive:
            raise FleetError(f"group {group} is worked on by {', '.join(alive)}: stop all nodes first")
        time.sleep(_LOOK_SECONDS)


def found_anew(admin: Admin, store: Store, group: str, charter: Charter) -> None:
    """The group with another charter: each partition goes on after what is done without a gap."""
    seen, notes = store.look(), store.notes()
    store.forget()
    store.found(charter)
    store.raise_number(seen.number)
    store.add_topics(seen.topics)
    for lane in seen.lanes:
        store.reset(lane.at, lane.done)
    for key, value in notes.items():
        store.note(key, value)
    _remember(admin, store, group, {lane.at for lane in seen.lanes})


def _remember(admin: Admin, store: Store, group: str, partitions: Collection[TopicPartition]) -> None:
    seen = store.look()
    kafka_memory.remember(admin.cluster, group, {lane.at: lane for lane in seen.lanes if lane.at in partitions}, seen)
