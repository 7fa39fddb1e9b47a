"""The classic protocol's state machine: what it sends, what it makes of each answer, and whole groups of machines
against a simulated coordinator with a clock of its own."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.consume.classic import Classic
from ottla.consume.holdings import Holdings, Partitions
from ottla.consume.letters import HEARTBEAT, JOIN, LEAVE, SYNC
from ottla.consume.options import GroupOptions, Protocol
from ottla.consume.steps import Ask, Look, Rest, Step
from ottla.consume.subscriptions import Subscription as Said
from ottla.consume.subscriptions import read_assignment, read_subscription, write_assignment, write_subscription
from ottla.errors import AuthenticationFailed, BrokerError, ConnectionLost, ErrorCode
from ottla.model import TopicPartition
from ottla.net import Topic
from ottla.net.metadata import Partition
from ottla.testing.fake.groups import Group, Joining, Member
from ottla.testing.fake.log import Refused

TOPICS = frozenset({"t"})
COOPERATIVE = ("cooperative-sticky",)


def options(**given: Any) -> GroupOptions:
    basics: dict[str, Any] = {"protocol": Protocol.CLASSIC, "session_timeout": 10.0, "max_poll_interval": 30.0}
    return GroupOptions(**(basics | given))


def topic(count: int, name: str = "t") -> Topic:
    return Topic(name, partitions=tuple(Partition(index, 0) for index in range(count)))


def some(*indices: int) -> Partitions:
    return frozenset(TopicPartition("t", index) for index in indices)


class Stand:
    """A machine, its holdings, and a clock."""

    def __init__(self, **given: Any) -> None:
        self.holdings = Holdings()
        self.machine = Classic(
            "g", options=options(**given), holdings=self.holdings, waits=lambda _: 1.0, seconds=5.0, metadata_age=6.0
        )
        self.now = 0.0
        self.polled = 0.0
        self.topics = TOPICS

    def step(self) -> Step:
        return self.machine.step(self.now, topics=self.topics, polled=self.polled)

    def ask(self) -> Ask:
        step = self.step()
        assert isinstance(step, Ask), step
        return step

    def rest(self) -> float:
        step = self.step()
        assert isinstance(step, Rest), step
        return step.until

    def answer(self, ask: Ask, code: ErrorCode = ErrorCode.none, **fields: Any) -> None:
        self.machine.answered(ask, SimpleNamespace(error_code=code, **fields), self.now)

    def act(self) -> None:
        """What a consumer does at once."""
        self.holdings.hold(self.holdings.look().partitions)

    def become(
        self, share: Partitions, *, generation: int = 1, leader: str = "somebody", protocol: str = "range"
    ) -> None:
        """A member that has joined, got its share and taken it over."""
        ask = self.ask()
        assert ask.api == JOIN
        self.answer(ask, member_id="me", generation_id=generation, protocol_name=protocol, leader=leader, members=())
        ask = self.ask()
        assert ask.api == SYNC
        self.answer(ask, assignment=write_assignment(share))
        self.act()


@pytest.fixture
def stand() -> Stand:
    return Stand()


def test_it_joins_with_what_it_offers(stand: Stand) -> None:
    ask = stand.ask()
    assert (ask.api, ask.fields["member_id"], ask.patient) == (JOIN, "", True)
    assert [offer["name"] for offer in ask.fields["protocols"]] == ["cooperative-sticky", "range"]
    assert read_subscription(ask.fields["protocols"][0]["metadata"]) == Said(TOPICS)


def test_it_comes_again_with_the_id_that_it_is_given(stand: Stand) -> None:
    stand.answer(stand.ask(), ErrorCode.member_id_required, member_id="me")
    assert stand.ask().fields["member_id"] == "me"


def test_a_leader_looks_assigns_and_brings_the_shares(stand: Stand) -> None:
    members = [
        SimpleNamespace(member_id=name, metadata=write_subscription(Said(frozenset(wanted))))
        for name, wanted in (("me", ["t"]), ("you", ["t", "u"]))
    ]
    welcome: dict[str, Any] = {
        "member_id": "me",
        "generation_id": 1,
        "protocol_name": "range",
        "leader": "me",
        "members": members,
    }
    stand.answer(stand.ask(), **welcome)
    look = stand.step()
    assert isinstance(look, Look)
    assert look.topics == {"t", "u"}
    stand.machine.learned([topic(2), topic(1, "u")], stand.now)
    ask = stand.ask()
    shares = {one["member_id"]: read_assignment(one["assignment"]) for one in ask.fields["assignments"]}
    assert shares == {"me": some(0), "you": some(1) | {TopicPartition("u", 0)}}


def test_a_leader_gives_nothing_to_a_member_that_it_does_not_understand(stand: Stand) -> None:
    members = [
        SimpleNamespace(member_id="me", metadata=write_subscription(Said(TOPICS))),
        SimpleNamespace(member_id="odd", metadata=b"?"),
    ]
    welcome: dict[str, Any] = {
        "member_id": "me",
        "generation_id": 1,
        "protocol_name": "range",
        "leader": "me",
        "members": members,
    }
    stand.answer(stand.ask(), **welcome)
    stand.step()
    stand.machine.learned([topic(2)], stand.now)
    shares = {one["member_id"]: read_assignment(one["assignment"]) for one in stand.ask().fields["assignments"]}
    assert shares == {"me": some(0, 1), "odd": frozenset()}
    assert "odd" in stand.machine.notes[0]


def test_a_leader_joins_again_when_partitions_were_added(stand: Stand) -> None:
    me = SimpleNamespace(member_id="me", metadata=write_subscription(Said(TOPICS)))
    welcome: dict[str, Any] = {
        "member_id": "me",
        "generation_id": 1,
        "protocol_name": "range",
        "leader": "me",
        "members": [me],
    }
    stand.answer(stand.ask(), **welcome)
    stand.step()
    stand.machine.learned([topic(1)], stand.now)
    ask = stand.ask()
    stand.answer(ask, assignment=ask.fields["assignments"][0]["assignment"])
    stand.now = stand.polled = 6.0
    stand.answer(stand.ask())  # a heartbeat
    assert isinstance(stand.step(), Look)
    stand.machine.learned([topic(1)], stand.now)
    assert isinstance(stand.step(), Rest)
    stand.machine.learned([topic(2)], stand.now)
    assert stand.ask().api == JOIN


def test_a_static_leader_that_came_back_assigns_nothing(stand: Stand) -> None:
    me = SimpleNamespace(member_id="me", metadata=write_subscription(Said(TOPICS)))
    welcome: dict[str, Any] = {
        "member_id": "me",
        "generation_id": 7,
        "protocol_name": "range",
        "leader": "me",
        "members": [me],
    }
    stand.answer(stand.ask(), **welcome, skip_assignment=True)
    assert stand.ask().fields["assignments"] == []


def test_heartbeats_go_out_at_their_interval_while_the_program_works(stand: Stand) -> None:
    stand.become(some(0))
    for beat in range(9):
        stand.now = 3.0 * beat
        assert stand.rest() == 3.0 * (beat + 1)
        stand.now = 3.0 * (beat + 1)
        ask = stand.ask()
        assert (ask.api, ask.fields["generation_id"], ask.fields["member_id"]) == (HEARTBEAT, 1, "me")
        stand.answer(ask)


def test_an_eager_member_gives_everything_up_before_it_joins_again(stand: Stand) -> None:
    stand.become(some(0, 1))
    stand.now = 3.0
    stand.answer(stand.ask(), ErrorCode.rebalance_in_progress)
    stand.rest()
    assert stand.holdings.assigned == frozenset()
    stand.now = 6.0
    assert stand.ask().api == HEARTBEAT
    stand.act()
    ask = stand.ask()
    assert ask.api == JOIN
    assert read_subscription(ask.fields["protocols"][0]["metadata"]) == Said(TOPICS)


def test_an_eager_member_that_does_not_give_up_in_time_has_lost_its_partitions(stand: Stand) -> None:
    stand.become(some(0, 1))
    stand.now = 3.0
    stand.answer(stand.ask(), ErrorCode.rebalance_in_progress)
    stand.rest()
    while stand.now < 3.0 + 0.9 * 30.0 - 3.0:
        step = stand.step()
        if isinstance(step, Ask):
            stand.answer(step, ErrorCode.rebalance_in_progress)
        stand.now += 1.0
        stand.polled = stand.now
    assert stand.ask().api == JOIN
    assert stand.holdings.look().lost == some(0, 1)


def test_a_cooperative_member_keeps_what_it_has_while_it_joins() -> None:
    stand = Stand(assignors=COOPERATIVE)
    stand.become(some(0, 1), protocol="cooperative-sticky")
    stand.now = 3.0
    stand.answer(stand.ask(), ErrorCode.rebalance_in_progress)
    ask = stand.ask()
    assert ask.api == JOIN
    assert read_subscription(ask.fields["protocols"][0]["metadata"]) == Said(TOPICS, some(0, 1), 1)
    assert stand.holdings.assigned == some(0, 1)


def test_a_cooperative_member_joins_again_once_it_has_given_up_what_it_must() -> None:
    stand = Stand(assignors=COOPERATIVE)
    stand.become(some(0, 1), protocol="cooperative-sticky")
    stand.now = 3.0
    stand.answer(stand.ask(), ErrorCode.rebalance_in_progress)
    stand.answer(
        stand.ask(), member_id="me", generation_id=2, protocol_name="cooperative-sticky", leader="you", members=()
    )
    stand.answer(stand.ask(), assignment=write_assignment(some(0)))
    assert stand.rest() == 6.0
    assert stand.holdings.look().partitions == some(0)
    assert stand.rest() == 6.0
    stand.holdings.hold(some(0))
    ask = stand.ask()
    assert read_subscription(ask.fields["protocols"][0]["metadata"]) == Said(TOPICS, some(0), 2)


def test_what_was_claimed_and_never_taken_is_given_up_in_another_round_too() -> None:
    stand = Stand(assignors=COOPERATIVE)
    welcome: dict[str, Any] = {"member_id": "me", "protocol_name": "cooperative-sticky", "leader": "you", "members": ()}
    stand.answer(stand.ask(), generation_id=1, **welcome)
    stand.answer(stand.ask(), assignment=write_assignment(some(0, 1)))  # and the consumer does not look
    stand.now = 3.0
    stand.answer(stand.ask(), ErrorCode.rebalance_in_progress)
    assert read_subscription(stand.ask().fields["protocols"][0]["metadata"]).owned == some(0, 1)
    stand.answer(stand.ask(), generation_id=2, **welcome)
    stand.answer(stand.ask(), assignment=write_assignment(some(0)))
    ask = stand.ask()
    assert (ask.api, read_subscription(ask.fields["protocols"][0]["metadata"]).owned) == (JOIN, some(0))


LOSSES = [
    (HEARTBEAT, ErrorCode.unknown_member_id, ""),
    (HEARTBEAT, ErrorCode.illegal_generation, "me"),
    (JOIN, ErrorCode.unknown_member_id, ""),
    (SYNC, ErrorCode.unknown_member_id, ""),
    (SYNC, ErrorCode.illegal_generation, "me"),
]


@pytest.mark.parametrize(("api", "code", "member_id"), LOSSES)
def test_a_member_that_was_dropped_has_lost_everything_and_joins_again(
    api: int, code: ErrorCode, member_id: str
) -> None:
    stand = Stand(assignors=COOPERATIVE)
    stand.become(some(0))
    stand.now = 3.0
    ask = stand.ask()
    if api != HEARTBEAT:
        stand.answer(ask, ErrorCode.rebalance_in_progress)
        ask = stand.ask()
    if api == SYNC:
        stand.answer(ask, member_id="me", generation_id=2, protocol_name="range", leader="you", members=())
        ask = stand.ask()
    assert ask.api == api
    stand.answer(ask, code)
    assert stand.holdings.look() == (2, frozenset(), some(0))
    assert stand.machine.generation == -1
    stand.now += 1.0
    ask = stand.ask()
    assert (ask.api, ask.fields["member_id"]) == (JOIN, member_id)


def test_a_generation_that_ends_before_it_began_is_joined_again() -> None:
    stand = Stand(assignors=COOPERATIVE)
    stand.become(some(0))
    stand.now = 3.0
    stand.answer(stand.ask(), ErrorCode.rebalance_in_progress)
    stand.answer(stand.ask(), member_id="me", generation_id=2, protocol_name="range", leader="you", members=())
    stand.answer(stand.ask(), ErrorCode.rebalance_in_progress)
    ask = stand.ask()
    assert (ask.api, read_subscription(ask.fields["protocols"][0]["metadata"]).owned) == (JOIN, some(0))
    assert stand.holdings.look().lost == frozenset()


RETRIED = [ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress, ErrorCode.not_coordinator]


@pytest.mark.parametrize("code", RETRIED)
def test_a_coordinator_in_trouble_is_asked_again_and_nothing_is_lost(stand: Stand, code: ErrorCode) -> None:
    stand.become(some(0))
    stand.now = 3.0
    stand.answer(stand.ask(), code)
    assert stand.rest() == 4.0
    stand.now = 4.0
    stand.machine.failed(stand.ask(), ConnectionLost("here:1", "gone"), stand.now)
    assert stand.rest() == 5.0
    stand.now = 5.0
    stand.answer(stand.ask())
    assert stand.holdings.look().partitions == some(0)


def test_a_session_that_is_over_by_its_own_clock_has_lost_everything(stand: Stand) -> None:
    stand.become(some(0))
    while stand.now < 10.0:
        step = stand.step()
        if isinstance(step, Ask):
            stand.machine.failed(step, ConnectionLost("here:1", "gone"), stand.now)
        stand.now += 0.5
    stand.step()
    assert stand.holdings.look().lost == some(0)
    assert stand.machine.generation == -1


FATAL = [
    ErrorCode.fenced_instance_id,
    ErrorCode.group_authorization_failed,
    ErrorCode.group_max_size_reached,
    ErrorCode.inconsistent_group_protocol,
    ErrorCode.invalid_session_timeout,
    ErrorCode.invalid_group_id,
]


@pytest.mark.parametrize("code", FATAL)
def test_what_another_attempt_would_only_repeat_ends_it(stand: Stand, code: ErrorCode) -> None:
    ask = stand.ask()
    with pytest.raises(BrokerError, match=f"joining group g: {code.name.upper()}"):
        stand.answer(ask, code)


def test_wrong_credentials_end_it(stand: Stand) -> None:
    ask = stand.ask()
    with pytest.raises(AuthenticationFailed):
        stand.machine.failed(ask, AuthenticationFailed("here:1", "no"), stand.now)


def test_a_program_that_stays_away_leaves_and_returns(stand: Stand) -> None:
    stand.become(some(0))
    stand.now = 30.0
    ask = stand.ask()
    assert (ask.api, ask.fields["members"][0]["member_id"]) == (LEAVE, "me")
    assert stand.holdings.look().lost == some(0)
    stand.answer(ask, ErrorCode.unknown_member_id)
    assert stand.rest() == inf
    stand.polled = 31.0
    assert (stand.ask().api, stand.machine.generation) == (JOIN, -1)


def test_a_static_member_never_says_that_it_leaves() -> None:
    stand = Stand(instance_id="one")
    stand.become(some(0))
    assert stand.machine.farewell() is None
    stand.now = 30.0
    assert stand.rest() == inf


def test_a_join_is_not_waited_for_longer_than_the_program_may_stay_away(stand: Stand) -> None:
    stand.polled, stand.now = 10.0, 12.0
    assert stand.ask().seconds == 28.0


def test_other_topics_make_it_join_again(stand: Stand) -> None:
    stand.become(some(0))
    stand.topics = frozenset({"t", "u"})
    stand.rest()
    stand.act()
    assert read_subscription(stand.ask().fields["protocols"][0]["metadata"]).topics == {"t", "u"}


def test_partitions_of_topics_that_it_did_not_ask_for_are_not_taken(stand: Stand) -> None:
    stand.become(frozenset({TopicPartition("old", 0), TopicPartition("t", 0)}))
    assert stand.holdings.assigned == some(0)
    stand.now = 1.0
    stand.step()
    stand.act()
    assert stand.ask().api == JOIN


# -- whole groups


@dataclass
class Player:
    """A machine with a consumer that takes its time, in a simulated group."""

    name: str
    stand: Stand
    held: Partitions = frozenset()
    taking: Partitions | None = None
    pace: float = 0.4
    """How often the consumer's thread has its turn: slow ones act on what they saw long ago."""
    asking: Ask | None = None
    member: Member | None = None
    welcome: dict[str, Any] | None = None
    """The answer to its JoinGroup, which is on its way."""
    alive: bool = True


