"""The consumer on the fake cluster: what it hands out and commits when programs and listeners do as they like."""

from __future__ import annotations

import itertools
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from tests.fetch.logs import plain, plant
from tests.waiting import eventually

from ottla.admin.committed import Committed
from ottla.config import Timeouts
from ottla.consume.commits import Commits
from ottla.consume.consumer import Consumer
from ottla.consume.membership import GroupOptions, Protocol
from ottla.errors import (
    BrokerError,
    CommitFailed,
    ConfigError,
    CorruptBatch,
    ErrorCode,
    InputError,
    OffsetsLost,
    OttlaError,
    UsedAfterFork,
)
from ottla.model import GroupMember, TopicPartition
from ottla.net import Cluster
from ottla.net.deadline import Deadline
from ottla.testing import FakeKafka, When
from ottla.testing.fake.groups import Committed as StoredOffset

from .consuming import (
    SMALL,
    Told,
    committed,
    fail,
    failing,
    filled,
    joined,
    new_consumer,
    offsets,
    read,
    rows,
    take,
)

pytestmark = pytest.mark.usefixtures("no_thread_is_left")
AT = TopicPartition("t", 0)
LONG = TopicPartition("long", 0)
MANY = [TopicPartition("many", number) for number in range(4)]


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    """`t` has five batches of ten records in one partition, `many` in each of four, `long` forty, `none` none."""
    with FakeKafka(topics={"t": 1, "many": 4, "long": 1, "none": 1}, auto_create=None) as cluster:
        filled(cluster, "t", 1)
        filled(cluster, "long", 1, batches=40)
        filled(cluster, "many", 4)
        yield cluster


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown topic, and partitions that wait for a commit, are given up soon."""
    monkeypatch.setattr("ottla.net.effort.UNKNOWN_TOPIC_SECONDS", 0.3)
    monkeypatch.setattr("ottla.consume.share._REVOKE_SECONDS", 0.5)


class Stop(Exception):
    """Of a program that goes wrong."""


# What is committed


def test_a_block_that_ends_well_commits_all_it_got(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics="long", fetching=SMALL) as consumer:
        got = len(take(consumer)) + len(take(consumer))
    assert committed(kafka) == {LONG: got}


def test_a_block_that_raises_does_not_commit_what_it_was_working_on(kafka: FakeKafka) -> None:
    with failing(Stop), new_consumer(kafka.bootstrap, topics="long", fetching=SMALL) as consumer:
        done = len(take(consumer))
        take(consumer)
        fail(Stop())
    assert committed(kafka) == {LONG: done}


@pytest.mark.parametrize("call", ["pause", "seek", "commit nothing", "resume"])
def test_what_is_being_worked_on_is_not_done_because_of_other_calls(kafka: FakeKafka, call: str) -> None:
    """Found: pause and seek, of any partition, counted everything as done."""
    with failing(Stop), new_consumer(kafka.bootstrap, topics="many", fetching=SMALL) as consumer:
        joined(consumer, 4)
        consumer.pause(*MANY[1:])
        consumer.seek(MANY[0], 0)
        take(consumer)
        match call:
            case "pause":
                consumer.pause(MANY[0])
            case "seek":
                consumer.seek(MANY[1], 5)
            case "resume":
                consumer.resume(*MANY)
            case _:
                consumer.commit({})
        fail(Stop())
    assert committed(kafka)[MANY[0]] == 0


def test_commits_come_by_themselves_while_records_flow(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics="long", fetching=SMALL, commit_every=0.01) as consumer:
        assert offsets([take(consumer)])[0] == 0
        second = take(consumer)
        before = offsets([second])[0]
        eventually(lambda: consumer.poll(0.01) is None and committed(kafka).get(LONG, -1) >= before, "a commit")


def test_without_automatic_commits_nothing_is_committed(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics="t", commit_every=None) as consumer:
        read(consumer, 50)
    assert committed(kafka) == {}


def test_a_commit_with_a_callback_is_told(kafka: FakeKafka) -> None:
    def raises(*_: object) -> None:
        raise Stop

    told: list[tuple[Any, Any, str]] = []
    with new_consumer(kafka.bootstrap, topics="t", commit_every=None) as consumer:
        read(consumer, 50)
        consumer.commit_soon(done=lambda offsets, error: told.append((offsets, error, threading.current_thread().name)))
        consumer.commit_soon({AT: Committed(7, metadata="note")}, done=raises)
        consumer.commit()  # after those that were begun before
        assert committed(kafka) == {AT: 50}
        assert consumer.committed()[AT].offset == 50
    assert [(given[AT].offset, error) for given, error, _ in told] == [(50, None)]
    assert told[0][2].startswith("ottla-commit")


def test_a_commit_that_the_broker_refuses_for_the_moment_is_tried_again(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics="t", commit_every=None) as consumer:
        read(consumer, 50)
        fault = kafka.fail("OffsetCommit", ErrorCode.rebalance_in_progress, times=2)
        consumer.commit()
        assert fault.hits == 2
        kafka.fail("OffsetCommit", ErrorCode.offset_metadata_too_large)
        with pytest.raises(BrokerError, match="OFFSET_METADATA_TOO_LARGE"):
            consumer.commit()
    assert committed(kafka) == {AT: 50}


def test_a_group_that_moved_on_is_a_clear_error(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics="t", commit_every=None) as consumer:
        read(consumer, 50)
        kafka.fail("OffsetCommit", ErrorCode.fenced_instance_id)
        with pytest.raises(CommitFailed, match=r"group g: the offsets of t-0 were not committed: FENCED_INSTANCE_ID"):
            consumer.commit()


# What a member must not commit


def lose(kafka: FakeKafka, consumer: Consumer) -> None:
    """The group throws the member out, and it has joined again; its program has not looked since."""
    membership = consumer._subscription.membership
    assert membership is not None
    before = membership.member.generation
    kafka.fail("Heartbeat", ErrorCode.illegal_generation)
    eventually(lambda: membership.member.generation > before, "it is a member again")


def test_a_lost_partition_is_not_committed_under_the_new_generation(kafka: FakeKafka) -> None:
    """Found: a commit was sent again with the generation after the loss, over what the next owner had committed."""
    told = Told()
    with new_consumer(kafka.bootstrap, topics="t", listener=told) as consumer:
        read(consumer, 50)
        lose(kafka, consumer)
        with kafka._dispatcher.changed:
            kafka._dispatcher.state.groups["g"].offsets.clear()
        for attempt in (consumer.commit, lambda: consumer.commit({AT: 3}), lambda: consumer.member):
            with pytest.raises(CommitFailed, match="t-0 were not committed: they were lost or let go of before"):
                attempt()
        errors: list[Any] = []
        consumer.commit_soon(done=lambda _, error: errors.append(error))
        eventually(lambda: errors, "the callback")
        assert isinstance(errors[0], CommitFailed)
        assert committed(kafka) == {}
        assert told.of("lost") == []
        assert read(consumer, 50)[0] == (0, 0)  # others may have it: it begins where the group is
        assert told.of("lost") == [frozenset([AT])]
        assert consumer.member.generation > 1
        consumer.commit()
    assert committed(kafka) == {AT: 50}


def test_a_lost_partition_is_not_committed_at_the_end(kafka: FakeKafka) -> None:
    told = Told()
    with new_consumer(kafka.bootstrap, topics="t", listener=told) as consumer:
        read(consumer, 50)
        lose(kafka, consumer)
    assert committed(kafka) == {}
    assert (told.of("lost"), told.of("revoked")) == ([frozenset([AT])], [])


@pytest.mark.usefixtures("impatient")
def test_what_was_let_go_of_is_not_committed_by_a_late_attempt(kafka: FakeKafka) -> None:
    """Found: a commit in the background went on trying after its partition was given to another member."""
    with new_consumer(kafka.bootstrap, topics="many", commit_every=None) as a:
        joined(a, 4)
        eventually(lambda: (a.poll(0.01), len(a.positions()) == 4)[-1], "it knows where it is")
        kafka.fail("OffsetCommit", ErrorCode.rebalance_in_progress, times=None)
        errors: list[Any] = []
        a.commit_soon(done=lambda _, error: errors.append(error))
        with new_consumer(kafka.bootstrap, topics="many", commit_every=None) as b:
            joined(b, 2, a)
            kafka.clear_faults()
            eventually(lambda: errors, "the callback")
            assert isinstance(errors[0], CommitFailed)
            theirs = {at for at in MANY if at in b.assignment}
            assert not theirs & committed(kafka).keys()


def let_go_and_retake(kafka: FakeKafka, told: Told, consumer: Consumer) -> None:
    """Another member comes and goes."""
    before = len(told.of("assigned"))
    other = new_consumer(kafka.bootstrap, topics="t", commit_every=None)
    eventually(lambda: (other.poll(0.01), consumer.poll(0.01), len(told.of("revoked")) > 0)[-1], "it lets go")
    other.close()
    eventually(lambda: (consumer.poll(0.01), len(told.of("assigned")) > before)[-1], "it takes it again")
    joined(consumer, 1)


def test_a_late_attempt_does_not_undo_what_others_did_meanwhile(
    kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition went to another member and came back while a commit was on its way, which is then refused."""
    attempts: list[dict[TopicPartition, Committed]] = []
    came_back = threading.Event()

    def refused(_: object, member: GroupMember, given: dict[TopicPartition, Committed], **__: object) -> None:
        attempts.append(given)
        if len(attempts) == 1:
            came_back.wait(10)
            raise BrokerError(int(ErrorCode.illegal_generation), "committing")

    monkeypatch.setattr("ottla.consume.commits.commit", refused)
    generations = itertools.count()
    errors: list[Any] = []
    with Cluster(kafka.bootstrap) as cluster:
        commits = Commits(
            cluster, member=lambda: GroupMember("g", "m", next(generations)), keeps=lambda these: these, name="g"
        )
        commits.commit_soon({AT: Committed(3), LONG: Committed(4)}, lambda _, error: errors.append(error))
        eventually(lambda: attempts, "the first attempt")
        commits.give_up([AT])
        came_back.set()
        commits.close(Deadline.after(5))
    assert attempts[1:] == [{LONG: Committed(4)}]
    assert isinstance(errors[0], CommitFailed)
    assert errors[0].partitions == ("t-0",)


