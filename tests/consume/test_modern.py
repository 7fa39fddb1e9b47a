"""The KIP-848 state machine: what its heartbeats say, how it handles each response, and whole groups of machines
against a simulated coordinator with its own clock."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ottla.consume.modern import Modern
from ottla.consume.options import GroupOptions, Protocol
from ottla.consume.ownership import OwnedPartitions
from ottla.consume.steps import Ask, Look
from ottla.errors import BrokerError, ConnectionLost, ErrorCode, UnsupportedFormat
from ottla.model import TopicPartition
from ottla.net import Refresh, Topic

from .stands import RETRIED, TOPICS, Player, Stand, are_even, check_nothing_is_held_twice, t_partitions

T, U = UUID(int=1), UUID(int=2)


class ModernStand(Stand[Modern]):
    """A stand, with the responses of a KIP-848 coordinator."""

    def __init__(self, **overrides: Any) -> None:
        basics: dict[str, Any] = {"protocol": Protocol.CONSUMER, "session_timeout": 10.0, "max_poll_interval": 30.0}
        ownership = OwnedPartitions()
        machine = Modern(
            "g",
            options=GroupOptions(**(basics | overrides)),
            ownership=ownership,
            member_id="me",
            waits=lambda _: 1.0,
            seconds=3.0,
        )
        super().__init__(machine, ownership)

    def answer(
        self,
        ask: Ask,
        code: ErrorCode = ErrorCode.none,
        *,
        epoch: int = 1,
        assigned: dict[UUID, list[int]] | None = None,
    ) -> None:
        listed = [SimpleNamespace(topic_id=key, partitions=value) for key, value in (assigned or {}).items()]
        response = SimpleNamespace(
            error_code=code,
            error_message=None,
            member_epoch=epoch,
            heartbeat_interval=timedelta(seconds=4),
            assignment=None if assigned is None else SimpleNamespace(topic_partitions=listed),
        )
        self.machine.answered(ask, response, self.now)

    def become(self, *indices: int) -> None:
        """Join and take over an assignment."""
        self.answer(self.ask(), assigned={T: list(indices)})
        assert isinstance(self.step(), Look)
        self.machine.learned([Topic("t", T)], self.now)
        self.act()
        self.answer(self.ask())
        assert self.rest() == self.now + 4.0


@pytest.fixture
def stand() -> ModernStand:
    return ModernStand()


def test_it_joins_with_everything_that_the_broker_must_know() -> None:
    ask = ModernStand(rack="r", server_assignor="uniform", instance_id="one").ask()
    assert ask.fields == {
        "group_id": "g",
        "member_id": "me",
        "member_epoch": 0,
        "instance_id": "one",
        "rack_id": "r",
        "rebalance_timeout": timedelta(seconds=30),
        "server_assignor": "uniform",
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
    }


def test_afterwards_it_says_only_what_has_changed(stand: ModernStand) -> None:
    stand.become(0, 1)
    stand.now = 4.0
    assert stand.ask().fields == {"group_id": "g", "member_id": "me", "member_epoch": 1, "topic_partitions": None}
    stand.topics = frozenset({"t", "u"})
    assert stand.ask().fields["subscribed_topic_names"] == ["t", "u"]


def test_the_broker_sets_the_interval(stand: ModernStand) -> None:
    stand.become(0)
    for beat in range(1, 7):
        assert stand.rest() == 4.0 * beat
        stand.now = 4.0 * beat
        stand.answer(stand.ask())


def test_a_new_member_without_partitions_asks_again_soon_but_not_for_ever(stand: ModernStand) -> None:
    stand.answer(stand.ask(), assigned={})
    waits = []
    for _ in range(12):
        waits.append(stand.rest() - stand.now)
        stand.now = stand.rest()
        stand.polled = stand.now
        stand.answer(stand.ask())
    assert waits == [0.5] * 10 + [4.0] * 2


def test_what_is_taken_back_before_its_name_is_known_is_confirmed(stand: ModernStand) -> None:
    """Regression: the broker waited for a list without it, until it shut the member out for that."""
    stand.answer(stand.ask(), assigned={T: [0]})
    for now in (0.0, 4.0):
        stand.now = now
        assert isinstance(stand.step(), Look)
        stand.machine.learned([], now)
    stand.answer(stand.ask(), epoch=2, assigned={})
    confirming = stand.ask()
    assert confirming.fields["topic_partitions"] == []
    stand.answer(confirming, epoch=2)
    assert stand.rest() > 4.0


def test_a_member_that_had_to_give_everything_away_keeps_the_brokers_interval(stand: ModernStand) -> None:
    stand.become(0)
    stand.now = 4.0
    stand.answer(stand.ask(), assigned={})
    stand.act()
    stand.answer(stand.ask())
    assert stand.rest() == 8.0


def test_what_is_given_is_offered_by_name_and_confirmed(stand: ModernStand) -> None:
    stand.answer(stand.ask(), assigned={T: [0, 1]})
    look = stand.step()
    assert look == Look(TOPICS, Refresh.IF_STALE)
    stand.machine.learned([Topic("t", T)], stand.now)
    assert stand.ownership.target().partitions == t_partitions(0, 1)
    assert stand.ask().fields["topic_partitions"] == [{"topic_id": T, "partitions": [0, 1]}]


def test_a_topic_that_is_not_known_yet_is_left_out_and_looked_for(stand: ModernStand) -> None:
    stand.answer(stand.ask(), assigned={T: [0], U: [3]})
    stand.step()
    stand.machine.learned([Topic("t", T)], stand.now)
    assert stand.ownership.target().partitions == t_partitions(0)
    stand.answer(stand.ask())
    assert stand.rest() == 1.0
    stand.now = 1.0
    assert stand.step() == Look(TOPICS, Refresh.NOW)
    stand.machine.learned([Topic("u", U)], stand.now)
    assert stand.ownership.target().partitions == t_partitions(0) | {TopicPartition("u", 3)}


def test_what_is_taken_away_is_reported_as_gone_only_when_it_is(stand: ModernStand) -> None:
    stand.become(0, 1)
    stand.now = 4.0
    stand.answer(stand.ask(), assigned={T: [0]})
    assert stand.rest() == 8.0
    assert stand.ownership.target().partitions == t_partitions(0)
    assert stand.rest() == 8.0
    stand.ownership.hold(t_partitions(0))
    assert stand.ask().fields["topic_partitions"] == [{"topic_id": T, "partitions": [0]}]


def test_a_topic_that_was_created_again_is_released_first(stand: ModernStand) -> None:
    stand.become(0)
    stand.now = 4.0
    stand.answer(stand.ask(), assigned={U: [0]})
    stand.step()
    stand.machine.learned([Topic("t", U)], stand.now)
    assert stand.ownership.target().partitions == frozenset()
    stand.ownership.hold(frozenset())
    stand.step()
    assert stand.ownership.target().partitions == t_partitions(0)
    assert stand.machine._owned() == {(U, 0)}


@pytest.mark.parametrize(
    "code", [ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch, ErrorCode.group_id_not_found]
)
def test_a_member_that_was_fenced_has_lost_everything_and_joins_again(stand: ModernStand, code: ErrorCode) -> None:
    stand.become(0)
    stand.now = 4.0
    stand.answer(stand.ask(), code)
    assert stand.ownership.target().lost == t_partitions(0)
    assert stand.machine.generation == -1
    stand.now = 5.0
    ask = stand.ask()
    assert (ask.fields["member_epoch"], ask.fields["member_id"], ask.fields["topic_partitions"]) == (0, "me", [])


@pytest.mark.parametrize("code", RETRIED)
def test_after_trouble_it_says_everything_again_and_nothing_is_lost(stand: ModernStand, code: ErrorCode) -> None:
    stand.become(0)
    stand.now = 4.0
    stand.answer(stand.ask(), code)
    assert stand.rest() == 5.0
    stand.now = 5.0
    stand.machine.failed(stand.ask(), ConnectionLost("here:1", "gone"), stand.now)
    stand.now = 6.0
    ask = stand.ask()
    assert (ask.fields["member_epoch"], ask.fields["subscribed_topic_names"]) == (1, ["t"])
    assert ask.fields["topic_partitions"] == [{"topic_id": T, "partitions": [0]}]
    stand.answer(ask, assigned={T: [0]})
    assert stand.ownership.target().partitions == t_partitions(0)


def test_a_session_that_is_over_by_its_own_clock_has_lost_everything(stand: ModernStand) -> None:
    stand.become(0)
    while stand.now < 10.0:
        step = stand.step()
        if isinstance(step, Ask):
            stand.machine.failed(step, ConnectionLost("here:1", "gone"), stand.now)
        stand.now += 0.5
    stand.step()
    assert stand.ownership.target().lost == t_partitions(0)


FATAL = [
    ErrorCode.fenced_instance_id,
    ErrorCode.group_authorization_failed,
    ErrorCode.group_max_size_reached,
    ErrorCode.group_id_not_found,
    ErrorCode.unsupported_assignor,
    ErrorCode.unsupported_version,
    ErrorCode.invalid_request,
]


@pytest.mark.parametrize("code", FATAL)
def test_what_another_attempt_would_only_repeat_ends_it(stand: ModernStand, code: ErrorCode) -> None:
    ask = stand.ask()
    with pytest.raises(BrokerError, match=f"joining group g: {code.name.upper()}"):
        stand.answer(ask, code)


def test_a_broker_without_the_protocol_ends_it(stand: ModernStand) -> None:
    with pytest.raises(UnsupportedFormat):
        stand.machine.failed(stand.ask(), UnsupportedFormat("too old"), stand.now)


def test_an_instance_id_in_use_is_waited_for_as_long_as_a_dead_members_session_lasts() -> None:
    stand = ModernStand(instance_id="one")
    while stand.now < 15.0:
        step = stand.step()
        if isinstance(step, Ask):
            stand.answer(step, ErrorCode.unreleased_instance_id)
        stand.now += 0.5
    with pytest.raises(BrokerError, match="UNRELEASED_INSTANCE_ID"):
        stand.answer(stand.ask(), ErrorCode.unreleased_instance_id)


@pytest.mark.parametrize(("instance", "epoch"), [(None, -1), ("one", -2)])
def test_it_says_how_it_leaves(instance: str | None, epoch: int) -> None:
    stand = ModernStand(instance_id=instance)
    assert stand.machine.farewell() is None
    stand.become(0)
    goodbye = stand.machine.farewell()
    assert goodbye is not None
    assert (goodbye.fields["member_epoch"], goodbye.fields.get("instance_id")) == (epoch, instance)


def test_a_program_that_stays_away_leaves_and_returns(stand: ModernStand) -> None:
    stand.become(0)
    stand.now = 30.0
    ask = stand.ask()
    assert ask.fields["member_epoch"] == -1
    assert stand.ownership.target().lost == t_partitions(0)
    stand.answer(ask, epoch=-1)
    assert (stand.rest(), stand.machine.generation) == (inf, -1)
    stand.polled = 31.0
    assert stand.ask().fields["member_epoch"] == 0


def test_without_topics_it_releases_everything_and_then_leaves(stand: ModernStand) -> None:
    stand.become(0)
    stand.topics = frozenset()
    assert stand.rest() == 4.0
    assert stand.ownership.target().partitions == frozenset()
    stand.ownership.hold(frozenset())
    assert stand.ask().fields["member_epoch"] == -1


# -- whole groups


@dataclass
class Registered:
    """What the simulated coordinator knows about a member."""

    epoch: int
    assigned: frozenset[int] = frozenset()
    leaving: frozenset[int] = frozenset()
    shown: frozenset[int] | None = None


@dataclass
class Coordinator:
    """The broker's side of KIP-848 for one topic: a target, to which it moves the members step by step."""

    count: int
    epoch: int = 0
    members: dict[str, Registered] = field(default_factory=dict)

    def target(self, member: str) -> frozenset[int]:
        names = sorted(self.members)
        return frozenset(range(names.index(member), self.count, len(names)))

    def beat(self, member: str, fields: Any) -> tuple[ErrorCode, int, frozenset[int] | None]:
        if fields["member_epoch"] == 0:
            self.epoch += member not in self.members
            self.members[member] = Registered(self.epoch)
        if member not in self.members:
            return ErrorCode.unknown_member_id, 0, None
        listed = fields["topic_partitions"]
        owned = None if listed is None else {index for topic in listed for index in topic["partitions"]}
        me = self.members[member]
        self._bring_on(me, self.target(member), owned)
        is_full = "rebalance_timeout" in fields
        news = me.assigned if is_full or me.assigned != me.shown else None
        me.shown = me.assigned
        return ErrorCode.none, me.epoch, news

    def _bring_on(self, me: Registered, target: frozenset[int], owned: set[int] | None) -> None:
        me.leaving |= me.assigned - target
        me.assigned &= target
        if me.leaving and (owned is None or owned & me.leaving):
            return
        me.leaving = frozenset()
        taken = {index for m in self.members.values() if m is not me for index in m.assigned | m.leaving}
        me.assigned |= target - taken
        me.epoch = self.epoch


