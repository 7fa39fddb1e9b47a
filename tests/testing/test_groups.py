"""Consumer groups on the fake: the state machine alone, and subscribers of three other clients."""

from __future__ import annotations

import asyncio
import time
import warnings
from contextlib import closing
from typing import Any

import aiokafka
import confluent_kafka
import pytest

from ottla.errors import ErrorCode
from ottla.testing import FakeKafka
from ottla.testing.fake.groups import Group, JoinRequest, Member, Phase
from ottla.testing.fake.log import Refused

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import kafka as kafka_python

DEADLINE = 20.0


def join_request(
    member_id: str = "", *, protocols: tuple[str, ...] = ("range",), instance: str | None = None
) -> JoinRequest:
    offers = tuple((name, name.encode()) for name in protocols)
    return JoinRequest("client", member_id, instance, 10.0, 30.0, "consumer", offers)


def stable(group: Group, members: int, now: float = 0.0) -> list[Member]:
    joined = [group.join(join_request(), now) for _ in range(members)]
    for member in joined:
        group.join(join_request(member.id), now)
    for member in sorted(joined, key=lambda m: m.id == group.leader):
        group.sync(member, {m.id: m.id.encode() for m in joined}, now)
    for member in joined:
        assert group.synced(member, group.generation, now) == member.id.encode()
    assert group.phase is Phase.STABLE
    return joined


def code_of(refusal: pytest.ExceptionInfo[Refused]) -> ErrorCode:
    return refusal.value.code


def test_one_member_gets_a_generation_at_once_and_leads() -> None:
    group = Group("g")
    member = group.join(join_request(), 0.0)
    assert group.has_generation(member)
    assert (group.generation, group.leader, group.protocol) == (1, member.id, "range")


def test_a_second_member_makes_the_first_join_again() -> None:
    group = Group("g")
    (first,) = stable(group, 1)
    second = group.join(join_request(), 1.0)
    assert not group.has_generation(second)
    with pytest.raises(Refused) as refusal:
        group.heartbeat(first, 1.0)
    assert code_of(refusal) == ErrorCode.rebalance_in_progress
    group.join(join_request(first.id), 2.0)
    assert group.has_generation(second)
    assert set(group.members) == {first.id, second.id}


def test_the_protocol_is_one_that_all_have_and_most_prefer() -> None:
    group = Group("g")
    first = group.join(join_request(protocols=("sticky", "range")), 0.0)
    group.join(join_request(protocols=("range", "roundrobin")), 0.0)
    group.join(join_request(first.id, protocols=("sticky", "range")), 0.0)
    assert group.protocol == "range"
    with pytest.raises(Refused) as refusal:
        group.join(join_request(protocols=("other",)), 0.0)
    assert code_of(refusal) == ErrorCode.inconsistent_group_protocol


def test_a_silent_member_is_dropped_after_its_session_timeout() -> None:
    group = Group("g")
    first, second = stable(group, 2)
    group.heartbeat(second, 9.0)
    assert group.next_due(9.0) == 1.0
    group.tick(10.0)
    assert set(group.members) == {second.id}
    assert group.phase is Phase.PREPARING
    with pytest.raises(Refused) as refusal:
        group.member(first.id, group.generation)
    assert code_of(refusal) == ErrorCode.unknown_member_id


def test_who_does_not_join_in_time_is_left_out() -> None:
    group = Group("g")
    first, second = stable(group, 2)
    third = group.join(join_request(), 1.0)
    for now in (5.0, 14.0, 23.0, 30.0):
        for member in (first, second):
            with pytest.raises(Refused):
                group.heartbeat(member, now)
    group.join(join_request(second.id), 30.0)
    group.tick(31.0)
    assert group.has_generation(third)
    assert set(group.members) == {second.id, third.id}


def test_leaving_hands_over_and_the_last_one_leaves_an_empty_group() -> None:
    group = Group("g")
    first, second = stable(group, 2)
    group.leave(first.id, None, 1.0)
    assert group.phase is Phase.PREPARING
    group.leave(second.id, None, 1.0)
    assert (group.phase, group.leader) == (Phase.EMPTY, None)
    with pytest.raises(Refused) as refusal:
        group.leave(second.id, None, 1.0)
    assert code_of(refusal) == ErrorCode.unknown_member_id


def test_a_static_member_that_restarts_keeps_the_generation_and_fences_its_old_self() -> None:
    group = Group("g")
    leader = group.join(join_request(), 0.0)
    static = group.join(join_request(instance="one"), 0.0)
    group.join(join_request(leader.id), 0.0)
    group.sync(leader, {leader.id: b"a", static.id: b"b"}, 0.0)
    old, generation = static.id, group.generation
    again = group.join(join_request(instance="one"), 1.0)
    assert group.has_generation(again)
    assert (group.generation, again.assignment) == (generation, b"b")
    with pytest.raises(Refused) as refusal:
        group.member(old, generation, instance_id="one")
    assert code_of(refusal) == ErrorCode.fenced_instance_id