def test_a_late_answer_does_not_say_where_to_begin(kafka: FakeKafka) -> None:
    """The partition went to another member and came back while the group's offset was being asked for."""
    told = Told()
    with new_consumer(kafka.bootstrap, topics="t", commit_every=None, listener=told) as consumer:
        kafka.delay("OffsetFetch", 2.0, times=1)
        joined(consumer, 1)
        kafka.wait_for_request("OffsetFetch")
        kafka.delay("OffsetFetch", 0.5, when=When.BEFORE_HANDLING)
        let_go_and_retake(kafka, told, consumer)
        assert consumer.positions() == {}
        with kafka._dispatcher.changed:
            kafka._dispatcher.state.groups["g"].offsets[AT] = StoredOffset(40, -1, None)
        assert read(consumer, 10)[0] == (0, 40)


def test_partitions_of_others_cannot_be_committed_by_name(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics="t") as consumer:
        joined(consumer, 1)
        with pytest.raises(CommitFailed, match="many-0"):
            consumer.commit({MANY[0]: 5, AT: 5})
    assert MANY[0] not in committed(kafka)


def test_a_member_that_left_because_its_program_was_away_commits_nothing(kafka: FakeKafka) -> None:
    told = Told()
    options = GroupOptions(
        protocol=Protocol.CLASSIC, heartbeat_interval=0.05, session_timeout=2.0, max_poll_interval=0.3
    )
    with new_consumer(kafka.bootstrap, topics="t", listener=told, options=options) as consumer:
        read(consumer, 50)
        kafka.wait_for_request("LeaveGroup")
        with pytest.raises(CommitFailed):
            consumer.commit()
        assert read(consumer, 50)[0] == (0, 0)
        assert told.of("lost") == [frozenset([AT])]


