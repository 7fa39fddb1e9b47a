"""A lane keeps its promises in any history: nothing lost, nothing twice, nothing out of order, offsets correct.

Histories come from Hypothesis, which shrinks those that fail, and in larger numbers from seeds; OTTLA_HISTORIES sets
how many.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from .lane_world import AFTER_APPEND, BEFORE_APPEND, INVALID, OK, SEQUENCES, TOO_LARGE, World

HISTORIES = int(os.environ.get("OTTLA_HISTORIES", "2000"))


Action = Callable[[World, random.Random], None]
Guard = Callable[[World], bool]


def _always(_: World) -> bool:
    return True


def _some_requests(world: World) -> list[int]:
    return [place for place, wire in enumerate(world.wires) if wire.requests]


def _some_answers(world: World) -> list[int]:
    return [place for place, wire in enumerate(world.wires) if wire.answers]


SIZES = [1, 1, 2, 3, 7]
KINDS = [OK] * 12 + [TOO_LARGE, TOO_LARGE, INVALID]
# What may happen, when, and how often relative to the rest.
HAPPENINGS: dict[str, tuple[int, Guard, Action]] = {
    "add": (20, _always, lambda w, r: w.add(r.choice(SIZES), r.choice(KINDS))),
    "send": (60, lambda w: w.can_send(), lambda w, r: w.send()),
    "number only": (2, lambda w: w.can_send(), lambda w, r: w.number_only()),
    "number all": (2, lambda w: bool(w.lane.queue), lambda w, r: w.number_all()),
    "process": (40, lambda w: bool(_some_requests(w)), lambda w, r: w.process(r.choice(_some_requests(w)))),
    "refuse for a while": (
        6,
        lambda w: bool(_some_requests(w)),
        lambda w, r: w.process(r.choice(_some_requests(w)), r.choice(BEFORE_APPEND)),
    ),
    "append and fail": (
        6,
        lambda w: bool(_some_requests(w)),
        lambda w, r: w.process(r.choice(_some_requests(w)), r.choice(AFTER_APPEND)),
    ),
    "answer": (40, lambda w: bool(_some_answers(w)), lambda w, r: w.answer(r.choice(_some_answers(w)))),
    "lose": (6, _always, lambda w, r: w.lose(r.randrange(8), r.randrange(6))),
    "process late": (8, lambda w: any(w.late), lambda w, r: w.process_late(r.randrange(8))),
    "give up": (3, lambda w: bool(w.lane.queue), lambda w, r: w.give_up(r.choice([0, 0, r.randrange(8)]))),
    "pass time": (15, _always, lambda w, r: w.pass_time(r.choice([0.01, 0.1, 0.3]))),
    "start check": (20, lambda w: w.lane.ready_to_check, lambda w, r: w.start_check()),
    "read log": (20, lambda w: w.lane.checking and w.offsets_found is None, lambda w, r: w.read_log()),
    "finish check": (20, lambda w: w.offsets_found is not None, lambda w, r: w.finish_check()),
    "fail check": (2, lambda w: w.lane.checking, lambda w, r: w.fail_check()),
    "leader moves": (3, _always, lambda w, r: w.leader_moves()),
    "learn of the leader": (2, lambda w: w.wires[-1].stale, lambda w, r: w.reconnect()),
    "expire ids": (2, lambda w: w.lane.in_flight == 0, lambda w, r: w.expire_ids()),
    "foreign use": (1, _always, lambda w, r: w.foreign_use()),
}


def _inherited(world: World, chance: random.Random) -> None:
    counts = [chance.choice([1, 2, 3]) for _ in range(chance.randrange(9))]
    stored = chance.randrange(len(counts) + 1)
    world.inherit(
        counts, stored=stored, kept=chance.randrange(stored + 1) if counts else 0, expired=chance.random() < 0.3
    )


def _begin(world: World, chance: random.Random) -> None:
    draw = chance.random()
    if draw < 0.25:
        _inherited(world, chance)
    elif draw < 0.5:  # the sequence numbers are about to start from 0 again
        world.add(SEQUENCES - 1 - chance.randrange(20))
        world.heal()


def live(seed: int, steps: int = 60) -> World:
    """One history from a seed, healed and checked."""
    chance = random.Random(seed)
    world = World()
    _begin(world, chance)
    names, weights = list(HAPPENINGS), [weight for weight, _, _ in HAPPENINGS.values()]
    # Some histories omit some faults: frequent faults hide bugs that need a quiet time.
    absent = {name for name in names if HAPPENINGS[name][0] < 10 and chance.random() < 0.4}
    for name in chance.choices(names, weights, k=steps):
        _, guard, action = HAPPENINGS[name]
        if name not in absent and guard(world):
            action(world, chance)
    world.heal()
    world.check_promises()
    return world


def test_no_history_loses_doubles_or_reorders_a_batch() -> None:
    acknowledged = bumped = 0
    for seed in range(HISTORIES):
        try:
            world = live(seed)
        except AssertionError as error:
            raise AssertionError(f"live({seed}): {error}") from error
        acknowledged += len(world.acknowledged)
        bumped += world.lane.epoch > 0
    # A simulation in which nothing happens proves nothing.
    assert acknowledged > HISTORIES
    assert bumped > HISTORIES // 20


class LaneHistories(RuleBasedStateMachine):
    """The same world, with histories that Hypothesis generates and shrinks."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @initialize(chance=st.randoms(use_true_random=False))
    def begin(self, chance: random.Random) -> None:
        _begin(self.world, chance)

    def teardown(self) -> None:
        self.world.heal()
        self.world.check_promises()


def _rule(name: str) -> Any:
    _, guard, action = HAPPENINGS[name]

    def happens(self: LaneHistories, chance: random.Random) -> None:
        action(self.world, chance)

    happens.__name__ = name.replace(" ", "_")
    guarded = precondition(lambda self: guard(self.world))
    return guarded(rule(chance=st.randoms(use_true_random=False))(happens))


for _name in HAPPENINGS:
    setattr(LaneHistories, f"happens_{_name.replace(' ', '_')}", _rule(_name))

TestLaneHistories = LaneHistories.TestCase
TestLaneHistories.settings = settings(
    max_examples=max(60, HISTORIES // 40),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