@dataclass
class World:
    """Players, a coordinator, one topic; everything happens in the order that `chance` decides."""

    chance: random.Random
    count: int
    assignors: tuple[str, ...]
    now: float = 0.0
    group: Group = field(default_factory=lambda: Group("g"))
    players: list[Player] = field(default_factory=list)
    faults: bool = False

    def join(self) -> None:
        stand = Stand(assignors=self.assignors, max_poll_interval=10_000.0)
        self.players.append(Player(f"p{len(self.players)}", stand, pace=self.chance.choice([0.4, 0.1, 0.02])))

    def turn(self) -> None:
        """One thing happens to somebody."""
        # Without faults nobody is left waiting for as long as a session lasts.
        self.now += self.chance.choice([0.0, 0.01, 0.3 if self.faults else 0.03])
        self.group.tick(self.now)
        player = self.chance.choice([player for player in self.players if player.alive])
        player.stand.now = self.now
        if self.chance.random() < player.pace:
            self._consume(player)
        elif player.asking is None:
            self._drive(player)
        else:
            self._reply(player)
        self._welcome_all()
        self._check()

    def _consume(self, player: Player) -> None:
        """Half of it at a time: it looks and lets go, or takes over what it saw before."""
        player.stand.polled = self.now
        if player.taking is not None:
            player.held |= player.taking
            player.taking = None
        else:
            player.taking = player.stand.holdings.look().partitions
            player.held &= player.taking
        player.stand.holdings.hold(player.held)

    def _drive(self, player: Player) -> None:
        step = player.stand.step()
        if isinstance(step, Look):
            player.stand.machine.learned([topic(self.count)], self.now)
        elif isinstance(step, Ask):
            player.asking = step
            self._deliver(player, step)

    def _deliver(self, player: Player, ask: Ask) -> None:
        if ask.api != JOIN or not ask.fields["member_id"]:
            return
        offers = tuple((one["name"], one["metadata"]) for one in ask.fields["protocols"])
        joining = Joining("c", ask.fields["member_id"], None, 10.0, 10_000.0, "consumer", offers)
        try:
            player.member = self.group.join(joining, self.now)
        except Refused as refused:
            self._answer(player, refused.code, member_id="")

    def _reply(self, player: Player) -> None:
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

    def _decide(self, player: Player, ask: Ask) -> None:
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
        self.group.sync(member, {one["member_id"]: one["assignment"] for one in fields["assignments"]})
        share = self.group.synced(member, fields["generation_id"], self.now)
        if share is not None:
            self._answer(player, ErrorCode.none, assignment=share)

    def _decide_join(self, player: Player, fields: Any) -> None:
        if not fields["member_id"]:
            self._answer(player, ErrorCode.member_id_required, member_id=self.group.promise_id("c"))
        elif player.welcome is not None:
            welcome, player.welcome = player.welcome, None
            self._answer(player, ErrorCode.none, **welcome)
        elif player.member is None or player.member.id not in self.group.members:
            raise Refused(ErrorCode.unknown_member_id)

    def _welcome_all(self) -> None:
        """A generation that is complete is announced to all who wait for it, even if it ends before they hear of it."""
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

    def _answer(self, player: Player, code: ErrorCode, **fields: Any) -> None:
        ask, player.asking = player.asking, None
        assert ask is not None
        player.stand.machine.answered(ask, SimpleNamespace(error_code=code, **fields), self.now)

    def _check(self) -> None:
        """Nobody has what another has, unless he has lost it."""
        if self.faults:
            return
        owners: dict[TopicPartition, str] = {}
        for player in self.players:
            for partition in player.held:
                assert partition not in owners, f"{partition}: {owners[partition]} and {player.name}"
                owners[partition] = player.name

    def settle(self) -> None:
        for _ in range(20_000):
            self.turn()
            live = [player for player in self.players if player.alive]
            sizes = [len(player.held) for player in live]
            if sum(sizes) == self.count and max(sizes) - min(sizes) <= 1 and all(p.asking is None for p in live):
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
    gone = world.players.pop(0)
    gone.held = frozenset()
    if gone.stand.machine.member_id in world.group.members:
        world.group.leave(gone.stand.machine.member_id, None, world.now)
    world.settle()


@settings(max_examples=40, deadline=None)
@given(st.integers(), st.integers(1, 7), st.sampled_from([("range",), COOPERATIVE]))
def test_a_group_with_faults_settles(seed: int, count: int, assignors: tuple[str, ...]) -> None:
    world = World(random.Random(seed), count, assignors, faults=True)
    for _ in range(3):
        world.join()
        for _ in range(world.chance.randrange(100)):
            world.turn()
    world.players.pop(0).alive = False  # dies without a word
    for _ in range(200):
        world.turn()
    world.settle()