# Listeners


def test_a_listener_is_told_when_partitions_come_and_go(kafka: FakeKafka) -> None:
    told = Told()
    with new_consumer(kafka.bootstrap, topics="many", listener=told) as a:
        joined(a, 4)
        with new_consumer(kafka.bootstrap, topics="many") as b:
            joined(b, 2, a)
        joined(a, 4)
    assert [kind for kind, _ in told.calls] == ["assigned", "revoked", "assigned", "revoked", "assigned", "revoked"]
    assert told.calls[0][1] == told.calls[-1][1] == frozenset(MANY)


@pytest.mark.parametrize("kind", ["assigned", "revoked", "lost"])
def test_a_listener_that_raises_is_heard_and_changes_nothing_else(kafka: FakeKafka, kind: str) -> None:
    """Found: one that raised left partitions unread, or never let go of."""

    def raises(*_: object) -> None:
        told.act.clear()
        raise Stop(kind)

    told = Told()
    with new_consumer(kafka.bootstrap, topics="many", listener=told) as a:
        if kind == "assigned":
            told.act[kind] = raises
        else:
            joined(a, 4)
            told.act[kind] = raises
            if kind == "lost":
                lose(kafka, a)
        with new_consumer(kafka.bootstrap, topics="many") as b:
            with failing(Stop, kind):
                until = time.monotonic() + 10
                while time.monotonic() < until:
                    a.poll(0.02)
                    b.poll(0.02) if kind == "revoked" else None
            joined(a, 2, b)
            joined(b, 2, a)
        joined(a, 4)
        kafka_rows = {(at.partition, 49) for at in MANY}
        for at in MANY:
            a.seek(at, 40)
        assert kafka_rows <= set(read(a, 40))


