"""Whole groups of classic state machines against a simulated coordinator with its own clock."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.consume.classic_messages import HEARTBEAT, JOIN, LEAVE
from ottla.consume.steps import Ask, Look
from ottla.errors import ConnectionLost, ErrorCode
from ottla.testing.fake.groups import Group, JoinRequest, Member
from ottla.testing.fake.log import Refused

from .classic_stand import COOPERATIVE, ClassicStand, topic
from .stands import Player, are_even, check_nothing_is_held_twice


@dataclass
class ClassicPlayer(Player):
    """A player with a machine, and what it waits for."""

    stand: ClassicStand = field(default_factory=ClassicStand)
    asking: Ask | None = None
    member: Member | None = None
    welcome: dict[str, Any] | None = None
    """The response to its JoinGroup, which is under way."""
    alive: bool = True


@dataclass
class World:
    """Players, a coordinator and one topic; `chance` decides the order of events."""

    chance: random.Random
    count: int
    assignors: tuple[str, ...]
    now: float = 0.0
    group: Group = field(default_factory=lambda: Group("g"))
    players: list[ClassicPlayer] = field(default_factory=list)
    faults: bool = False

    def join(self) -> None:
        stand = ClassicStand(assignors=self.assignors, max_poll_interval=10_000.0)
        pace = self.chance.choice([0.4, 0.1, 0.02])
        self.players.append(ClassicPlayer(f"p{len(self.players)}", stand.ownership, pace, stand=stand))

    def turn(self) -> None:
        """Let one thing happen to one player."""
        # Without faults, no player waits for as long as a session.
        self.now += self.chance.choice([0.0, 0.01, 0.3 if self.faults else 0.03])
        self.group.tick(self.now)
        player = self.chance.choice([player for player in self.players if player.alive])
        player.stand.now = self.now
        if self.chance.random() < player.pace:
            player.stand.polled = self.now
            player.consume()
        elif player.asking is None:
            self._drive(player)
        else:
            self._reply(player)
        self._welcome_all()
        if not self.faults:  # With faults, a player may have lost what another has now.
            check_nothing_is_held_twice(self.players)

    def _drive(self, player: ClassicPlayer) -> None:
        step = player.stand.step()
        if isinstance(step, Look):
            player.stand.machine.learned([topic(self.count)], self.now)
        elif isinstance(step, Ask):
            player.asking = step
            self._deliver(player, step)

    def _deliver(self, player: ClassicPlayer, ask: Ask) -> None:
        if ask.api != JOIN or not ask.fields["member_id"]:
            return
        offers = tuple((entry["name"], entry["metadata"]) for entry in ask.fields["protocols"])
        request = JoinRequest("c", ask.fields["member_id"], None, 10.0, 10_000.0, "consumer", offers)
        try:
            player.member = self.group.join(request, self.now)
        except Refused as refused:
            self._answer(player, refused.code, member_id="")

    def _reply(self, player: ClassicPlayer) -> None:
        ask = player.asking
        assert ask is not None
        if self.faults and self.chance.random() < 0.05:
            player.asking = player.welcome = player.member = None
            player.stand.machine.failed(ask, ConnectionLost("here:1", "gone"), self.now)
            return
        try:
            self._decide(player, ask)
        except Refused as refused:
            self._answer(player, refused.code, member_id=ask.fields.get("member_id", ""))

    def _decide(self, player: ClassicPlayer, ask: Ask) -> None:
        fields = ask.fields
        if ask.api == JOIN:
            self._decide_join(player, fields)
            return
        if ask.api == LEAVE:
            self.group.leave(fields["member_id"], None, self.now)
            self._answer(player, ErrorCode.none)
            return
        member = self.group.member(fields["member_id"], fields["generation_id"])
        if ask.api == HEARTBEAT:
            self.group.heartbeat(member, self.now)
            self._answer(player, ErrorCode.none)
            return
        self.group.sync(member, {entry["member_id"]: entry["assignment"] for entry in fields["assignments"]}, self.now)
        share = self.group.synced(member, fields["generation_id"], self.now)
        if share is not None:
            self._answer(player, ErrorCode.none, assignment=share)

    def _decide_join(self, player: ClassicPlayer, fields: Any) -> None:
        if not fields["member_id"]:
            self._answer(player, ErrorCode.member_id_required, member_id=self.group.reserve_id("c"))
        elif player.welcome is not None:
            welcome, player.welcome = player.welcome, None
            self._answer(player, ErrorCode.none, **welcome)
        elif player.member is None or player.member.id not in self.group.members:
            raise Refused(ErrorCode.unknown_member_id)

    def _welcome_all(self) -> None:
        """Announce a complete generation to all who wait for it, even if it ends before they get it."""
        for player in self.players:
            member = player.member
            if member is None or player.asking is None or player.welcome is not None:
                continue
            if member.id not in self.group.members or not self.group.has_generation(member):
                continue
            leads = member.id == self.group.leader
            protocol = self.group.protocol or ""
            listed = [
                SimpleNamespace(member_id=m.id, metadata=m.metadata(protocol)) for m in self.group.members.values()
            ]
            player.welcome = {
                "member_id": member.id,
                "generation_id": self.group.generation,
                "protocol_name": protocol,
                "leader": self.group.leader,
                "members": listed if leads else (),
            }
            player.member = None

    def _answer(self, player: ClassicPlayer, code: ErrorCode, **fields: Any) -> None:
        ask, player.asking = player.asking, None
        assert ask is not None
        player.stand.machine.answered(ask, SimpleNamespace(error_code=code, **fields), self.now)

    def settle(self) -> None:
        for _ in range(20_000):
            self.turn()
            live = [player for player in self.players if player.alive]
            if are_even(live, self.count) and all(player.asking is None for player in live):
                return
        raise AssertionError(f"never settled: { {p.name: p.held for p in self.players} }")


@settings(max_examples=60, deadline=None)
@given(st.integers(), st.integers(1, 7), st.sampled_from([("range",), COOPERATIVE, ("cooperative-sticky", "range")]))
def test_in_a_group_without_faults_no_partition_is_ever_held_twice(
    seed: int, count: int, assignors: tuple[str, ...]
) -> None:
    world = World(random.Random(seed), count, assignors)
    for _ in range(3):
        world.join()
        for _ in range(world.chance.randrange(600)):
            world.turn()
    world.settle()
    leaver = world.players.pop(0)
    leaver.held = frozenset()
    if leaver.stand.machine.member_id in world.group.members:
        world.group.leave(leaver.stand.machine.member_id, None, world.now)
    world.settle()


@settings(max_examples=40, deadline=None)
@given(st.integers(), st.integers(1, 7), st.sampled_from([("range",), COOPERATIVE]))
def test_a_group_with_faults_settles(seed: int, count: int, assignors: tuple[str, ...]) -> None:
    world = World(random.Random(seed), count, assignors, faults=True)
    for _ in range(3):
        world.join()
        for _ in range(world.chance.randrange(100)):
            world.turn()
    world.players.pop(0).alive = False  # dies without leaving
    for _ in range(200):
        world.turn()
    world.settle()
