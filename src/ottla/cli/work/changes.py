"""How `ottla work reset` changes a group: its positions, or its settings.

The positions that a group keeps in Kafka are changed together with the store: the next planner takes a store that knows
less than Kafka for one that has lost data.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from ottla.admin import Admin, Committed
from ottla.cli.reset import Move, plan, require_partitions
from ottla.cli.values.places import Place
from ottla.engines.fleet import kafka_memory
from ottla.engines.fleet.store import Store
from ottla.engines.fleet.units import Charter, PartitionState, Snapshot
from ottla.errors import FleetError, InputError
from ottla.fetch.bounds import CommittedBy
from ottla.model import TopicPartition

_SILENT_SECONDS = 5.0
"""Longer than a live node is ever silent."""
_POLL_SECONDS = 0.2


def plan_reset(
    admin: Admin, store: Store, group: str, topic: str, partitions: Collection[int] | None, goal: Place
) -> list[Move]:
    """Return the moves of a reset. Raises InputError for a topic or partition that the group does not have."""
    snapshot = store.look()
    states = {state.partition: state for state in snapshot.partitions}
    if topic not in snapshot.topics and not any(tp.topic == topic for tp in states):
        raise InputError(
            f"group {group} does not work on {topic}: it has {', '.join(sorted(snapshot.topics)) or 'no topics'}"
        )
    metadata = admin.cluster.topic(topic)
    existing = [partition.index for partition in metadata.partitions]
    require_partitions(topic, partitions, existing)
    if partitions is not None and _is_another(snapshot, topic, str(metadata.id or "")):
        raise InputError(f"topic {topic} was deleted and created again: reset all of it, without --partition")
    selected = [TopicPartition(topic, index) for index in (existing if partitions is None else partitions)]
    moves = plan(
        goal,
        admin.log_ranges(selected),
        before={tp: Committed(state.done) for tp, state in states.items()},
        at_time=admin.list_offsets(selected, goal) if isinstance(goal, datetime) else {},
        other=admin.groups.committed(goal.group) if isinstance(goal, CommittedBy) else {},
    )
    return [replace(move, note=_note(move, states.get(move.partition))) for move in moves]


def _is_another(snapshot: Snapshot, topic: str, topic_id: str) -> bool:
    known = snapshot.topics.get(topic, "")
    return bool(known and topic_id and known != topic_id)


def _note(move: Move, state: PartitionState | None) -> str:
    """Return the note about the offset, and which units the reset drops."""
    gone = (
        ()
        if state is None
        else ((state.waiting, "waiting"), (state.out, "in flight"), (state.failed, "on the error list"))
    )
    units = ", ".join(f"{count:,} {what}" for count, what in gone if count)
    return "; ".join(note for note in (move.note, f"drops units: {units}" if units else "") if note)


def reset(admin: Admin, store: Store, group: str, topic: str, moves: Sequence[Move]) -> None:
    """Carry out the moves in the store and in Kafka."""
    topic_id = str(admin.cluster.topic(topic).id or "")
    for move in moves:
        store.reset(move.partition, move.after)
    if topic_id and topic in store.look().topics:
        store.add_topics({topic: topic_id})
    _remember(admin, store, group, {move.partition for move in moves})


def settings_of(store: Store, changes: dict[str, Any]) -> tuple[Charter, Charter]:
    """Return the settings of an existing group, before and after."""
    before = store.found(Charter())
    return before, replace(before, **changes)


def require_idle(store: Store, group: str) -> None:
    """Raise FleetError if nodes are alive, or units are on the error list. Nodes silent for some seconds are dead."""
    snapshot = store.look()
    failed = sum(state.failed for state in snapshot.partitions)
    if failed:
        raise FleetError(f"group {group} has {failed:,} units on its error list: retry or drop them first")
    beats = {node.name: node.beat for node in snapshot.nodes}
    until = time.monotonic() + (_SILENT_SECONDS if beats else 0.0)
    while time.monotonic() < until:
        alive = [node.name for node in store.look().nodes if beats.get(node.name) != node.beat]
        if alive:
            raise FleetError(f"group {group} has live nodes: {', '.join(alive)}: stop them first")
        time.sleep(_POLL_SECONDS)


def recreate(admin: Admin, store: Store, group: str, charter: Charter) -> None:
    """Create the group again with other settings: each partition continues after what is done without a gap."""
    snapshot, notes = store.look(), store.notes()
    store.forget()
    store.found(charter)
    store.raise_number(snapshot.number)
    store.add_topics(snapshot.topics)
    for state in snapshot.partitions:
        store.reset(state.partition, state.done)
    for key, value in notes.items():
        store.note(key, value)
    _remember(admin, store, group, {state.partition for state in snapshot.partitions})


def _remember(admin: Admin, store: Store, group: str, partitions: Collection[TopicPartition]) -> None:
    snapshot = store.look()
    states = {state.partition: state for state in snapshot.partitions if state.partition in partitions}
    kafka_memory.remember(admin.cluster, group, states, snapshot)