def test_a_listener_seeks_pauses_and_commits(kafka: FakeKafka) -> None:
    def assigned(consumer: Consumer, partitions: frozenset[TopicPartition]) -> None:
        for at in partitions:
            consumer.seek(at, 30)
        consumer.pause(MANY[3])

    def revoked(consumer: Consumer, partitions: frozenset[TopicPartition]) -> None:
        consumer.commit({MANY[0]: 33})
        consumer.commit_soon({MANY[1]: 34})

    told = Told(assigned=assigned, revoked=revoked)
    with new_consumer(kafka.bootstrap, topics="many", listener=told, commit_every=None) as consumer:
        assert sorted(read(consumer, 60)) == [(p, o) for p in range(3) for o in range(30, 50)]
        assert consumer.position(MANY[3]) == 30
    assert committed(kafka) == {MANY[0]: 33, MANY[1]: 34}


def test_a_listener_neither_polls_nor_closes(kafka: FakeKafka) -> None:
    told = Told(assigned=lambda consumer, _: consumer.poll())
    with new_consumer(kafka.bootstrap, topics="t", listener=told) as consumer:
        with pytest.raises(OttlaError, match="a listener may seek, pause and commit, but not ask for records"):
            joined(consumer, 1)
        told.act["revoked"] = lambda consumer, _: consumer.close()
        with pytest.raises(OttlaError, match="but not close"):
            consumer.close()
        with pytest.raises(OttlaError, match="this consumer is closed"):
            consumer.poll()


def test_a_listener_that_stops_ends_the_iteration(kafka: FakeKafka) -> None:
    told = Told(assigned=lambda consumer, _: consumer.stop())
    with new_consumer(kafka.bootstrap, topics="t", listener=told) as consumer:
        assert offsets(consumer) == []


# One by one


def test_records_come_one_by_one_with_all_they_have(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics="t") as consumer:
        found = consumer.records()
        first, second = next(found), next(found)
        assert (first.topic, first.partition, first.offset, first.key, first.value) == ("t", 0, 0, b"k", b"0")
        assert second.timestamp - first.timestamp == pytest.approx(0.001, abs=1e-6)
        consumer.commit()
        assert committed(kafka) == {AT: 2}
        assert consumer.position(AT) == 2


def test_records_that_a_program_did_not_take_are_not_passed_over(kafka: FakeKafka) -> None:
    """Found: after a break, the rest of the batch was skipped."""
    with new_consumer(kafka.bootstrap, topics="t") as consumer:
        for record in consumer.records():
            if record.offset == 4:
                break
        assert next(consumer.records()).offset == 5
        assert offsets([take(consumer)])[0] == 6
    assert committed(kafka) == {AT: 50}


def test_the_record_being_worked_on_is_not_committed_when_the_block_raises(kafka: FakeKafka) -> None:
    with failing(Stop), new_consumer(kafka.bootstrap, topics="t") as consumer:
        for record in consumer.records():
            if record.offset == 7:
                fail(Stop())
    assert committed(kafka) == {AT: 7}


def test_a_seek_among_records_goes_elsewhere_at_once(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics="t") as consumer:
        found = []
        for record in consumer.records():
            found.append(record.offset)
            if len(found) == 3:
                consumer.seek(AT, 40)
            if len(found) == 6:
                consumer.seek(AT, 1)
            if len(found) == 8:
                break
    assert found == [0, 1, 2, 40, 41, 42, 1, 2]
    assert committed(kafka) == {AT: 3}


def test_a_pause_among_records_holds_the_next_one_back(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics="t") as consumer:
        records = consumer.records()
        assert [next(records).offset for _ in range(3)] == [0, 1, 2]
        consumer.pause(AT)
        assert consumer.poll(0.2) is None
        assert consumer.position(AT) == 3
        consumer.resume(AT)
        assert next(records).offset == 3


