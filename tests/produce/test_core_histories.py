"""The core of a producer keeps its promises in any history, and every rule that is broken on purpose is detected.

OTTLA_HISTORIES sets how many histories there are of each kind of producer.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Collection
from typing import Any

import pytest

from ottla.errors import NotDelivered, OttlaError
from ottla.produce import core as core_module
from ottla.produce import expiry, hook
from ottla.produce.core import Core
from ottla.produce.fast_path import FastRecord, Offer
from ottla.produce.lane import Lane
from ottla.produce.outgoing import Outgoing
from ottla.produce.packing import Topic
from ottla.produce.participants import Gate
from ottla.produce.topics import Topics

from .core_world import GHOST, MOST_RECORDS, World
from .lane_world import BEFORE_APPEND, INVALID

HISTORIES = int(os.environ.get("OTTLA_HISTORIES", "1000"))
KINDS = {
    "plain": {},
    "single records": {},
    "spooling": {"spooling": True},
    "transactional": {"transactional": True},
}
Action = Callable[[World, random.Random], None]
Guard = Callable[[World], bool]


def _always(_: World) -> bool:
    return True


def _busy(world: World) -> list[int]:
    return [
        broker for broker, connection in world.connections.items() if connection is not None and connection.requests
    ]


def _answered(world: World) -> list[int]:
    return [broker for broker, connection in world.connections.items() if connection is not None and connection.answers]


def _hand_over(world: World, chance: random.Random) -> None:
    topic = chance.choice(["a", "a", "a", "b", "b", GHOST])
    partition = chance.choice([None, None, None, 0, 1, 2]) if topic == "a" else None
    key = chance.choice([None, b"k", b"l"]) if partition is None else None
    world.hand_over(topic, chance.choice([1, 1, 2, 5, 9]), key=key, partition=partition)


# What may happen, when, and how often relative to the rest.
HAPPENINGS: dict[str, tuple[int, Guard, Action]] = {
    "hand over": (40, _always, _hand_over),
    "turn": (90, _always, lambda w, r: w.turn()),
    "sweep": (25, _always, lambda w, r: w.sweep()),
    "send by caller": (
        30,
        lambda w: w.disk is None and w.gate is None,
        lambda w, r: w.send_by_caller(
            "b",
            key=r.choice([None, b"k"]),
            is_interrupted=r.random() < 0.1,
            wakes_in_between=r.random() < 0.1,
        ),
    ),
    "hurry": (4, _always, lambda w, r: w.hurry()),
    "process": (70, lambda w: bool(_busy(w)), lambda w, r: w.process(r.choice(_busy(w)))),
    "refuse for a while": (
        6,
        lambda w: bool(_busy(w)),
        lambda w, r: w.process(r.choice(_busy(w)), r.choice(BEFORE_APPEND)),
    ),
    "refuse for good": (2, lambda w: bool(_busy(w)), lambda w, r: w.process(r.choice(_busy(w)), INVALID)),
    "answer": (70, lambda w: bool(_answered(w)), lambda w, r: w.answer(r.choice(_answered(w)))),
    "lose": (6, lambda w: bool(w.up()), lambda w, r: w.lose(r.choice(w.up()), r.randrange(4))),
    "process late": (6, lambda w: any(w.late), lambda w, r: w.process_late(r.randrange(8))),
    "idle out": (3, lambda w: bool(w.up()), lambda w, r: w.idle_out(r.choice(w.up()))),
    "connect": (40, lambda w: bool(w.connecting), lambda w, r: w.connect(r.choice(sorted(w.connecting)))),
    "not connected": (6, lambda w: bool(w.connecting), lambda w, r: w.not_connected(r.choice(sorted(w.connecting)))),
    "look up": (40, lambda w: bool(w.lookups), lambda w, r: w.look_up(r.randrange(4), succeed=True)),
    "not looked up": (6, lambda w: bool(w.lookups), lambda w, r: w.look_up(r.randrange(4), succeed=False)),
    "finish": (40, lambda w: bool(w.waiting), lambda w, r: w.finish(r.randrange(4), succeed=True)),
    "not finished": (3, lambda w: bool(w.waiting), lambda w, r: w.finish(r.randrange(4), succeed=False)),
    "leader moves": (4, _always, lambda w, r: w.leader_moves(r.choice(sorted(w.leaders)))),
    "smaller batches only": (2, _always, lambda w, r: w.shrink(r.choice([1, 2, MOST_RECORDS]))),
    "ghost is created": (1, _always, lambda w, r: w.create_ghost()),
    "topic grows": (2, _always, lambda w, r: w.grow()),
    "drop": (2, _always, lambda w, r: w.drop(r.choice([1, 500, 5000]))),
    "time": (40, _always, lambda w, r: w.pass_time(r.choice([0.01, 0.1, 0.5, 1.2]))),
    "much time": (2, _always, lambda w, r: w.pass_time(r.choice([7.0, 31.0]))),
    "disk refuses": (4, lambda w: w.disk is not None, lambda w, r: _set_disk(w, refuses=True)),
    "disk works": (6, lambda w: w.disk is not None, lambda w, r: _set_disk(w, refuses=False)),
    "keep": (8, lambda w: w.disk is not None, lambda w, r: w.keep()),
    "damage": (1, lambda w: w.disk is not None, lambda w, r: _damage(w, r)),
    "drop stored": (2, lambda w: w.disk is not None, lambda w, r: w.drop_stored(r.choice([1, 1000]))),
    "abort": (3, lambda w: w.gate is not None, lambda w, r: w.begin_transaction()),
}


def _set_disk(world: World, *, refuses: bool) -> None:
    assert world.disk is not None
    world.disk.refuses = refuses


def _damage(world: World, chance: random.Random) -> None:
    assert world.disk is not None
    batches = [batch for _, lane in world.core.topics.lanes for batch in lane.queue if not batch.in_flight]
    if batches:
        world.disk.damaged.add(chance.choice(batches))


def live(seed: int, kind: str, steps: int = 150) -> World:
    """One history from a seed, healed and checked."""
    chance = random.Random(seed)
    world = World(seed, **KINDS[kind])
    weights_by_name = {name: weight for name, (weight, _, _) in HAPPENINGS.items()}
    if kind == "single records":
        weights_by_name |= {"hand over": 6, "send by caller": 120, "drop": 0}
        world.hand_over("b", 1)
        world.heal()
    names, weights = list(weights_by_name), list(weights_by_name.values())
    # Some histories omit some faults: frequent faults hide bugs that need a quiet time.
    absent = {name for name in names if HAPPENINGS[name][0] < 10 and chance.random() < 0.4}
    for name in chance.choices(names, weights, k=steps):
        _, guard, action = HAPPENINGS[name]
        if name not in absent and guard(world):
            action(world, chance)
    if world.gate is not None and not world.gate.sending:
        while not world.gate.sending:
            _settle(world)
    world.heal()
    world.check_promises()
    return world


def _settle(world: World) -> None:
    """Bring back everything in flight, so that the next transaction can begin."""
    while world.waiting:
        world.finish(0, succeed=True)
    for broker in world.up():
        while _busy(world):
            world.process(_busy(world)[0])
        connection = world.connections[broker]
        while connection is not None and connection.answers:
            world.answer(broker)
    world.begin_transaction()


def play(kind: str, histories: int) -> list[World]:
    worlds = []
    for seed in range(histories):
        try:
            worlds.append(live(seed, kind))
        except AssertionError as error:
            raise AssertionError(f"live({seed}, {kind!r}): {error}") from error
    return worlds


@pytest.mark.parametrize("kind", KINDS)
def test_no_history_loses_doubles_reorders_or_forgets_a_record(kind: str) -> None:
    histories = HISTORIES // len(KINDS)
    worlds = play(kind, histories)
    # A simulation in which nothing happens proves nothing.
    assert sum(world.reports["Flushed"] for world in worlds) > 5 * histories
    assert sum(len(world.sent) for world in worlds) > 3 * histories
    if kind == "single records":
        assert sum(world.sent_by_callers for world in worlds) > 3 * histories
    else:
        assert sum(world.reports["Dropped"] for world in worlds) > histories // 20


# Rules that are broken on purpose: each must be detected.


def _forgets_what_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expiry: a batch that is in flight is reported as certainly not written."""
    real = expiry.not_delivered

    def certain(batch: Outgoing, reason: str, **rest: Any) -> NotDelivered:
        return real(batch, reason, **{**rest, "maybe_written": False})

    for module in (core_module, expiry):
        monkeypatch.setattr(module, "not_delivered", certain)


