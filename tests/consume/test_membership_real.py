"""Membership on a real broker: both protocols; members that join, leave, die and return; groups shared with others."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.config import Timeouts
from ottla.consume.membership import Protocol
from ottla.errors import BrokerError, ErrorCode
from ottla.net import Cluster, CoordinatorKind

from .members import BUSY, Stage, all_of, settled
from .strangers import Stranger
from .ways import COOPERATIVE, EAGER, MODERN, WAYS

pytestmark = pytest.mark.broker
PARTITIONS = 6
_numbers = itertools.count()


@pytest.fixture
def stage(broker: LocalCluster) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(broker.bootstrap, stack)


@pytest.fixture(scope="module")
def admin(broker: LocalCluster) -> Iterator[Admin]:
    with Cluster(broker.bootstrap) as client:
        yield Admin(client)


@pytest.fixture
def topic(admin: Admin) -> str:
    name = f"shared-{next(_numbers)}"
    admin.create_topic(name, partitions=PARTITIONS, replicas=1)
    return name


@pytest.fixture
def stranger(broker: LocalCluster, stage: Stage, group: str, topic: str) -> Iterator[Callable[..., Stranger]]:
    with ExitStack() as stack:

        def create(name: str, **settings: Any) -> Stranger:
            stranger = Stranger(broker.bootstrap, group, topic, name=name, ledger=stage.ledger, **settings)
            stack.callback(stranger.leave)
            return stranger

        yield create


@pytest.mark.parametrize("way", WAYS)
def test_members_share_the_partitions_and_hand_them_over_without_overlap(
    stage: Stage, group: str, topic: str, way: str
) -> None:
    whole = all_of(topic, PARTITIONS)
    a = stage.join(group, topic, name="a", **WAYS[way])
    settled([a], whole)
    b = stage.join(group, topic, name="b", **WAYS[way])
    settled([a, b], whole)
    c = stage.join(group, topic, name="c", **WAYS[way])
    settled([a, b, c], whole)
    a.leave()
    settled([b, c], whole)
    assert stage.ledger.trouble == []
    assert [a.lost, b.lost, c.lost] == [[], [], []]


@pytest.mark.parametrize("way", ["cooperative", "modern"])
def test_what_stays_is_not_interrupted(stage: Stage, group: str, topic: str, way: str) -> None:
    whole = all_of(topic, PARTITIONS)
    a = stage.join(group, topic, name="a", **WAYS[way])
    settled([a], whole)
    b = stage.join(group, topic, name="b", **WAYS[way])
    settled([a, b], whole)
    assert frozenset().union(*a.revoked) == b.held
    assert len(a.taken) == 1


@pytest.mark.parametrize("way", WAYS)
def test_more_members_than_partitions_leave_some_idle(
    stage: Stage, group: str, admin: Admin, topic: str, way: str
) -> None:
    admin.create_topic(f"{topic}-single", partitions=1, replicas=1)
    whole = all_of(f"{topic}-single", 1)
    a = stage.join(group, f"{topic}-single", name="a", **WAYS[way])
    settled([a], whole)
    b = stage.join(group, f"{topic}-single", name="b", **WAYS[way])
    eventually(lambda: b.membership.member.generation > 0)
    settled([a, b], whole)
    a.leave()
    settled([b], whole)


@pytest.mark.parametrize("way", WAYS)
def test_leaving_waits_for_nobody(stage: Stage, group: str, topic: str, way: str) -> None:
    a = stage.join(group, topic, name="a", **WAYS[way])
    settled([a], all_of(topic, PARTITIONS))
    assert a.leave() < BUSY
    assert not a.membership._thread.is_alive()


def test_leaving_is_quick_while_the_coordinator_lets_a_member_wait(stage: Stage, group: str, topic: str) -> None:
    slow = stage.join(group, topic, name="slow", **EAGER)
    settled([slow], all_of(topic, PARTITIONS))
    slow.polls = False  # it does not release anything, so the others wait
    b = stage.join(group, topic, name="b", **EAGER)
    eventually(lambda: b.membership._coordinator._request is not None and b.membership._coordinator._request[1].patient)
    assert b.leave() < BUSY
    slow.polls = True
    settled([slow], all_of(topic, PARTITIONS))


@pytest.mark.parametrize("way", WAYS)
def test_a_killed_members_partitions_move_on(
    stage: Stage, broker: LocalCluster, group: str, topic: str, way: str
) -> None:
    whole = all_of(topic, PARTITIONS)
    a = stage.join(group, topic, name="a", **WAYS[way])
    settled([a], whole)
    command = [sys.executable, "-m", "tests.consume.doomed", broker.bootstrap, group, topic, way]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as doomed:
        assert doomed.stdout is not None
        try:
            assert doomed.stdout.readline() == b"has some\n"
            eventually(lambda: len(a.held) < PARTITIONS)
        finally:
            os.kill(doomed.pid, signal.SIGKILL)
    settled([a], whole)


@pytest.mark.parametrize("way", WAYS)
def test_a_static_member_restarts_and_nothing_moves(stage: Stage, group: str, topic: str, way: str) -> None:
    whole = all_of(topic, PARTITIONS)
    a = stage.join(group, topic, name="a", **WAYS[way], instance_id="one")
    settled([a], whole)
    b = stage.join(group, topic, name="b", **WAYS[way], instance_id="two")
    settled([a, b], whole)
    held, before, kept = a.held, a.membership.member.generation, b.held
    revoked = len(b.revoked)
    a.leave()
    again = stage.join(group, topic, name="again", **WAYS[way], instance_id="one")
    eventually(lambda: again.held == held)
    assert again.membership.member.generation == before
    assert (b.held, len(b.revoked)) == (kept, revoked)


def test_a_classic_static_member_is_fenced_by_its_successor(stage: Stage, group: str, topic: str) -> None:
    whole = all_of(topic, PARTITIONS)
    a = stage.join(group, topic, name="a", **EAGER, instance_id="one")
    settled([a], whole)
    b = stage.join(group, topic, name="b", **EAGER, instance_id="one")
    eventually(lambda: b.held == whole)
    eventually(lambda: a.lost == [whole])
    with pytest.raises(BrokerError, match="FENCED_INSTANCE_ID") as fenced:
        a.membership.check()
    assert "instance id" in str(fenced.value)


def test_a_static_member_of_the_new_protocol_waits_for_the_session_of_a_dead_one(
    stage: Stage, group: str, topic: str
) -> None:
    whole = all_of(topic, PARTITIONS)
    a = stage.join(group, topic, name="a", **MODERN, instance_id="one")
    settled([a], whole)
    a.membership._machine.farewell = lambda: None  # type: ignore[method-assign]  # dies without leaving
    a.leave()
    b = stage.join(group, topic, name="b", **MODERN, instance_id="one")
    settled([b], whole)


@pytest.mark.parametrize("way", WAYS)
def test_a_program_that_stops_polling_loses_its_membership_until_it_polls_again(
    stage: Stage, group: str, topic: str, way: str
) -> None:
    whole = all_of(topic, PARTITIONS)
    a = stage.join(group, topic, name="a", **WAYS[way], max_poll_interval=1.0)
    settled([a], whole)
    b = stage.join(group, topic, name="b", **WAYS[way])
    settled([a, b], whole)
    known = len(a.lost)  # on a machine that stalls for a second, it has lost its membership before
    a.polls = False
    eventually(lambda: b.held == whole)
    assert a.membership.member.generation == -1
    had = a.held
    a.polls = True
    eventually(lambda: had in a.lost[known:], lambda: f"{had} is lost, not {a.lost}; {a.revoked} was revoked")
    settled([a, b], whole)


@pytest.mark.parametrize("way", WAYS)
def test_new_partitions_are_found(stage: Stage, group: str, topic: str, admin: Admin, way: str) -> None:
    watchful = stage.cluster(timeouts=Timeouts(metadata_age=0.3))
    a = stage.join(group, topic, name="a", cluster=watchful, **WAYS[way])
    settled([a], all_of(topic, PARTITIONS))
    admin.add_partitions(topic, PARTITIONS + 2)
    settled([a], all_of(topic, PARTITIONS + 2))


@pytest.mark.parametrize("way", WAYS)
def test_the_topics_may_change(stage: Stage, group: str, topic: str, admin: Admin, way: str) -> None:
    other = f"{topic}-other"
    admin.create_topic(other, partitions=2, replicas=1)
    a = stage.join(group, topic, name="a", **WAYS[way])
    settled([a], all_of(topic, PARTITIONS))
    a.membership.subscribe(frozenset({topic, other}))
    settled([a], all_of(topic, PARTITIONS) | all_of(other, 2))
    a.membership.subscribe(frozenset({other}))
    settled([a], all_of(other, 2))
    a.membership.subscribe(frozenset())
    eventually(lambda: not a.held and a.membership.member.generation == -1)
    a.membership.subscribe(frozenset({other}))
    settled([a], all_of(other, 2))


def test_a_topic_that_is_created_again_is_released_and_taken_over(
    stage: Stage, group: str, topic: str, admin: Admin
) -> None:
    a = stage.join(group, topic, name="a", **MODERN)
    settled([a], all_of(topic, PARTITIONS))
    admin.delete_topics(topic)
    eventually(lambda: not a.held)
    admin.create_topic(topic, partitions=3, replicas=1)
    settled([a], all_of(topic, 3))


def test_auto_is_the_new_protocol_on_a_new_broker(stage: Stage, group: str, topic: str) -> None:
    a = stage.join(group, topic, name="a")
    settled([a], all_of(topic, PARTITIONS))
    assert a.membership.protocol is Protocol.CONSUMER


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_a_classic_group_is_shared_with_confluent_members(
    stage: Stage, group: str, topic: str, stranger: Callable[..., Stranger], strategy: str, first: str
) -> None:
    whole = all_of(topic, PARTITIONS)
    classic = {"session_timeout_ms": 4000, "heartbeat_interval_ms": 100, "partition_assignment_strategy": strategy}
    if first == "ours":
        a = stage.join(group, topic, name="a", **EAGER)
        settled([a], whole)
        s = stranger("s", **classic)
    else:
        s = stranger("s", **classic)
        eventually(lambda: s.held == whole)
        a = stage.join(group, topic, name="a", **(EAGER | {"protocol": Protocol.AUTO}))
    settled([a, s], whole)
    assert a.membership.protocol is Protocol.CLASSIC
    b = stage.join(group, topic, name="b", **EAGER)
    settled([a, b, s], whole)
    s.leave()
    settled([a, b], whole)
    assert stage.ledger.trouble == []
    assert s.errors == []


def test_a_cooperative_group_is_shared_with_confluent_members(
    stage: Stage, group: str, topic: str, stranger: Callable[..., Stranger]
) -> None:
    whole = all_of(topic, PARTITIONS)
    classic = {"session_timeout_ms": 4000, "heartbeat_interval_ms": 100}
    s = stranger("s", partition_assignment_strategy="cooperative-sticky", **classic)
    eventually(lambda: s.held == whole)
    a = stage.join(group, topic, name="a", **COOPERATIVE)
    settled([a, s], whole)
    b = stage.join(group, topic, name="b", **COOPERATIVE)
    settled([a, b, s], whole)
    s.leave()
    settled([a, b], whole)
    z = stranger("z", partition_assignment_strategy="cooperative-sticky", **classic)
    settled([a, b, z], whole)
    assert stage.ledger.trouble == []
    assert s.errors == z.errors == []


def test_a_group_of_the_new_protocol_is_shared_with_confluent_members(
    stage: Stage, group: str, topic: str, stranger: Callable[..., Stranger]
) -> None:
    whole = all_of(topic, PARTITIONS)
    s = stranger("s", group_protocol="consumer")
    eventually(lambda: s.held == whole)
    a = stage.join(group, topic, name="a", **(MODERN | {"protocol": Protocol.AUTO}))
    settled([a, s], whole)
    assert a.membership.protocol is Protocol.CONSUMER
    b = stage.join(group, topic, name="b", **MODERN)
    settled([a, b, s], whole)
    s.leave()
    settled([a, b], whole)
    assert stage.ledger.trouble == []
    assert s.errors == []


@pytest.mark.parametrize("way", ["eager", "cooperative"])
def test_a_classic_member_joins_a_group_of_the_new_protocol(stage: Stage, group: str, topic: str, way: str) -> None:
    whole = all_of(topic, PARTITIONS)
    a = stage.join(group, topic, name="a", **MODERN)
    settled([a], whole)
    b = stage.join(group, topic, name="b", **WAYS[way])
    settled([a, b], whole)
    a.leave()
    settled([b], whole)
    assert stage.ledger.trouble == []


@pytest.mark.parametrize("way", ["eager", "cooperative"])
def test_a_group_moves_to_the_new_protocol_member_by_member(stage: Stage, group: str, topic: str, way: str) -> None:
    whole = all_of(topic, PARTITIONS)
    a = stage.join(group, topic, name="a", **WAYS[way])
    settled([a], whole)
    b = stage.join(group, topic, name="b", **MODERN)
    settled([a, b], whole)
    a.leave()
    settled([b], whole)
    assert stage.ledger.trouble == []


REFUSALS = [
    ("an assignor that the brokers do not have", MODERN | {"server_assignor": "lucky"}, ErrorCode.unsupported_assignor),
    ("a session that is too short", EAGER | {"session_timeout": 0.3}, ErrorCode.invalid_session_timeout),
]


@pytest.mark.parametrize(("options", "code"), [case[1:] for case in REFUSALS], ids=[case[0] for case in REFUSALS])
def test_what_the_broker_refuses_is_raised(
    stage: Stage, group: str, topic: str, options: dict[str, Any], code: ErrorCode
) -> None:
    a = stage.join(group, topic, name="a", **options)
    eventually(lambda: a.membership._error is not None)
    with pytest.raises(BrokerError, match=f"joining group {group}") as refused:
        a.membership.check()
    assert refused.value.code is code
    assert "hint:" in str(refused.value)


def test_a_group_with_another_assignor_is_an_error(stage: Stage, group: str, topic: str) -> None:
    a = stage.join(group, topic, name="a", **(EAGER | {"assignors": ("range",)}))
    settled([a], all_of(topic, PARTITIONS))
    b = stage.join(group, topic, name="b", **COOPERATIVE)
    eventually(lambda: b.membership._error is not None)
    with pytest.raises(BrokerError, match="INCONSISTENT_GROUP_PROTOCOL"):
        b.membership.check()


@pytest.mark.slow
def test_the_coordinator_is_killed_and_every_group_goes_on(brokers_to_break: LocalCluster, group: str) -> None:
    topic = f"survives-{uuid.uuid4().hex[:8]}"
    whole = all_of(topic, PARTITIONS)
    patient = {"session_timeout": 45.0, "heartbeat_interval": 0.3}
    with ExitStack() as stack:
        stage = Stage(brokers_to_break.bootstrap, stack)
        client = stage.cluster()
        Admin(client).create_topic(topic, partitions=PARTITIONS, replicas=3)
        coordinator = client.coordinator(group, CoordinatorKind.GROUP).id
        names = coordinated_by(client, coordinator, len(WAYS))
        members = {way: stage.join(name, topic, name=way, **(WAYS[way] | patient)) for way, name in names}
        for member in members.values():
            settled([member], whole)
        brokers_to_break.kill(coordinator)
        try:
            others = {way: stage.join(name, topic, name=f"{way}-2", **(WAYS[way] | patient)) for way, name in names}
            for way, other in others.items():
                settled([members[way], other], whole, seconds=60.0)
                assert members[way].lost == other.lost == []
        finally:
            brokers_to_break.restart(coordinator)


def coordinated_by(client: Cluster, broker: int, count: int) -> list[tuple[str, str]]:
    """Return names of groups that this broker coordinates, one for each protocol."""
    names: list[str] = []
    while len(names) < count:
        name = f"group-{uuid.uuid4().hex[:8]}"
        if client.coordinator(name, CoordinatorKind.GROUP).id == broker:
            names.append(name)
    return list(zip(WAYS, names, strict=True))