def test_commits_are_taken_from_members_of_the_generation_only() -> None:
    group = Group("g")
    group.check_commit("", -1, 0.0)  # a group without members accepts commits from anyone
    (member,) = stable(group, 1)
    group.check_commit(member.id, group.generation, 0.0)
    wrong = [
        (member.id, group.generation - 1, ErrorCode.illegal_generation),
        ("stranger", group.generation, ErrorCode.unknown_member_id),
        ("", -1, ErrorCode.unknown_member_id),
    ]
    for member_id, generation, code in wrong:
        with pytest.raises(Refused) as refusal:
            group.check_commit(member_id, generation, 0.0)
        assert code_of(refusal) is code


def confluent_consumer(kafka: FakeKafka, **more: Any) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": 100,
            "session.timeout.ms": 6000,
            **more,
        }
    )


def fill(kafka: FakeKafka, topic: str, count: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap})
    for i in range(count):
        producer.produce(topic, str(i).encode(), partition=i % kafka.topics[topic])
    assert producer.flush(DEADLINE) == 0


def test_two_consumers_share_the_partitions_and_the_one_that_stays_takes_all() -> None:
    with FakeKafka(brokers=2, topics={"t": 4}) as kafka:
        fill(kafka, "t", 40)
        seen: set[bytes] = set()
        with closing(confluent_consumer(kafka)) as first:
            with closing(confluent_consumer(kafka)) as second:
                first.subscribe(["t"])
                second.subscribe(["t"])
                until(lambda: poll(seen, first, second) and share(first) == share(second) == 2)
            until(lambda: poll(seen, first) and share(first) == 4 and len(seen) == 40)
            first.commit(offsets=[confluent_kafka.TopicPartition("t", 3, 10)], asynchronous=False)
            assert first.committed([confluent_kafka.TopicPartition("t", 3)], DEADLINE)[0].offset == 10


def poll(seen: set[bytes], *consumers: confluent_kafka.Consumer) -> bool:
    for consumer in consumers:
        message = consumer.poll(0.02)
        if message is not None and not message.error():
            seen.add(message.value() or b"")
    return True


def share(consumer: confluent_kafka.Consumer) -> int:
    return len(consumer.assignment())


def until(condition: Any) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end


def test_a_subscribed_aiokafka_consumer_reads_commits_and_continues(fake_kafka: FakeKafka) -> None:
    fake_kafka.create_topic("t", 2)
    fill(fake_kafka, "t", 10)

    async def read(count: int) -> set[bytes]:
        async with aiokafka.AIOKafkaConsumer(
            "t", bootstrap_servers=fake_kafka.bootstrap, group_id="g", auto_offset_reset="earliest", max_poll_records=1
        ) as consumer:
            got = {(await asyncio.wait_for(consumer.getone(), DEADLINE)).value for _ in range(count)}
            await consumer.commit()
            return got

    first, second = asyncio.run(read(4)), asyncio.run(read(6))
    assert first | second == {str(i).encode() for i in range(10)}
    assert not first & second


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_subscribed_kafka_python_consumer_reads_everything(fake_kafka: FakeKafka) -> None:
    fake_kafka.create_topic("t", 2)
    fill(fake_kafka, "t", 10)
    consumer = kafka_python.KafkaConsumer(
        "t",
        bootstrap_servers=fake_kafka.bootstrap,
        group_id="g",
        auto_offset_reset="earliest",
        consumer_timeout_ms=1000 * DEADLINE,
    )
    with closing(consumer):
        assert {next(consumer).value for _ in range(10)} == {str(i).encode() for i in range(10)}


def test_a_member_that_dies_while_it_waits_for_its_assignment_is_dropped() -> None:
    group = Group("g")
    joined = [group.join(join_request(), 0.0) for _ in range(2)]
    for member in joined:
        group.join(join_request(member.id), 0.0)
    leader, dead = sorted(joined, key=lambda m: m.id != group.leader)
    group.sync(dead, {}, 0.0)
    group.heartbeat(leader, 55.0)
    group.tick(60.0)
    assert dead.id in group.members, "it waits for the leader"
    group.sync(leader, {leader.id: b"a", dead.id: b"b"}, 60.0)
    group.heartbeat(leader, 69.0)
    group.tick(69.0)
    assert dead.id in group.members
    group.tick(70.5)
    assert list(group.members) == [leader.id]
