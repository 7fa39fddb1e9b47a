"""Membership over a fake broker with faults: what it survives, what it raises, how it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from tests.waiting import eventually

from ottla.config import Retry
from ottla.consume.membership import GroupOptions, Membership, Protocol
from ottla.consume.ownership import OwnedPartitions
from ottla.consume.protocol import ChosenProtocol, MemberSettings
from ottla.consume.steps import Ask, Rest
from ottla.errors import (
    AuthenticationFailed,
    BrokerError,
    ConfigError,
    ConnectionLost,
    ErrorCode,
    OttlaError,
    UnsupportedFormat,
)
from ottla.net import Cluster
from ottla.testing import FakeKafka
from ottla.testing.fake.faults import RequestSeen, When

from .members import BUSY, Stage, all_of, settled

QUICK: dict[str, Any] = {"heartbeat_interval": 0.05, "session_timeout": 2.0}
COOPERATIVE = ("cooperative-sticky",)
WHOLE = all_of("t", 4)


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka(brokers=2, topics={"t": 4}) as brokers:
        yield brokers


@pytest.fixture
def stage(fake: FakeKafka) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(fake.bootstrap, stack)


def seen(fake: FakeKafka, api: str) -> list[RequestSeen]:
    return [request for request in fake.requests if request.api == api]


SURVIVED: list[tuple[str, Callable[[FakeKafka], object]]] = [
    ("a closed connection at a heartbeat", lambda fake: fake.cut("Heartbeat")),
    ("a lost response to a join", lambda fake: fake.cut("JoinGroup", when=When.AFTER_HANDLING)),
    ("a lost response to a sync", lambda fake: fake.cut("SyncGroup", when=When.AFTER_HANDLING)),
    ("half a response to a join", lambda fake: fake.half_response("JoinGroup")),
    ("a loading coordinator", lambda fake: fake.fail("JoinGroup", ErrorCode.coordinator_load_in_progress, times=2)),
    ("no coordinator", lambda fake: fake.fail("FindCoordinator", ErrorCode.coordinator_not_available)),
    ("a coordinator that moved", lambda fake: fake.fail("SyncGroup", ErrorCode.not_coordinator)),
    ("no metadata", lambda fake: fake.cut("Metadata", times=2)),
    ("an unknown member", lambda fake: fake.fail("JoinGroup", ErrorCode.unknown_member_id, times=2)),
    ("an old generation", lambda fake: fake.fail("SyncGroup", ErrorCode.illegal_generation)),
]


@pytest.mark.parametrize("trouble", [case[1] for case in SURVIVED], ids=[case[0] for case in SURVIVED])
@pytest.mark.parametrize("assignors", [("cooperative-sticky", "range"), COOPERATIVE], ids=["eager", "cooperative"])
def test_two_members_share_the_partitions_after(
    fake: FakeKafka, stage: Stage, trouble: Callable[[FakeKafka], object], assignors: tuple[str, ...]
) -> None:
    a = stage.join("g", "t", name="a", **QUICK, assignors=assignors)
    settled([a], WHOLE)
    trouble(fake)
    b = stage.join("g", "t", name="b", **QUICK, assignors=assignors)
    settled([a, b], WHOLE)


@pytest.mark.parametrize("code", [ErrorCode.unknown_member_id, ErrorCode.illegal_generation])
def test_a_dropped_member_loses_its_partitions_and_gets_them_again(
    fake: FakeKafka, stage: Stage, code: ErrorCode
) -> None:
    a = stage.join("g", "t", name="a", heartbeat_interval=0.05, session_timeout=1.0)
    settled([a], WHOLE)
    fake.fail("Heartbeat", code)
    eventually(lambda: a.lost == [WHOLE])
    settled([a], WHOLE)
    assert len(a.taken) == 2


def test_a_coordinator_that_dies_is_replaced_and_nothing_is_given_up(fake: FakeKafka, stage: Stage) -> None:
    a = stage.join("g", "t", name="a", **QUICK)
    settled([a], WHOLE)
    beats = len(seen(fake, "Heartbeat"))
    coordinator = seen(fake, "JoinGroup")[-1].broker
    fake.down(coordinator)
    eventually(lambda: any(request.broker != coordinator for request in seen(fake, "Heartbeat")[beats:]))
    assert (a.held, a.lost, a.revoked) == (WHOLE, [], [])


def test_an_outage_longer_than_the_session_loses_everything(fake: FakeKafka, stage: Stage) -> None:
    a = stage.join("g", "t", name="a", heartbeat_interval=0.05, session_timeout=0.5)
    settled([a], WHOLE)
    fake.all_down()
    eventually(lambda: a.lost == [WHOLE])
    fake.all_up()
    settled([a], WHOLE)


FATAL = [
    ErrorCode.group_authorization_failed,
    ErrorCode.inconsistent_group_protocol,
    ErrorCode.group_max_size_reached,
    ErrorCode.invalid_session_timeout,
    ErrorCode.fenced_instance_id,
]


@pytest.mark.parametrize("code", FATAL)
def test_what_ends_the_membership_is_raised_with_advice(fake: FakeKafka, stage: Stage, code: ErrorCode) -> None:
    woken = threading.Event()
    fake.fail("JoinGroup", code, times=None)
    membership = Membership(stage.cluster(), "g", options=GroupOptions(**QUICK), changed=woken.set)
    membership.subscribe(frozenset({"t"}))
    membership.start()
    assert woken.wait(10)
    with pytest.raises(BrokerError, match=f"joining group g: {code.name.upper()}") as caught:
        membership.check()
    assert "hint:" in str(caught.value)
    membership.leave(5.0)


def test_leaving_is_quick_when_all_brokers_are_away(fake: FakeKafka, stage: Stage) -> None:
    a = stage.join("g", "t", name="a", **QUICK)
    settled([a], WHOLE)
    fake.all_down()
    assert a.leave(0.5) < 0.5 + BUSY


def test_leaving_is_quick_when_the_coordinator_is_silent(fake: FakeKafka, stage: Stage) -> None:
    a = stage.join("g", "t", name="a", **QUICK)
    settled([a], WHOLE)
    silence = fake.silence("Heartbeat", times=None)
    eventually(lambda: silence.hits > 0)
    assert a.leave(0.8) < 0.8 + BUSY
    eventually(lambda: not a.membership._thread.is_alive())


def test_leaving_twice_and_leaving_what_never_began_does_nothing(stage: Stage) -> None:
    never = Membership(stage.cluster(), "g", options=GroupOptions(), changed=lambda: None)
    never.leave(1.0)
    a = stage.join("g", "t", name="a", **QUICK)
    settled([a], WHOLE)
    a.leave()
    assert a.leave() < BUSY


def test_closing_the_cluster_ends_the_membership(stage: Stage) -> None:
    client = stage.cluster()
    a = stage.join("g", "t", name="a", cluster=client, **QUICK)
    settled([a], WHOLE)
    client.close()
    eventually(lambda: not a.membership._thread.is_alive())
    with pytest.raises(ConnectionLost, match="closed"):
        a.membership.check()


def test_without_topics_nothing_is_asked(fake: FakeKafka, stage: Stage) -> None:
    a = stage.join("g", name="a", **QUICK)
    assert a.leave() < BUSY
    assert seen(fake, "JoinGroup") == []


def test_a_consumer_that_cannot_be_notified_ends_the_membership(stage: Stage) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    membership = Membership(stage.cluster(), "g", options=GroupOptions(**QUICK), changed=broken)
    membership.subscribe(frozenset({"t"}))
    membership.start()
    eventually(lambda: membership._error is not None)
    with pytest.raises(OttlaError, match="unexpected ZeroDivisionError"):
        membership.check()
    membership.leave(5.0)


def test_wrong_credentials_are_raised(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    client = stage.cluster()

    def refused(*_: object, **__: object) -> None:
        raise AuthenticationFailed("here:1", "wrong password")

    monkeypatch.setattr(client, "coordinator", refused)
    a = stage.join("g", "t", name="a", cluster=client, **QUICK)
    eventually(lambda: a.membership._error is not None)
    with pytest.raises(AuthenticationFailed, match="wrong password"):
        a.membership.check()


def test_heartbeats_continue_while_the_program_works(fake: FakeKafka, stage: Stage) -> None:
    a = stage.join("g", "t", name="a", **QUICK)
    settled([a], WHOLE)
    a.polls = False
    before = len(seen(fake, "Heartbeat"))
    eventually(lambda: len(seen(fake, "Heartbeat")) > before + 5)
    assert a.membership.member.generation == 1


def test_a_thousand_polls_send_no_request(fake: FakeKafka, stage: Stage) -> None:
    a = stage.join("g", "t", name="a", heartbeat_interval=60.0, session_timeout=300.0)
    settled([a], WHOLE)
    before = len(fake.requests)
    for _ in range(1000):
        a.membership.polled()
    assert len(fake.requests) == before


# -- options


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"protocol": "classic"}, r"one of Protocol.AUTO, Protocol.CONSUMER, Protocol.CLASSIC, got 'classic'"),
    ({"assignors": ("sticky",)}, r"a tuple with 'cooperative-sticky' and 'range' or one of them, got \('sticky',\)"),
    ({"assignors": ()}, r"a tuple with .* got \(\)"),
    ({"assignors": ["range"]}, r"a tuple with .* got \['range'\]"),
    ({"session_timeout": 0}, r"session_timeout=...\) must be seconds from 0.001 to 2,000,000, got 0"),
    ({"max_poll_interval": "5m"}, r"max_poll_interval=...\) must be seconds .* got '5m'"),
    ({"heartbeat_interval": 45.0}, r"heartbeat_interval must be shorter than session_timeout .* got 45 and 45 s"),
    ({"instance_id": ""}, r"instance_id=...\) must be a non-empty string or None, got ''"),
]


@pytest.mark.parametrize(("options", "text"), WRONG)
def test_a_wrong_option_is_refused_with_what_is_accepted(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        GroupOptions(**options)


def test_a_group_without_a_name_is_refused(stage: Stage) -> None:
    with pytest.raises(ConfigError, match="must not be empty"):
        Membership(stage.cluster(), "", options=GroupOptions(), changed=lambda: None)


# -- choosing the protocol


def chosen(protocol: Protocol = Protocol.AUTO) -> ChosenProtocol:
    options = GroupOptions(protocol=protocol)
    retry = Retry()
    return ChosenProtocol(
        "g",
        MemberSettings(
            options=options,
            ownership=OwnedPartitions(),
            member_id="me",
            waits=lambda failures: retry.wait(failures, 0.0),
            seconds=5.0,
            metadata_age=60.0,
        ),
    )


def next_request(machine: ChosenProtocol, now: float = 0.0) -> Ask:
    step = machine.step(now, topics=frozenset({"t"}), polled=0.0)
    assert isinstance(step, Ask)
    return step


def described(state: str = "", code: ErrorCode = ErrorCode.none) -> SimpleNamespace:
    return SimpleNamespace(groups=[SimpleNamespace(error_code=code, error_message=None, group_state=state)])


CHOICES = [
    (described("Stable"), Protocol.CLASSIC),
    (described("PreparingRebalance"), Protocol.CLASSIC),
    (described("CompletingRebalance"), Protocol.CLASSIC),
    (described("Empty"), Protocol.CONSUMER),
    (described("Dead"), Protocol.CONSUMER),
    (described("Dead", ErrorCode.group_id_not_found), Protocol.CONSUMER),
]


@pytest.mark.parametrize(("answer", "expected"), CHOICES)
def test_auto_follows_what_the_group_is(answer: SimpleNamespace, expected: Protocol) -> None:
    machine = chosen()
    assert machine.protocol is None
    machine.answered(next_request(machine), answer, 0.0)
    assert machine.protocol is expected


def test_auto_asks_again_when_the_coordinator_is_in_trouble() -> None:
    machine = chosen()
    machine.answered(next_request(machine), described(code=ErrorCode.not_coordinator), 0.0)
    assert isinstance(machine.step(0.0, topics=frozenset({"t"}), polled=0.0), Rest)
    machine.answered(next_request(machine, 1.0), described("Stable"), 1.0)
    assert machine.protocol is Protocol.CLASSIC


@pytest.mark.parametrize("code", [ErrorCode.unsupported_version, ErrorCode.group_id_not_found])
def test_auto_takes_the_classic_door_when_the_new_one_is_closed(code: ErrorCode) -> None:
    machine = chosen()
    machine.answered(next_request(machine), described("Empty"), 0.0)
    machine.answered(next_request(machine), SimpleNamespace(error_code=code, error_message=None), 0.0)
    assert machine.protocol is Protocol.CLASSIC


def test_auto_takes_the_classic_door_on_an_old_broker() -> None:
    machine = chosen()
    machine.answered(next_request(machine), described("Empty"), 0.0)
    heartbeat = next_request(machine)
    assert heartbeat.lowest == 1
    machine.failed(heartbeat, UnsupportedFormat("too old"), 0.0)
    assert machine.protocol is Protocol.CLASSIC


def test_a_required_protocol_that_is_missing_is_an_error() -> None:
    machine = chosen(Protocol.CONSUMER)
    with pytest.raises(BrokerError, match="GROUP_ID_NOT_FOUND"):
        machine.answered(next_request(machine), SimpleNamespace(error_code=ErrorCode.group_id_not_found), 0.0)


def test_a_broker_too_old_for_the_required_protocol_is_an_error(fake: FakeKafka, stage: Stage) -> None:
    a = stage.join("g", "t", name="a", protocol=Protocol.CONSUMER)
    eventually(lambda: a.membership._error is not None)
    with pytest.raises(UnsupportedFormat, match="ConsumerGroupHeartbeat"):
        a.membership.check()


def test_members_may_share_a_cluster(stage: Stage) -> None:
    client: Cluster = stage.cluster()
    a = stage.join("g", "t", name="a", cluster=client, **QUICK)
    b = stage.join("g", "t", name="b", cluster=client, **QUICK)
    settled([a, b], WHOLE)