def test_slow_work_on_single_records_keeps_the_membership_and_commits(kafka: FakeKafka) -> None:
    """Found: a batch of records handed out one by one counted as one poll."""
    told = Told()
    options = GroupOptions(
        protocol=Protocol.CLASSIC, heartbeat_interval=0.05, session_timeout=2.0, max_poll_interval=0.6
    )
    with new_consumer(kafka.bootstrap, topics="t", listener=told, options=options, commit_every=0.1) as consumer:
        seen, until = 0, time.monotonic() + 1.5
        for record in consumer.records():
            seen = record.offset
            if time.monotonic() > until:
                break
            time.sleep(0.05)  # the program's work
        assert 0 < committed(kafka)[AT] <= seen < 50
        assert told.of("lost") == []


def test_stop_ends_single_records_between_two(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics="t") as consumer:
        found = []
        for record in consumer.records():
            found.append(record.offset)
            if record.offset == 4:
                consumer.stop()
    assert found == [0, 1, 2, 3, 4]
    assert committed(kafka) == {AT: 5}


def test_single_records_need_all_columns(kafka: FakeKafka) -> None:
    with (
        new_consumer(kafka.bootstrap, topics="t", columns=["value"]) as consumer,
        pytest.raises(InputError, match="records\\(\\) needs all columns"),
    ):
        consumer.records()


# Places


def test_pause_and_resume_neither_skip_nor_repeat(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics="many", fetching=SMALL) as consumer:
        found: list[tuple[int, int]] = []
        joined_rows = read(consumer, 1)
        found += joined_rows
        for turn in range(40):
            at = MANY[turn % 4]
            consumer.pause(at)
            assert at in consumer.paused
            batch = consumer.poll(0.02)
            if batch is not None:
                assert at.partition not in batch.column("partition").to_pylist()
                found += rows(batch)
            consumer.resume(at)
        assert consumer.paused == frozenset()
        found += read(consumer, 200 - len(found))
    assert sorted(found) == [(p, o) for p in range(4) for o in range(50)]
    for number in range(4):
        mine = [o for p, o in found if p == number]
        assert mine == sorted(mine)


def test_a_seek_on_a_paused_partition_counts_when_it_is_resumed(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics="t") as consumer:
        joined(consumer, 1)
        consumer.pause(AT)
        consumer.seek(AT, 45)
        assert consumer.poll(0.2) is None
        assert consumer.position(AT) == 45
        consumer.resume(AT)
        assert offsets([take(consumer)]) == list(range(45, 50))


def test_a_program_goes_to_an_offset_or_an_end(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics="t") as consumer:
        joined(consumer, 1)
        consumer.seek(AT, 12)
        assert take(consumer).column("offset")[0].as_py() == 12
        consumer.seek(AT, "earliest")
        assert take(consumer).column("offset")[0].as_py() == 0
        consumer.seek(AT, "latest")
        assert consumer.position(AT) == 50
        assert consumer.poll(0.1) is None


def test_where_to_begin_without_a_commit(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics="t") as consumer:
        assert take(consumer).column("offset")[0].as_py() == 0
    with new_consumer(kafka.bootstrap, "g-latest", topics="t", start="latest") as consumer:
        eventually(lambda: consumer.poll(0.01) is None and consumer.positions() == {AT: 50}, "its place")
    assert committed(kafka, "g-latest") == {AT: 50}  # else a restart would lose what comes in between


def test_a_partition_without_a_place_is_an_error_until_the_program_decides(kafka: FakeKafka) -> None:
    """Found: it was told once, and never read nor mentioned again; nor were those that had a place."""
    with new_consumer(kafka.bootstrap, topics="many") as first:
        joined(first, 4)
        first.commit({MANY[0]: 45, MANY[1]: 46})
        for at in MANY[:2]:
            first.seek(at, "latest")
        first.pause(*MANY)
        with kafka._dispatcher.changed:
            for at in MANY[2:]:
                kafka._dispatcher.state.groups["g"].offsets.pop(at, None)
    with kafka._dispatcher.changed:
        for at in MANY[2:]:
            kafka._dispatcher.state.groups["g"].offsets.pop(at, None)
    with new_consumer(kafka.bootstrap, topics="many", start="error", commit_every=None) as consumer:
        for _ in range(3):
            with pytest.raises(InputError, match=r"group g has committed nothing for many-[23], and start is 'error'"):
                read(consumer, 10**6)
        consumer.seek(MANY[2], 48)
        with pytest.raises(InputError, match="many-3"):
            read(consumer, 10**6)
        consumer.seek(MANY[3], 49)
        found = read(consumer, 3)
        assert sorted((p, o) for p, o in found if p > 1) == [(2, 48), (2, 49), (3, 49)]


