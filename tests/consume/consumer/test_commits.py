"""What a consumer commits, and what it must not."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest
from tests.consume.consuming import (
    SMALL,
    RecordingListener,
    committed,
    fail,
    failing,
    joined,
    new_consumer,
    offsets,
    read,
    take,
)
from tests.waiting import eventually

from ottla.admin.committed import Committed
from ottla.consume.commits import Commits
from ottla.consume.consumer import Consumer
from ottla.consume.membership import GroupOptions, Protocol
from ottla.errors import BrokerError, CommitFailed, ErrorCode
from ottla.model import GroupMember, TopicPartition
from ottla.net import Cluster
from ottla.net.deadline import Deadline
from ottla.testing import FakeKafka, When
from ottla.testing.fake.groups import Committed as StoredOffset

from .stand import AT, LONG, MANY, Stop, lose

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


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


def test_maintaining_follows_the_group_and_finishes_nothing(kafka: FakeKafka) -> None:
    with failing(Stop), new_consumer(kafka.bootstrap, topics="many", commit_every=0.001) as consumer:
        take(consumer)
        for _ in range(20):
            consumer.maintain()
        assert not any(committed(kafka).values())
        with new_consumer(kafka.bootstrap, topics="many") as other:

            def have_both() -> bool:
                consumer.maintain()
                other.poll(0.0)
                return len(consumer.assignment) == len(other.assignment) == 2

            eventually(have_both, "the other one gets partitions though this one does not poll")
        fail(Stop())


@pytest.mark.parametrize("call", ["pause", "seek", "commit nothing", "resume"])
def test_what_is_being_worked_on_is_not_done_because_of_other_calls(kafka: FakeKafka, call: str) -> None:
    """Regression: pause and seek, of any partition, counted everything as finished."""
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


def test_what_the_program_committed_is_not_taken_back_by_an_automatic_commit(kafka: FakeKafka) -> None:
    """Regression: close committed less than the program had finished."""
    with failing(Stop), new_consumer(kafka.bootstrap, topics="long", fetching=SMALL) as consumer:
        got = len(take(consumer)) + len(take(consumer))
        consumer.commit()
        fail(Stop())
    assert committed(kafka) == {LONG: got}


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


def test_a_background_commit_calls_back(kafka: FakeKafka) -> None:
    def raises(*_: object) -> None:
        raise Stop

    calls: list[tuple[Any, Any, str]] = []
    with new_consumer(kafka.bootstrap, topics="t", commit_every=None) as consumer:
        read(consumer, 50)
        consumer.commit_soon(done=lambda done, error: calls.append((done, error, threading.current_thread().name)))
        consumer.commit_soon({AT: Committed(7, metadata="note")}, done=raises)
        consumer.commit()  # after the earlier commits
        assert committed(kafka) == {AT: 50}
        assert consumer.committed()[AT].offset == 50
    assert [(offsets[AT].offset, error) for offsets, error, _ in calls] == [(50, None)]
    assert calls[0][2].startswith("ottla-commit")


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


def test_a_lost_partition_is_not_committed_under_the_new_generation(kafka: FakeKafka) -> None:
    """Regression: a commit was resent under the generation after the loss, over the commit of the next owner."""
    listener = RecordingListener()
    with new_consumer(kafka.bootstrap, topics="t", listener=listener) as consumer:
        read(consumer, 50)
        lose(kafka, consumer)
        with kafka._dispatcher.changed:
            kafka._dispatcher.state.groups["g"].offsets.clear()
        for attempt in (consumer.commit, lambda: consumer.commit({AT: 3}), lambda: consumer.member):
            with pytest.raises(CommitFailed, match="t-0 were not committed: the partitions were lost or released"):
                attempt()
        errors: list[Any] = []
        consumer.commit_soon(done=lambda _, error: errors.append(error))
        eventually(lambda: errors, "the callback")
        assert isinstance(errors[0], CommitFailed)
        assert committed(kafka) == {}
        assert listener.of("lost") == []
        assert read(consumer, 50)[0] == (0, 0)  # others may have it: it begins where the group is
        assert listener.of("lost") == [frozenset([AT])]
        assert consumer.member.generation > 1
        consumer.commit()
    assert committed(kafka) == {AT: 50}


def test_a_lost_partition_is_not_committed_at_the_end(kafka: FakeKafka) -> None:
    listener = RecordingListener()
    with new_consumer(kafka.bootstrap, topics="t", listener=listener) as consumer:
        read(consumer, 50)
        lose(kafka, consumer)
    assert committed(kafka) == {}
    assert (listener.of("lost"), listener.of("revoked")) == ([frozenset([AT])], [])


@pytest.mark.usefixtures("impatient")
def test_a_released_partition_is_not_committed_by_a_late_attempt(kafka: FakeKafka) -> None:
    """Regression: a background commit kept retrying after its partition was given to another member."""
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
            theirs = {tp for tp in MANY if tp in b.assignment}
            assert not theirs & committed(kafka).keys()


def let_go_and_retake(kafka: FakeKafka, listener: RecordingListener, consumer: Consumer) -> None:
    """Let another member join and leave."""
    before = len(listener.of("assigned"))
    other = new_consumer(kafka.bootstrap, topics="t", commit_every=None)
    eventually(lambda: (other.poll(0.01), consumer.poll(0.01), len(listener.of("revoked")) > 0)[-1], "it lets go")
    other.close()
    eventually(lambda: (consumer.poll(0.01), len(listener.of("assigned")) > before)[-1], "it takes it again")
    joined(consumer, 1)


def test_a_late_attempt_does_not_undo_what_others_did_meanwhile(
    kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition went to another member and came back while a commit was in flight, which is then refused."""
    attempts: list[dict[TopicPartition, Committed]] = []
    came_back = threading.Event()

    def refused(_: object, member: GroupMember, offsets: dict[TopicPartition, Committed], **__: object) -> None:
        attempts.append(offsets)
        if len(attempts) == 1:
            came_back.wait(10)
            raise BrokerError(int(ErrorCode.illegal_generation), "committing")

    monkeypatch.setattr("ottla.consume.commits.commit", refused)
    generations = itertools.count()
    errors: list[Any] = []
    with Cluster(kafka.bootstrap) as cluster:
        commits = Commits(
            cluster, member=lambda: GroupMember("g", "m", next(generations)), keeps=lambda kept: kept, name="g"
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
    """The partition went to another member and came back while the committed offset was being looked up."""
    listener = RecordingListener()
    with new_consumer(kafka.bootstrap, topics="t", commit_every=None, listener=listener) as consumer:
        kafka.delay("OffsetFetch", 2.0, times=1)
        joined(consumer, 1)
        kafka.wait_for_request("OffsetFetch")
        kafka.delay("OffsetFetch", 0.5, when=When.BEFORE_HANDLING)
        let_go_and_retake(kafka, listener, consumer)
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
    listener = RecordingListener()
    options = GroupOptions(
        protocol=Protocol.CLASSIC, heartbeat_interval=0.05, session_timeout=2.0, max_poll_interval=0.3
    )
    with new_consumer(kafka.bootstrap, topics="t", listener=listener, options=options) as consumer:
        read(consumer, 50)
        kafka.wait_for_request("LeaveGroup")
        with pytest.raises(CommitFailed):
            consumer.commit()
        assert read(consumer, 50)[0] == (0, 0)
        assert listener.of("lost") == [frozenset([AT])]
