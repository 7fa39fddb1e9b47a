"""A layout and a goal become a plan: which replicas move where, and who leads.

Comes in: a `Layout` and a `Goal`. Goes out: a `Plan` that moves as little as possible, the same one for the same input.
Raises `InputError` for a goal that cannot be reached. Pure.

Without `is_balance`, only replicas that have to move do: those on drained or lost brokers, and those that a higher
replication factor adds. They go where the load is lowest. With it, every replica may move, and the cheapest set of
moves after which loads are even is chosen.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ottla.operations.moves import placing
from ottla.operations.moves.goals import check_goal, purpose, removed_brokers
from ottla.operations.moves.leaders import Candidates, choose_leaders
from ottla.operations.moves.problem import Item, Problem, least_moves
from ottla.operations.moves.values import Cost, Goal, Layout, Member, Move, Placement, Plan, Racks

_SAME_LEADER, _HAD_IT, _NEW_COPY = 0, 1, 2


def make_plan(layout: Layout, goal: Goal) -> Plan:
    """Return the plan that leads from `layout` to `goal`. Raises `InputError` if the goal cannot be reached."""
    check_goal(layout, goal)
    scope = _Scope.of(layout, goal)
    items = [_item(scope, place) for place in scope.placements]
    open_items = [number for number, item in enumerate(items) if item.need]
    problem = _problem(scope, layout, items, open_items)
    chosen = placing.place(problem)
    replicas = {place.partition: list(item.fixed_ids) for place, item in zip(scope.placements, items, strict=True)}
    for number, brokers in zip(open_items, chosen, strict=True):
        replicas[scope.placements[number].partition] += [scope.targets[broker].id for broker in brokers]
    after = [tuple(replicas[place.partition]) for place in scope.placements]
    moves = _with_leaders(scope, layout, after)
    return Plan(layout.cluster_id, moves, least_moves(problem), purpose(layout, goal))


@dataclass(frozen=True, slots=True)
class _Scope:
    """What the plan may touch."""

    goal: Goal
    targets: tuple[Member, ...]
    """The brokers that may get replicas."""
    number_of: Mapping[int, int]
    """The place of each target in `targets`, by id."""
    removed: frozenset[int]
    """Brokers that lose all replicas."""
    placements: tuple[Placement, ...]
    topic_of: Mapping[str, int]

    @classmethod
    def of(cls, layout: Layout, goal: Goal) -> _Scope:
        removed = removed_brokers(layout, goal)
        targets = tuple(member for member in layout.alive() if member.id not in removed)
        chosen = goal.topics if goal.topics is not None else frozenset(goal.replicas) or None
        if chosen is not None and (goal.drain or goal.is_repair or goal.is_balance) and goal.topics is None:
            chosen = None  # a new replication factor of some topics, and another goal for all
        placements = tuple(place for place in layout.placements if chosen is None or place.partition.topic in chosen)
        topics = sorted({place.partition.topic for place in layout.placements})
        return cls(
            goal,
            targets,
            {member.id: number for number, member in enumerate(targets)},
            removed,
            placements,
            {topic: number for number, topic in enumerate(topics)},
        )

    def racks(self) -> list[int]:
        """Return the rack of each target as a number. Brokers without a rack share one."""
        if self.goal.racks is Racks.IGNORE:
            return [0] * len(self.targets)
        names = sorted({member.rack or "" for member in self.targets})
        return [names.index(member.rack or "") for member in self.targets]


@dataclass(frozen=True, slots=True)
class _Item:
    """A partition: who keeps it whatever happens, who may keep it, how many more are needed."""

    fixed_ids: tuple[int, ...]
    optional_ids: tuple[int, ...]
    need: int
    may_move: bool


def _item(scope: _Scope, place: Placement) -> _Item:
    kept = tuple(broker for broker in place.replicas if broker not in scope.removed)
    wanted = scope.goal.replicas.get(place.partition.topic, len(place.replicas))
    reachable = tuple(broker for broker in kept if broker in scope.number_of)
    lost = tuple(broker for broker in kept if broker not in scope.number_of)
    if wanted < len(kept):
        return _fewer(scope, place, wanted, reachable, lost)
    if scope.goal.is_balance:
        return _Item(lost, reachable, wanted - len(lost), may_move=True)
    return _Item(kept, (), wanted - len(kept), may_move=True)


def _fewer(scope: _Scope, place: Placement, wanted: int, reachable: tuple[int, ...], lost: tuple[int, ...]) -> _Item:
    """Return an item that gives replicas up: first those on brokers that are gone, then those that are not in sync.

    The leader stays: another one would have to be elected.
    """
    in_sync = tuple(broker for broker in reachable if broker in place.isr)
    fixed = tuple(broker for broker in (place.leader,) if broker in in_sync)
    able = in_sync if len(in_sync) >= wanted else reachable
    if len(able) < wanted:
        fixed = (*reachable, *lost)[:wanted]
        return _Item(fixed, (), 0, may_move=False)
    optional = tuple(broker for broker in able if broker not in fixed)
    return _Item(fixed, optional, wanted - len(fixed), may_move=scope.goal.is_balance)


def _problem(scope: _Scope, layout: Layout, items: Sequence[_Item], open_items: Sequence[int]) -> Problem:
    fixed = {place.partition: item.fixed_ids for place, item in zip(scope.placements, items, strict=True)}
    load = [0] * len(scope.targets)
    topic_load: dict[tuple[int, int], int] = defaultdict(int)
    for place in layout.placements:
        for broker in fixed.get(place.partition, place.replicas):
            if (number := scope.number_of.get(broker)) is not None:
                load[number] += 1
                topic_load[scope.topic_of[place.partition.topic], number] += 1
    rows = []
    for number in open_items:
        item, placement = items[number], scope.placements[number]
        rows.append(
            Item(
                scope.topic_of[placement.partition.topic],
                item.need,
                tuple(scope.number_of[broker] for broker in item.fixed_ids if broker in scope.number_of),
                tuple(scope.number_of[broker] for broker in item.optional_ids),
                # An empty partition costs something, too: moving it is work.
                1 if scope.goal.cost is Cost.REPLICAS else placement.size_bytes + 1,
                item.may_move,
            )
        )
    return Problem(scope.racks(), rows, load, topic_load)


def _with_leaders(scope: _Scope, layout: Layout, after: Sequence[tuple[int, ...]]) -> tuple[Move, ...]:
    """Return the moves, with the replicas in order: the leader, those that stay, those that are new."""
    leads = [0] * len(scope.targets)
    in_scope = {place.partition for place in scope.placements}
    for place in layout.placements:
        if place.partition not in in_scope and place.replicas and place.replicas[0] in scope.number_of:
            leads[scope.number_of[place.replicas[0]]] += 1
    undecided: list[int] = []
    candidates: list[Candidates] = []
    leader_of: dict[int, int] = {}
    for number, (place, brokers) in enumerate(zip(scope.placements, after, strict=True)):
        preferred = place.replicas[0]
        if preferred in brokers and not scope.goal.is_balance:
            leader_of[number] = preferred
            if preferred in scope.number_of:
                leads[scope.number_of[preferred]] += 1
            continue
        able = [broker for broker in brokers if broker in scope.number_of]
        if not able:
            leader_of[number] = brokers[0]
            continue
        undecided.append(number)
        costs = tuple(_leader_cost(place, broker) for broker in able)
        candidates.append(Candidates(tuple(scope.number_of[broker] for broker in able), costs))
    for number, broker in zip(undecided, choose_leaders(candidates, leads), strict=True):
        leader_of[number] = scope.targets[broker].id
    moves = []
    for number, (place, brokers) in enumerate(zip(scope.placements, after, strict=True)):
        leader = leader_of[number]
        kept = [broker for broker in place.replicas if broker in brokers and broker != leader]
        new = sorted(broker for broker in brokers if broker not in place.replicas and broker != leader)
        ordered = (leader, *kept, *new)
        if ordered != place.replicas:
            moves.append(Move(place.partition, place.replicas, ordered, place.size_bytes))
    return tuple(moves)


def _leader_cost(place: Placement, broker: int) -> int:
    if broker == place.replicas[0]:
        return _SAME_LEADER
    return _HAD_IT if broker in place.replicas else _NEW_COPY


def load_of(layout: Layout) -> Counter[int]:
    """Return the replicas of each broker, 0 for those that have none."""
    counts = Counter({member.id: 0 for member in layout.members})
    counts.update(broker for place in layout.placements for broker in place.replicas)
    return counts