def test_a_partition_that_cannot_be_read_says_so_until_the_program_decides(kafka: FakeKafka) -> None:
    good = plain(50, 10)
    broken = bytearray(plain(60, 10))
    broken[-1] ^= 1
    for base, data in ((50, good), (60, bytes(broken)), (70, plain(70, 10))):
        plant(kafka, data, base=base, stop=base + 10)
    with new_consumer(kafka.bootstrap, topics="t") as consumer:
        assert [o for _, o in read(consumer, 60)] == list(range(60))
        for _ in range(3):
            with pytest.raises(CorruptBatch, match="t-0"):
                read(consumer, 1)
        assert consumer.position(AT) == 60
        consumer.pause(AT)
        assert consumer.poll(0.05) is None
        consumer.resume(AT)
        with pytest.raises(CorruptBatch) as caught:
            read(consumer, 1)
        assert caught.value.base_offset == 60
        consumer.seek(AT, 70)
        assert [o for _, o in read(consumer, 10)] == list(range(70, 80))


def test_lost_records_are_an_error_until_the_program_decides(kafka: FakeKafka) -> None:
    with kafka._dispatcher.changed:
        kafka._partition("t", 0).log.delete_before(30)
    with new_consumer(kafka.bootstrap, None) as consumer:
        consumer.assign({AT: 10})
        for _ in range(2):
            with pytest.raises(OffsetsLost) as caught:
                read(consumer, 1)
        assert (caught.value.start, caught.value.stop) == (10, 30)
        consumer.seek(AT, caught.value.resume)
        assert read(consumer, 20)[0] == (0, 30)


def test_places_that_cannot_be_asked_for_yet_are_asked_for_again(kafka: FakeKafka) -> None:
    fault = kafka.fail("OffsetFetch", ErrorCode.unknown_member_id, times=2)
    with new_consumer(kafka.bootstrap, topics="t") as consumer:
        assert read(consumer, 50)[0] == (0, 0)
    assert fault.hits == 2


def test_places_that_nobody_may_know_are_an_error(kafka: FakeKafka) -> None:
    """Found: it was asked for again and again, without a pause and without a word to the program."""
    fault = kafka.fail("OffsetFetch", ErrorCode.group_authorization_failed, times=None)
    with new_consumer(kafka.bootstrap, topics="t") as consumer:
        for _ in range(3):
            with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
                read(consumer, 1)
    assert fault.hits == 1


# Topics


def test_a_pattern_takes_in_topics_that_appear(kafka: FakeKafka) -> None:
    kafka.create_topic("shop.a", 1)
    filled(kafka, "shop.a", 1)
    times = Timeouts(connect=2.0, request=3.0, total=10.0, metadata_age=0.2)
    with new_consumer(kafka.bootstrap, topics=re.compile(r"shop\..*"), timeouts=times) as consumer:
        joined(consumer, 1)
        kafka.create_topic("shop.b", 2)
        kafka.create_topic("workshop.b", 2)
        joined(consumer, 3)
        assert {at.topic for at in consumer.assignment} == {"shop.a", "shop.b"}
        consumer.subscribe(re.compile("nothing"))
        joined(consumer, 0)
        consumer.subscribe("t")
        joined(consumer, 1)


@pytest.mark.usefixtures("impatient")
def test_another_subscription_takes_the_place_of_the_first(kafka: FakeKafka) -> None:
    told = Told()
    with new_consumer(kafka.bootstrap, topics="t", listener=told) as consumer:
        read(consumer, 50)
        with pytest.raises(BrokerError, match="misspelt"):
            consumer.subscribe(["t", "misspelt"])
        consumer.subscribe(["many", "t"])
        joined(consumer, 5)
        consumer.subscribe("many")
        joined(consumer, 4)
        assert committed(kafka)[AT] == 50
        consumer.subscribe([])
        joined(consumer, 0)


@pytest.mark.usefixtures("impatient")
def test_an_unknown_topic_is_told(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics=["t", "tt"]) as consumer, pytest.raises(BrokerError, match="tt"):
        consumer.poll(1)
    with new_consumer(kafka.bootstrap, None) as alone:
        with pytest.raises(BrokerError, match="tt"):
            alone.assign([TopicPartition("tt", 0)])
        with pytest.raises(OttlaError, match="t-7"):
            alone.assign([TopicPartition("t", 7)])
        assert alone.assignment == frozenset()