@dataclass
class ModernPlayer(Player):
    """A player with a machine, and the response that is under way to it."""

    stand: ModernStand = field(default_factory=ModernStand)
    reply: tuple[Ask, tuple[ErrorCode, int, frozenset[int] | None]] | None = None


@dataclass
class World:
    """Players and a coordinator; `chance` decides the order of events."""

    chance: random.Random
    coordinator: Coordinator
    faults: bool = False
    now: float = 0.0
    players: list[ModernPlayer] = field(default_factory=list)

    def join(self) -> None:
        stand = ModernStand(max_poll_interval=10_000.0, session_timeout=10_000.0)
        stand.machine.member_id = name = f"p{len(self.players)}"
        self.players.append(ModernPlayer(name, stand.ownership, self.chance.choice([0.4, 0.1, 0.02]), stand=stand))

    def turn(self) -> None:
        self.now += self.chance.choice([0.0, 0.01, 0.1])
        player = self.chance.choice(self.players)
        player.stand.now = self.now
        if self.chance.random() < player.pace:
            player.consume()
        elif player.reply is None:
            self._drive(player)
        else:
            self._reply(player)
        check_nothing_is_held_twice(self.players)

    def _drive(self, player: ModernPlayer) -> None:
        step = player.stand.step()
        if isinstance(step, Look):
            player.stand.machine.learned([Topic("t", T)] if self.chance.random() < 0.7 else [], self.now)
        elif isinstance(step, Ask):
            if self.faults and self.chance.random() < 0.1:
                player.stand.machine.failed(step, ConnectionLost("here:1", "gone"), self.now)
                return
            player.reply = step, self.coordinator.beat(player.name, step.fields)

    def _reply(self, player: ModernPlayer) -> None:
        assert player.reply is not None
        (ask, (code, epoch, assigned)), player.reply = player.reply, None
        if self.faults and self.chance.random() < 0.1:
            player.stand.machine.failed(ask, ConnectionLost("here:1", "gone"), self.now)
            return
        listed = None if assigned is None else {T: sorted(assigned)} if assigned else {}
        player.stand.answer(ask, code, epoch=epoch, assigned=listed)

    def settle(self) -> None:
        for _ in range(20_000):
            self.turn()
            if are_even(self.players, self.coordinator.count):
                return
        raise AssertionError(f"never settled: { {p.name: p.held for p in self.players} }")


@settings(max_examples=60, deadline=None)
@given(st.integers(), st.integers(1, 7), st.booleans())
@example(80699, 6, False)  # partitions are taken back before their topic's name is known
def test_no_partition_is_ever_held_twice_whatever_is_lost_on_the_way(seed: int, count: int, faults: bool) -> None:
    world = World(random.Random(seed), Coordinator(count), faults)
    for _ in range(4):
        world.join()
        for _ in range(world.chance.randrange(300)):
            world.turn()
    world.settle()
    leaver = world.players.pop(0)
    world.coordinator.members.pop(leaver.name, None)
    world.coordinator.epoch += 1
    world.settle()
