"""The classic protocol's state machine: what it sends, and how it handles each response."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.consume.classic_messages import (
    HEARTBEAT,
    JOIN,
    LEAVE,
    SYNC,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from ottla.consume.classic_messages import MemberSubscription as MemberSubscription
from ottla.consume.steps import Ask, Look, Rest
from ottla.errors import AuthenticationFailed, BrokerError, ConnectionLost, ErrorCode
from ottla.model import TopicPartition

from .classic_stand import COOPERATIVE, ClassicStand, topic
from .stands import RETRIED, TOPICS, t_partitions


@pytest.fixture
def stand() -> ClassicStand:
    return ClassicStand()


def test_it_joins_with_what_it_offers(stand: ClassicStand) -> None:
    ask = stand.ask()
    assert (ask.api, ask.fields["member_id"], ask.patient) == (JOIN, "", True)
    assert [offer["name"] for offer in ask.fields["protocols"]] == ["cooperative-sticky", "range"]
    assert read_subscription(ask.fields["protocols"][0]["metadata"]) == MemberSubscription(TOPICS)


def test_it_comes_again_with_the_id_that_it_is_given(stand: ClassicStand) -> None:
    stand.answer(stand.ask(), ErrorCode.member_id_required, member_id="me")
    assert stand.ask().fields["member_id"] == "me"


def test_a_leader_looks_assigns_and_brings_the_shares(stand: ClassicStand) -> None:
    members = [
        SimpleNamespace(member_id=name, metadata=write_subscription(MemberSubscription(frozenset(topics))))
        for name, topics in (("me", ["t"]), ("you", ["t", "u"]))
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
    shares = {entry["member_id"]: read_assignment(entry["assignment"]) for entry in ask.fields["assignments"]}
    assert shares == {"me": t_partitions(0), "you": t_partitions(1) | {TopicPartition("u", 0)}}


def test_a_leader_gives_nothing_to_a_member_that_it_does_not_understand(stand: ClassicStand) -> None:
    members = [
        SimpleNamespace(member_id="me", metadata=write_subscription(MemberSubscription(TOPICS))),
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
    shares = {entry["member_id"]: read_assignment(entry["assignment"]) for entry in stand.ask().fields["assignments"]}
    assert shares == {"me": t_partitions(0, 1), "odd": frozenset()}
    assert "odd" in stand.machine.notes[0]


def test_a_leader_joins_again_when_partitions_were_added(stand: ClassicStand) -> None:
    me = SimpleNamespace(member_id="me", metadata=write_subscription(MemberSubscription(TOPICS)))
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


def test_a_static_leader_that_came_back_assigns_nothing(stand: ClassicStand) -> None:
    me = SimpleNamespace(member_id="me", metadata=write_subscription(MemberSubscription(TOPICS)))
    welcome: dict[str, Any] = {
        "member_id": "me",
        "generation_id": 7,
        "protocol_name": "range",
        "leader": "me",
        "members": [me],
    }
    stand.answer(stand.ask(), **welcome, skip_assignment=True)
    assert stand.ask().fields["assignments"] == []


def test_heartbeats_go_out_at_their_interval_while_the_program_works(stand: ClassicStand) -> None:
    stand.become(t_partitions(0))
    for beat in range(9):
        stand.now = 3.0 * beat
        assert stand.rest() == 3.0 * (beat + 1)
        stand.now = 3.0 * (beat + 1)
        ask = stand.ask()
        assert (ask.api, ask.fields["generation_id"], ask.fields["member_id"]) == (HEARTBEAT, 1, "me")
        stand.answer(ask)


def test_an_eager_member_gives_everything_up_before_it_joins_again(stand: ClassicStand) -> None:
    stand.become(t_partitions(0, 1))
    stand.now = 3.0
    stand.answer(stand.ask(), ErrorCode.rebalance_in_progress)
    stand.rest()
    assert stand.ownership.assigned == frozenset()
    stand.now = 6.0
    assert stand.ask().api == HEARTBEAT
    stand.act()
    ask = stand.ask()
    assert ask.api == JOIN
    assert read_subscription(ask.fields["protocols"][0]["metadata"]) == MemberSubscription(TOPICS)


def test_an_eager_member_that_does_not_give_up_in_time_has_lost_its_partitions(stand: ClassicStand) -> None:
    stand.become(t_partitions(0, 1))
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
    assert stand.ownership.target().lost == t_partitions(0, 1)


def test_a_cooperative_member_keeps_what_it_has_while_it_joins() -> None:
    stand = ClassicStand(assignors=COOPERATIVE)
    stand.become(t_partitions(0, 1), protocol="cooperative-sticky")
    stand.now = 3.0
    stand.answer(stand.ask(), ErrorCode.rebalance_in_progress)
    ask = stand.ask()
    assert ask.api == JOIN
    assert read_subscription(ask.fields["protocols"][0]["metadata"]) == MemberSubscription(
        TOPICS, t_partitions(0, 1), 1
    )
    assert stand.ownership.assigned == t_partitions(0, 1)


def test_a_cooperative_member_joins_again_once_it_has_given_up_what_it_must() -> None:
    stand = ClassicStand(assignors=COOPERATIVE)
    stand.become(t_partitions(0, 1), protocol="cooperative-sticky")
    stand.now = 3.0
    stand.answer(stand.ask(), ErrorCode.rebalance_in_progress)
    stand.answer(
        stand.ask(), member_id="me", generation_id=2, protocol_name="cooperative-sticky", leader="you", members=()
    )
    stand.answer(stand.ask(), assignment=write_assignment(t_partitions(0)))
    assert stand.rest() == 6.0
    assert stand.ownership.target().partitions == t_partitions(0)
    assert stand.rest() == 6.0
    stand.ownership.hold(t_partitions(0))
    ask = stand.ask()
    assert read_subscription(ask.fields["protocols"][0]["metadata"]) == MemberSubscription(TOPICS, t_partitions(0), 2)


def test_what_was_claimed_and_never_taken_is_given_up_in_another_round_too() -> None:
    stand = ClassicStand(assignors=COOPERATIVE)
    welcome: dict[str, Any] = {"member_id": "me", "protocol_name": "cooperative-sticky", "leader": "you", "members": ()}
    stand.answer(stand.ask(), generation_id=1, **welcome)
    stand.answer(stand.ask(), assignment=write_assignment(t_partitions(0, 1)))  # and the consumer does not look
    stand.now = 3.0
    stand.answer(stand.ask(), ErrorCode.rebalance_in_progress)
    assert read_subscription(stand.ask().fields["protocols"][0]["metadata"]).owned == t_partitions(0, 1)
    stand.answer(stand.ask(), generation_id=2, **welcome)
    stand.answer(stand.ask(), assignment=write_assignment(t_partitions(0)))
    ask = stand.ask()
    assert (ask.api, read_subscription(ask.fields["protocols"][0]["metadata"]).owned) == (JOIN, t_partitions(0))


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
    stand = ClassicStand(assignors=COOPERATIVE)
    stand.become(t_partitions(0))
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
    assert stand.ownership.target() == (2, frozenset(), t_partitions(0))
    assert stand.machine.generation == -1
    stand.now += 1.0
    ask = stand.ask()
    assert (ask.api, ask.fields["member_id"]) == (JOIN, member_id)


def test_a_generation_that_ends_before_it_began_is_joined_again() -> None:
    stand = ClassicStand(assignors=COOPERATIVE)
    stand.become(t_partitions(0))
    stand.now = 3.0
    stand.answer(stand.ask(), ErrorCode.rebalance_in_progress)
    stand.answer(stand.ask(), member_id="me", generation_id=2, protocol_name="range", leader="you", members=())
    stand.answer(stand.ask(), ErrorCode.rebalance_in_progress)
    assert stand.step() == Rest(4.0)  # it may fail this way repeatedly
    stand.now = 4.0
    ask = stand.ask()
    assert (ask.api, read_subscription(ask.fields["protocols"][0]["metadata"]).owned) == (JOIN, t_partitions(0))
    assert stand.ownership.target().lost == frozenset()


@pytest.mark.parametrize("code", RETRIED)
def test_a_coordinator_in_trouble_is_asked_again_and_nothing_is_lost(stand: ClassicStand, code: ErrorCode) -> None:
    stand.become(t_partitions(0))
    stand.now = 3.0
    stand.answer(stand.ask(), code)
    assert stand.rest() == 4.0
    stand.now = 4.0
    stand.machine.failed(stand.ask(), ConnectionLost("here:1", "gone"), stand.now)
    assert stand.rest() == 5.0
    stand.now = 5.0
    stand.answer(stand.ask())
    assert stand.ownership.target().partitions == t_partitions(0)


def test_a_session_that_is_over_by_its_own_clock_has_lost_everything(stand: ClassicStand) -> None:
    stand.become(t_partitions(0))
    while stand.now < 10.0:
        step = stand.step()
        if isinstance(step, Ask):
            stand.machine.failed(step, ConnectionLost("here:1", "gone"), stand.now)
        stand.now += 0.5
    stand.step()
    assert stand.ownership.target().lost == t_partitions(0)
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
def test_what_another_attempt_would_only_repeat_ends_it(stand: ClassicStand, code: ErrorCode) -> None:
    ask = stand.ask()
    with pytest.raises(BrokerError, match=f"joining group g: {code.name.upper()}"):
        stand.answer(ask, code)


def test_wrong_credentials_end_it(stand: ClassicStand) -> None:
    ask = stand.ask()
    with pytest.raises(AuthenticationFailed):
        stand.machine.failed(ask, AuthenticationFailed("here:1", "no"), stand.now)


def test_a_program_that_stays_away_leaves_and_returns(stand: ClassicStand) -> None:
    stand.become(t_partitions(0))
    stand.now = 30.0
    ask = stand.ask()
    assert (ask.api, ask.fields["members"][0]["member_id"]) == (LEAVE, "me")
    assert stand.ownership.target().lost == t_partitions(0)
    stand.answer(ask, ErrorCode.unknown_member_id)
    assert stand.rest() == inf
    stand.polled = 31.0
    assert (stand.ask().api, stand.machine.generation) == (JOIN, -1)


def test_a_static_member_never_says_that_it_leaves() -> None:
    stand = ClassicStand(instance_id="one")
    stand.become(t_partitions(0))
    assert stand.machine.farewell() is None
    stand.now = 30.0
    assert stand.rest() == inf


def test_a_join_is_not_waited_for_longer_than_the_program_may_stay_away(stand: ClassicStand) -> None:
    stand.polled, stand.now = 10.0, 12.0
    assert stand.ask().seconds == 28.0


def test_other_topics_make_it_join_again(stand: ClassicStand) -> None:
    stand.become(t_partitions(0))
    stand.topics = frozenset({"t", "u"})
    stand.rest()
    stand.act()
    assert read_subscription(stand.ask().fields["protocols"][0]["metadata"]).topics == {"t", "u"}


def test_partitions_of_topics_that_it_did_not_ask_for_are_not_taken(stand: ClassicStand) -> None:
    stand.become(frozenset({TopicPartition("old", 0), TopicPartition("t", 0)}))
    assert stand.ownership.assigned == t_partitions(0)
    stand.now = 1.0
    stand.step()
    stand.act()
    assert stand.ask().api == JOIN