def test_partitions_are_assigned_by_name_without_a_group(kafka: FakeKafka) -> None:
    told = Told()
    with new_consumer(kafka.bootstrap, None, listener=told) as consumer:
        consumer.assign({MANY[0]: 45, MANY[1]: 48})
        assert sorted(read(consumer, 7)) == [(0, o) for o in range(45, 50)] + [(1, 48), (1, 49)]
        consumer.assign([MANY[1], MANY[2]])
        assert consumer.assignment == frozenset(MANY[1:3])
        found = read(consumer, 50)
        assert found == [(2, o) for o in range(50)]  # 1 goes on where it was
        consumer.assign({MANY[1]: 49})
        assert read(consumer, 1) == [(1, 49)]
        with pytest.raises(ConfigError, match="has no group"):
            consumer.commit()
        with pytest.raises(ConfigError, match="has no group"):
            consumer.committed()
        with pytest.raises(ConfigError, match="cannot subscribe"):
            consumer.subscribe("t")
        consumer.assign([])
        with pytest.raises(InputError, match="nothing to read"):
            consumer.poll()
    assert not any(seen.api in ("JoinGroup", "OffsetCommit") for seen in kafka.requests)


def test_partitions_that_are_assigned_with_a_group_begin_where_it_is(kafka: FakeKafka) -> None:
    for first in (0, 50):
        with new_consumer(kafka.bootstrap) as consumer:
            consumer.assign([AT])
            consumer.poll(0.1)
            eventually(lambda: consumer.poll(0.01) is None and consumer.position(AT) == 50, "the end")
            assert first in (0, consumer.positions()[AT])
        assert committed(kafka) == {AT: 50}


def test_a_consumer_either_subscribes_or_assigns(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics="t") as consumer:
        with pytest.raises(InputError, match="either subscribes or assigns"):
            consumer.assign([AT])
        joined(consumer, 1)
        consumer.subscribe([])
        with pytest.raises(InputError, match="either subscribes or assigns"):
            consumer.assign([AT])
    with new_consumer(kafka.bootstrap) as other:
        other.assign([AT])
        with pytest.raises(InputError, match="partitions by assign"):
            other.subscribe("t")


# Threads, ends


def is_in_use(consumer: Consumer) -> bool:
    """By another thread."""
    if not consumer._in_use.acquire(blocking=False):
        return True
    consumer._in_use.release()
    return False


def test_only_one_thread_at_a_time_may_use_it(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics="none") as consumer:
        joined(consumer, 1)
        polling = threading.Thread(target=consumer.poll, args=(5,))
        polling.start()
        eventually(lambda: is_in_use(consumer), "it polls")
        with pytest.raises(OttlaError, match="another thread is using this consumer"):
            consumer.poll()
        consumer.stop()
        polling.join(2)
        assert not polling.is_alive()


def test_close_ends_a_poll_of_another_thread(kafka: FakeKafka) -> None:
    """Found: it raised, and everything stayed open."""
    consumer = new_consumer(kafka.bootstrap, topics="none")
    got: list[object] = []

    def iterate() -> None:
        got.extend(consumer)
        got.append("ended")

    polling = threading.Thread(target=iterate)
    polling.start()
    eventually(lambda: consumer.assignment, "it has joined")
    began = time.monotonic()
    consumer.close()
    assert time.monotonic() - began < 1
    polling.join(2)
    assert got == ["ended"]
    assert any(seen.api == "LeaveGroup" for seen in kafka.requests)


def test_after_the_end_every_call_says_so(kafka: FakeKafka) -> None:
    consumer = new_consumer(kafka.bootstrap, topics="t")
    joined(consumer, 1)
    consumer.close()
    consumer.close()
    assert consumer.assignment == frozenset()
    assert list(consumer) == []
    calls: list[Callable[[], object]] = [
        consumer.poll,
        consumer.commit,
        lambda: consumer.subscribe("t"),
        lambda: next(iter(consumer.records()), None) or consumer.poll(),
    ]
    for call in calls:
        with pytest.raises(OttlaError, match="closed"):
            call()


def test_a_consumer_that_never_began_is_closed(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics="t") as consumer:
        assert consumer.assignment == frozenset()
    assert kafka.requests == []


def test_leaving_with_brokers_away_is_in_time(kafka: FakeKafka) -> None:
    consumer = new_consumer(kafka.bootstrap, topics="t")
    read(consumer, 50)
    kafka.all_down()
    began = time.monotonic()
    consumer.close(timeout=0.5)
    assert time.monotonic() - began < 2


