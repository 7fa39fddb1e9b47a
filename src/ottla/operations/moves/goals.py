"""Whether a goal can be reached, and what it is in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ottla.errors import InputError
from ottla.operations.moves.values import Goal, Layout, Placement, Racks


def lost_brokers(layout: Layout) -> frozenset[int]:
    """Return the brokers that have replicas and are not up."""
    alive = {member.id for member in layout.alive()}
    return frozenset(broker for place in layout.placements for broker in place.replicas if broker not in alive)


def removed_brokers(layout: Layout, goal: Goal) -> frozenset[int]:
    """Return the brokers that lose all replicas."""
    return goal.drain | lost_brokers(layout) if goal.is_repair else goal.drain


def purpose(layout: Layout, goal: Goal) -> str:
    """Return what the goal is."""
    parts = []
    if goal.drain:
        parts.append(f"drain {_named(goal.drain)}")
    if goal.is_repair:
        parts.append(f"replace replicas of {_named(lost_brokers(layout)) or 'lost brokers: there are none'}")
    if goal.is_balance:
        parts.append("even out replicas")
    parts += [f"{count} replicas of topic {topic}" for topic, count in sorted(goal.replicas.items())]
    return ", ".join(parts)


def check_goal(layout: Layout, goal: Goal) -> None:
    """Raise `InputError` if the goal names what does not exist, or leaves too few brokers or racks."""
    if not (goal.drain or goal.is_repair or goal.is_balance or goal.replicas):
        raise InputError("the plan has no goal: drain brokers, repair, balance, or change a replication factor")
    known = {member.id for member in layout.members} | lost_brokers(layout)
    for broker in sorted(goal.drain - known):
        raise InputError(f"there is no broker {broker}: the cluster has {_named(known)}")
    topics = {place.partition.topic for place in layout.placements}
    for topic in sorted((goal.topics or frozenset()) | set(goal.replicas)):
        if topic not in topics:
            raise InputError(f"there is no topic {topic}")
    removed = removed_brokers(layout, goal)
    left = [member for member in layout.alive() if member.id not in removed]
    if not left:
        raise InputError(f"no broker would be left to hold replicas without {_named(removed)}")
    _check_factors(layout, goal, len(left))
    if goal.racks is Racks.SPREAD:
        _check_racks(layout, removed)


def _check_factors(layout: Layout, goal: Goal, left: int) -> None:
    for topic, count in sorted(goal.replicas.items()):
        if count < 1:
            raise InputError(f"topic {topic}: {count} replicas; a partition has at least one")
        if count > left:
            up = f"{left} broker{'s' if left != 1 else ''}"
            raise InputError(f"topic {topic}: {count} replicas need {count} brokers, and {up} can hold replicas")
    removed = removed_brokers(layout, goal)
    for place in layout.placements:
        wanted = goal.replicas.get(place.partition.topic, len(place.replicas))
        if wanted > left and any(broker in removed for broker in place.replicas):
            raise InputError(
                f"{place.partition} has {wanted} replicas, and without {_named(removed)} only {left}"
                f" broker{'s' if left != 1 else ''} would be left: add brokers, or lower its replication factor first"
            )


def _check_racks(layout: Layout, removed: frozenset[int]) -> None:
    """Raise `InputError` if draining takes the last broker of a rack that partitions need."""
    rack_of = {member.id: member.rack for member in layout.members}
    left = {member.rack for member in layout.alive() if member.id not in removed}
    for rack in sorted({rack_of.get(broker) or "" for broker in removed} - {rack or "" for rack in left} - {""}):
        for place in layout.placements:
            if _racks(place, rack_of) > len(left) and any(rack_of.get(broker) == rack for broker in place.replicas):
                emptied = sorted(broker for broker in removed if rack_of.get(broker) == rack)
                raise InputError(
                    f"{_named(emptied)} would leave rack {rack} without a broker, and {place.partition} has replicas in"
                    f" {_racks(place, rack_of)} racks: some would share a rack. Add a broker to the rack, or ignore"
                    " racks"
                )


def _racks(place: Placement, rack_of: dict[int, str | None]) -> int:
    return len({rack_of.get(broker) for broker in place.replicas})


def _named(brokers: Iterable[int]) -> str:
    ids = sorted(brokers)
    return f"broker{'s' if len(ids) != 1 else ''} {', '.join(map(str, ids))}" if ids else ""
