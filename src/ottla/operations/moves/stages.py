"""Where the partitions of a plan are, from what brokers say. Pure.

Comes in: a plan, metadata, running reassignments, sizes. Goes out: a `View`: the stage of each partition, and what is
left to copy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ottla.admin.movement import Reassignment
from ottla.model import TopicPartition
from ottla.net.metadata import Metadata, Partition
from ottla.operations.moves.checks import is_between, owned
from ottla.operations.moves.progress import Stage
from ottla.operations.moves.values import Move, Plan


@dataclass(frozen=True, slots=True)
class View:
    """A plan at one moment."""

    stages: Mapping[TopicPartition, Stage]
    stalled: frozenset[TopicPartition]
    """Partitions that move to a broker that is down: they wait for it."""
    leaders: Mapping[TopicPartition, int]
    unsafe: frozenset[TopicPartition]
    """Partitions with a single in-sync replica, or fewer than they need."""
    lost: frozenset[int]
    """Brokers of unfinished moves that are down."""
    ending: frozenset[TopicPartition] = frozenset()
    """Partitions at `Stage.MOVING` with old and new replicas and no running move: it has ended a moment before."""

    def having(self, stage: Stage) -> set[TopicPartition]:
        """Return the partitions at a stage."""
        return {partition for partition, each in self.stages.items() if each is stage}


def view_of(
    plan: Plan,
    metadata: Metadata,
    running: Collection[Reassignment],
    *,
    min_in_sync: Mapping[str, int],
    settled: Collection[TopicPartition] = (),
) -> View:
    """Return where each partition of the plan is. `settled` were at `View.ending` for longer than metadata lags."""
    own = owned(plan, running)
    foreign = {each.partition for each in running} - own.keys()
    stages: dict[TopicPartition, Stage] = {}
    stalled, unsafe, lost, ending, leaders = set(), set(), set(), set(), {}
    for move in plan.moves:
        partition = partition_of(metadata, move.partition)
        stage = _stage(
            move,
            partition,
            metadata,
            is_own=move.partition in own,
            is_foreign=move.partition in foreign,
            is_settled=move.partition in settled,
        )
        stages[move.partition] = stage
        if partition is None or stage in (Stage.DONE, Stage.CHANGED):
            continue
        if stage is Stage.MOVING and move.partition not in own:
            ending.add(move.partition)
        leaders[move.partition] = partition.leader
        if len(partition.isr) <= min(min_in_sync.get(move.partition.topic, 1), len(partition.replicas) - 1):
            unsafe.add(move.partition)
        down = {broker for broker in (*move.before, *move.after) if broker not in metadata.brokers}
        lost |= down
        if stage is Stage.MOVING and not down.isdisjoint(move.added):
            stalled.add(move.partition)
    return View(stages, frozenset(stalled), leaders, frozenset(unsafe), frozenset(lost), frozenset(ending))


def partition_of(metadata: Metadata, tp: TopicPartition) -> Partition | None:
    """Return a partition in metadata, None if it does not exist."""
    topic = metadata.topics.get(tp.topic)
    return None if topic is None else topic.partition(tp.partition)


def _stage(
    move: Move, partition: Partition | None, metadata: Metadata, *, is_own: bool, is_foreign: bool, is_settled: bool
) -> Stage:
    if is_own:
        return Stage.MOVING
    if partition is None or is_foreign:
        return Stage.BLOCKED
    if partition.replicas == move.after:
        return Stage.DONE
    if is_between(move, partition.replicas) and not is_settled:
        return Stage.MOVING  # it has just ended, and this broker does not know yet
    if set(partition.replicas) not in (set(move.before), set(move.after)):
        return Stage.CHANGED
    if partition.leader < 0 or any(broker not in metadata.brokers for broker in move.added):
        return Stage.BLOCKED
    return Stage.WAITING


def left_bytes(
    plan: Plan, view: View, sizes: Mapping[TopicPartition, Mapping[int, int]]
) -> dict[TopicPartition, dict[int, int]]:
    """Return the bytes that each target still lacks, by partition. `sizes` has those of partitions that move."""
    left: dict[TopicPartition, dict[int, int]] = {}
    for move in plan.moves:
        stage = view.stages[move.partition]
        if stage in (Stage.DONE, Stage.CHANGED) or not move.added:
            continue
        present = sizes.get(move.partition, {}) if stage is Stage.MOVING else {}
        size = max((size for broker, size in present.items() if broker not in move.added), default=move.size_bytes)
        left[move.partition] = {broker: max(0, size - present.get(broker, 0)) for broker in move.added}
    return left