def test_a_forked_child_is_told_and_its_parent_goes_on(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics="t") as consumer:
        joined(consumer, 1)
        child = os.fork()
        if child == 0:
            try:
                consumer.close()
                consumer.poll()
            except UsedAfterFork as error:
                os._exit(7 if "before fork()" in str(error) else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        consumer.seek(AT, 0)
        assert read(consumer, 50)[0] == (0, 0)


def test_the_error_that_ends_the_membership_is_raised_and_partitions_are_lost(kafka: FakeKafka) -> None:
    told = Told()
    with new_consumer(kafka.bootstrap, topics="t", listener=told) as consumer:
        read(consumer, 50)
        kafka.fail("Heartbeat", ErrorCode.group_authorization_failed)
        for _ in range(2):
            with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
                read(consumer, 1)
        assert told.of("lost") == [frozenset([AT])]
    assert committed(kafka) == {}


# Bad input

BAD: list[tuple[dict[str, Any], type[OttlaError], str]] = [
    ({"group": ""}, ConfigError, "group must be a name"),
    ({"group": 5}, ConfigError, "group must be a name"),
    ({"topics": 5}, InputError, "accepted are a name, a list of names, and re.compile"),
    ({"topics": ["t", ""]}, InputError, "accepted are a name"),
    ({"topics": [["t"]]}, InputError, "accepted are a name"),
    ({"topics": re.compile(b"t")}, InputError, "pattern of bytes"),
    ({"topics": "t", "group": None}, ConfigError, "without a group cannot subscribe"),
    ({"start": "lately"}, InputError, "start is 'lately'"),
    ({"start": 5}, InputError, "accepted are 'earliest', 'latest', 'error' and a datetime"),
    ({"start": datetime(2026, 1, 1)}, InputError, "time zone"),
    ({"commit_every": 0}, ConfigError, "commit_every"),
    ({"columns": ["valeu"]}, ConfigError, "unknown columns valeu"),
    ({"isolation": "committed"}, ConfigError, "isolation is 'committed'"),
    ({"on_lost": "skip"}, ConfigError, "on_lost is 'skip'"),
    ({"listener": print}, ConfigError, "listener"),
    ({"options": {}}, ConfigError, "options"),
    ({"fetching": 5}, ConfigError, "fetching"),
]


@pytest.mark.parametrize(("given", "kind", "text"), BAD, ids=[str(case[0]) for case in BAD])
def test_a_wrong_setting_is_refused_when_it_is_made(
    kafka: FakeKafka, given: dict[str, Any], kind: type[OttlaError], text: str
) -> None:
    with pytest.raises(kind, match=text):
        new_consumer(kafka.bootstrap, **given)


WRONG: list[tuple[str, Callable[[Consumer], object], str]] = [
    ("a partition of others", lambda c: c.seek(MANY[0], 0), "many-0 is not a partition of this consumer; it has t-0"),
    ("no partition", lambda c: c.seek("t", 0), "'t' is no partition; accepted are TopicPartition"),  # type: ignore[arg-type]
    ("a number as text", lambda c: c.pause(("t", "0")), "is no partition"),  # type: ignore[arg-type]
    ("a place that is none", lambda c: c.seek(AT, "begin"), "place is 'begin'"),
    ("an offset below 0", lambda c: c.seek(AT, -5), "offsets begin at 0"),
    ("a commit below 0", lambda c: c.commit({AT: -1}), "offsets are whole numbers from 0"),
    ("a commit of text", lambda c: c.commit({AT: "5"}), "offsets are whole numbers from 0"),  # type: ignore[dict-item]
    ("a commit for nothing", lambda c: c.commit({"t": 5}), "is no partition"),  # type: ignore[dict-item]
    ("a wait below 0", lambda c: c.poll(-1), "timeout must be seconds from 0"),
    ("a wait of text", lambda c: c.poll("5"), "timeout must be seconds"),  # type: ignore[arg-type]
    ("a timeout of text", lambda c: c.commit(timeout="5"), "timeout must be seconds"),  # type: ignore[arg-type]
    ("committed of a topic", lambda c: c.committed("t"), "accepted is a list of pairs"),  # type: ignore[arg-type]
]


def test_a_wrong_call_is_refused_with_what_is_accepted(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics="t") as consumer:
        joined(consumer, 1)
        for _, call, text in WRONG:
            with pytest.raises(InputError, match=text):
                call(consumer)


def test_assign_refuses_what_is_no_partition(kafka: FakeKafka) -> None:
    wrong: list[Any] = ["t", 5, [("t", -1)], [AT, "t"], {AT: -1}, {AT: "x"}]
    with new_consumer(kafka.bootstrap, None) as consumer:
        for given in wrong:
            with pytest.raises(InputError):
                consumer.assign(given)
        assert consumer.assignment == frozenset()
