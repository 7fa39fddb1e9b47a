"""Whether a plan may run now: what is in its way, as sentences. Pure.

Comes in: a plan, a survey of the cluster, and what moves at the moment. Goes out: reasons to refuse, empty if there are
none. Nothing may have been changed before they are known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from ottla.admin.movement import Reassignment
from ottla.errors import InputError
from ottla.model import TopicPartition
from ottla.net.metadata import Metadata
from ottla.operations.moves.reading import Survey
from ottla.operations.moves.values import Move, Placement, Plan

_SHOWN = 3


def obstacles(plan: Plan, found: Survey, running: Collection[Reassignment]) -> list[str]:
    """Return why the plan must not run, most important first."""
    if plan.cluster_id != found.layout.cluster_id:
        return [_other_cluster(plan, found.layout.cluster_id)]
    return [
        *_changed(plan, found, running),
        *_foreign(plan, running),
        *_missing_brokers(plan, found),
        *_unhealthy(plan, found),
        *_too_few(plan, found),
        *_full_disks(plan, found),
    ]


def require_cluster(plan: Plan, metadata: Metadata) -> None:
    """Raise `InputError` if the plan is for another cluster."""
    if plan.cluster_id != metadata.cluster_id:
        raise InputError(_other_cluster(plan, metadata.cluster_id))


def _other_cluster(plan: Plan, present: str | None) -> str:
    return f"the plan is for cluster {plan.cluster_id}, and this is cluster {present}"


def owned(plan: Plan, running: Collection[Reassignment]) -> dict[TopicPartition, Reassignment]:
    """Return the running reassignments that this plan has begun: they end where it wants the replicas."""
    after = {move.partition: move.after for move in plan.moves}
    return {each.partition: each for each in running if set(after.get(each.partition, ())) == target_of(each)}


def is_between(move: Move, replicas: Collection[int]) -> bool:
    """Whether a partition has exactly the old and the new replicas, as it does while it moves."""
    return bool(move.added and move.removed) and set(replicas) == {*move.before, *move.after}


def with_ended(
    plan: Plan, earlier: Collection[Reassignment], running: Collection[Reassignment]
) -> tuple[Reassignment, ...]:
    """Return what runs, and what the plan began and ended between two looks: metadata may show that it runs."""
    present = {each.partition for each in running}
    return (*running, *(each for tp, each in owned(plan, earlier).items() if tp not in present))


def are_ending(plan: Plan, found: Survey, running: Collection[Reassignment]) -> bool:
    """Whether moves of the plan seem to have ended a moment ago, so that some brokers do not know yet."""
    present = {place.partition: place.replicas for place in found.layout.placements}
    moving = {each.partition for each in running}
    return any(is_between(move, present.get(move.partition, ())) for move in plan.moves if move.partition not in moving)


def target_of(running: Reassignment) -> set[int]:
    """Return the brokers that a partition will have."""
    return set(running.replicas) - set(running.removing)


def _changed(plan: Plan, found: Survey, running: Collection[Reassignment]) -> Iterator[str]:
    present = {place.partition: place.replicas for place in found.layout.placements}
    gone = [move for move in plan.moves if move.partition not in present]
    if gone:
        yield f"{_some([str(move.partition) for move in gone])}: the partition does not exist any more. Make a new plan"
    moving = {each.partition for each in running}
    other = [
        move
        for move in plan.moves
        if move.partition in present
        and move.partition not in moving
        # A move that was cancelled may have left the same replicas in another order.
        and set(present[move.partition]) != set(move.before)
        and set(present[move.partition]) != set(move.after)
    ]
    if other:
        text = [
            f"{move.partition} (now {_ids(present[move.partition])}, planned from {_ids(move.before)})"
            for move in other
        ]
        yield f"the replicas have changed since the plan was made: {_some(text)}. Make a new plan"


def _foreign(plan: Plan, running: Collection[Reassignment]) -> Iterator[str]:
    own = owned(plan, running)
    others = [str(each.partition) for each in running if each.partition not in own]
    if others:
        yield (
            f"other moves are running that do not belong to this plan: {_some(others)}. Wait for them, or cancel them"
            " with the program that began them"
        )


def _missing_brokers(plan: Plan, found: Survey) -> Iterator[str]:
    alive = {member.id for member in found.layout.alive()}
    wanted = Counter(broker for move in plan.moves for broker in move.added if broker not in alive)
    for broker, count in sorted(wanted.items()):
        yield f"broker {broker} is to get {count} replica{'s' if count != 1 else ''} and is not up"


def _unhealthy(plan: Plan, found: Survey) -> Iterator[str]:
    planned = {move.partition for move in plan.moves}
    others = [place for place in found.layout.placements if place.partition not in planned]
    offline = [str(place.partition) for place in others if place.leader < 0]
    if offline:
        yield f"without a leader: {_some(offline)}. Bring their brokers back first, or repair them with a plan"
    thin = [
        str(place.partition) for place in others if place.leader >= 0 and is_under_minimum(place, found.min_in_sync)
    ]
    if thin:
        yield f"fewer in-sync replicas than min.insync.replicas: {_some(thin)}. Let them catch up first"


def is_under_minimum(place: Placement, minimum: Mapping[str, int]) -> bool:
    """Whether a partition has too few in-sync replicas for producers with acks=all."""
    wanted = min(minimum.get(place.partition.topic, 1), len(place.replicas))
    return len(place.isr) < wanted


def _too_few(plan: Plan, found: Survey) -> Iterator[str]:
    for topic in sorted({move.partition.topic for move in plan.moves if len(move.after) < len(move.before)}):
        minimum = found.min_in_sync.get(topic, 1)
        fewest = min(len(move.after) for move in plan.moves if move.partition.topic == topic)
        if fewest < minimum:
            yield (
                f"topic {topic} has min.insync.replicas={minimum}: with {fewest} replicas, producers with acks=all"
                f" could not write. Lower it first: 'ottla topics alter {topic} --setting min.insync.replicas={fewest}'"
            )


def _full_disks(plan: Plan, found: Survey) -> Iterator[str]:
    coming: Counter[int] = Counter()
    for move in plan.moves:
        for broker in move.added:
            coming[broker] += left_of(move, broker, found)
    for broker, size in sorted(coming.items()):
        usable = found.usable.get(broker)
        if usable is not None and size > usable:
            yield f"broker {broker} is to get {size:,} bytes, and its disks have room for {usable:,}"


def left_of(move: Move, broker: int, found: Survey) -> int:
    """Return the bytes of a move that a broker does not have yet."""
    sizes = found.sizes.get(move.partition, {})
    size = max((size for holder, size in sizes.items() if holder != broker), default=move.size_bytes)
    return max(0, size - sizes.get(broker, 0))


def _some(texts: Collection[str]) -> str:
    shown = list(texts)[:_SHOWN]
    more = len(texts) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _ids(replicas: Collection[int]) -> str:
    return ",".join(map(str, replicas))