def _never_expires_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expiry: a batch that is given up stays in its queue."""
    monkeypatch.setattr(Lane, "given_up", lambda self, batch: None)


def _drops_what_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropping: batches that a broker may have are dropped too."""
    monkeypatch.setattr(
        expiry.Expiry, "drop_unsent", lambda self, size: self._drop(size, lambda batch: batch.held_bytes)
    )


def _sends_before_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spool: a disk that refuses holds nothing up."""

    def not_stored(self: Core, lane: Lane, now: float) -> None:
        lane.stored = next((batch for batch in lane.queue if not batch.in_flight), None)

    monkeypatch.setattr(Core, "not_stored", not_stored)


def _parts_the_wrong_way_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splitting: the second half comes first."""
    real = Lane.replaced
    monkeypatch.setattr(Lane, "replaced", lambda self, batch, parts: real(self, batch, list(parts)[::-1]))


def _keeps_the_memory_of_what_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splitting: the whole is still counted."""
    real = hook.split_batch

    def split_batch(
        batch: Outgoing, invalid: Collection[int], *, level: int | None
    ) -> tuple[list[Outgoing], list[Outgoing]]:
        parts = real(batch, invalid, level=level)
        batch.held_bytes = 0
        return parts

    monkeypatch.setattr("ottla.produce.core.split_batch", split_batch)


def _forgets_what_waits_for_its_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown topics: their records get no outcome."""

    def forget(self: Topics, topic: Topic, error: OttlaError) -> None:
        topic.waiting.clear()
        topic.late.clear()

    monkeypatch.setattr(Topics, "_refuse_waiting", forget)


def _never_looks_for_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leader moves: the old leader is asked again and again."""
    monkeypatch.setattr(Core, "_find_leader", lambda self, carried, answer, *, has_moved: None)


def _claims_what_was_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers who send themselves: a claim that comes too late counts too."""

    def claim(self: Offer, record: FastRecord | None) -> bool:
        self.claims.insert(0, record)
        return True

    monkeypatch.setattr(Offer, "claim", claim)


def _forgets_the_number_of_a_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers who send themselves: the next batch gets the same number."""
    monkeypatch.setattr(Lane, "add_numbered", lambda self, batch: self.queue.append(batch))


def _sends_without_joining(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions: the coordinator need not know a partition."""
    monkeypatch.setattr(Gate, "lets_through", lambda self, tp: self.sending)


def _sends_outside_of_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions: added partitions stay added."""
    monkeypatch.setattr(Gate, "lets_through", lambda self, tp: tp in self._added or bool(self._requested.add(tp)))


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (_forgets_what_was_sent, "plain"),
        (_never_expires_what_waits, "plain"),
        (_drops_what_is_under_way, "plain"),
        (_sends_before_it_is_stored, "spooling"),
        (_parts_the_wrong_way_round, "plain"),
        (_keeps_the_memory_of_what_is_cut, "plain"),
        (_forgets_what_waits_for_its_topic, "plain"),
        (_never_looks_for_the_leader, "plain"),
        (_claims_what_was_taken_back, "single records"),
        (_forgets_the_number_of_a_caller, "single records"),
        (_sends_without_joining, "transactional"),
        (_sends_outside_of_transactions, "transactional"),
    ],
)
def test_a_rule_that_is_broken_on_purpose_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], kind: str
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match="live"):
        play(kind, 600)
