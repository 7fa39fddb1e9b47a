"""What a consumer returns and from where: listeners, single records, pauses, seeks and lost positions."""

from __future__ import annotations

import time

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
    rows,
    take,
)
from tests.fetch.logs import plain, plant
from tests.waiting import eventually

from ottla.consume.consumer import Consumer
from ottla.consume.membership import GroupOptions, Protocol
from ottla.errors import BrokerError, CorruptBatch, ErrorCode, InputError, OffsetsLost, OttlaError
from ottla.model import TopicPartition
from ottla.testing import FakeKafka

from .stand import AT, MANY, Stop, lose

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


# Listeners


def test_a_listener_is_called_when_partitions_come_and_go(kafka: FakeKafka) -> None:
    listener = RecordingListener()
    with new_consumer(kafka.bootstrap, topics="many", listener=listener) as a:
        joined(a, 4)
        with new_consumer(kafka.bootstrap, topics="many") as b:
            joined(b, 2, a)
        joined(a, 4)
    assert [kind for kind, _ in listener.calls] == ["assigned", "revoked", "assigned", "revoked", "assigned", "revoked"]
    assert listener.calls[0][1] == listener.calls[-1][1] == frozenset(MANY)


@pytest.mark.parametrize("kind", ["assigned", "revoked", "lost"])
def test_a_listener_that_raises_is_heard_and_changes_nothing_else(kafka: FakeKafka, kind: str) -> None:
    """Regression: a listener that raised left partitions unread, or never released."""

    def raises(*_: object) -> None:
        listener.actions.clear()
        raise Stop(kind)

    listener = RecordingListener()
    with new_consumer(kafka.bootstrap, topics="many", listener=listener) as a:
        if kind == "assigned":
            listener.actions[kind] = raises
        else:
            joined(a, 4)
            listener.actions[kind] = raises
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
        kafka_rows = {(tp.partition, 49) for tp in MANY}
        for tp in MANY:
            a.seek(tp, 40)
        assert kafka_rows <= set(read(a, 40))


def test_a_listener_seeks_pauses_and_commits(kafka: FakeKafka) -> None:
    def assigned(consumer: Consumer, partitions: frozenset[TopicPartition]) -> None:
        for tp in partitions:
            consumer.seek(tp, 30)
        consumer.pause(MANY[3])

    def revoked(consumer: Consumer, partitions: frozenset[TopicPartition]) -> None:
        consumer.commit({MANY[0]: 33})
        consumer.commit_soon({MANY[1]: 34})

    listener = RecordingListener(assigned=assigned, revoked=revoked)
    with new_consumer(kafka.bootstrap, topics="many", listener=listener, commit_every=None) as consumer:
        assert sorted(read(consumer, 60)) == [(p, o) for p in range(3) for o in range(30, 50)]
        assert consumer.position(MANY[3]) == 30
    assert committed(kafka) == {MANY[0]: 33, MANY[1]: 34}


def test_a_listener_neither_polls_nor_closes(kafka: FakeKafka) -> None:
    listener = RecordingListener(assigned=lambda consumer, _: consumer.poll())
    with new_consumer(kafka.bootstrap, topics="t", listener=listener) as consumer:
        with pytest.raises(OttlaError, match="a listener may seek, pause and commit, but not ask for records"):
            joined(consumer, 1)
        listener.actions["revoked"] = lambda consumer, _: consumer.close()
        with pytest.raises(OttlaError, match="but not close"):
            consumer.close()
        with pytest.raises(OttlaError, match="this consumer is closed"):
            consumer.poll()


def test_a_listener_that_stops_ends_the_iteration(kafka: FakeKafka) -> None:
    listener = RecordingListener(assigned=lambda consumer, _: consumer.stop())
    with new_consumer(kafka.bootstrap, topics="t", listener=listener) as consumer:
        assert offsets(consumer) == []


# Single records


def test_records_come_one_by_one_with_all_they_have(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics="t") as consumer:
        records = consumer.records()
        first, second = next(records), next(records)
        assert (first.topic, first.partition, first.offset, first.key, first.value) == ("t", 0, 0, b"k", b"0")
        assert second.timestamp - first.timestamp == pytest.approx(0.001, abs=1e-6)
        consumer.commit()
        assert committed(kafka) == {AT: 2}
        assert consumer.position(AT) == 2


def test_records_that_a_program_did_not_take_are_not_passed_over(kafka: FakeKafka) -> None:
    """Regression: after a break, the rest of the batch was skipped."""
    with new_consumer(kafka.bootstrap, topics="t") as consumer:
        for record in consumer.records():
            if record.offset == 4:
                break
        assert next(consumer.records()).offset == 5
        assert offsets([take(consumer)])[0] == 6
    assert committed(kafka) == {AT: 50}


def test_iterators_of_single_records_that_are_alive_together_share_the_records(kafka: FakeKafka) -> None:
    """Regression: each went through its own copy of the batch, so records came twice, and others were skipped."""
    with new_consumer(kafka.bootstrap, topics="t") as consumer:
        outer, inner = consumer.records(), consumer.records()
        seen = [next(records).offset for _ in range(12) for records in (outer, inner)]
        assert seen == list(range(24))
        assert consumer.position(AT) == 24
        seen += [next(inner).offset for _ in range(25)]
        assert next(outer).offset == 49
        assert seen == list(range(49))
    assert committed(kafka) == {AT: 50}


def test_the_record_being_worked_on_is_not_committed_when_the_block_raises(kafka: FakeKafka) -> None:
    with failing(Stop), new_consumer(kafka.bootstrap, topics="t") as consumer:
        for record in consumer.records():
            if record.offset == 7:
                fail(Stop())
    assert committed(kafka) == {AT: 7}


def test_a_seek_among_records_goes_elsewhere_at_once(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics="t") as consumer:
        seen = []
        for record in consumer.records():
            seen.append(record.offset)
            if len(seen) == 3:
                consumer.seek(AT, 40)
            if len(seen) == 6:
                consumer.seek(AT, 1)
            if len(seen) == 8:
                break
    assert seen == [0, 1, 2, 40, 41, 42, 1, 2]
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
    """Regression: a batch of single records counted as one poll."""
    listener = RecordingListener()
    options = GroupOptions(
        protocol=Protocol.CLASSIC, heartbeat_interval=0.05, session_timeout=2.0, max_poll_interval=0.6
    )
    with new_consumer(kafka.bootstrap, topics="t", listener=listener, options=options, commit_every=0.1) as consumer:
        seen, until = 0, time.monotonic() + 1.5
        for record in consumer.records():
            seen = record.offset
            if time.monotonic() > until:
                break
            time.sleep(0.05)  # the program's work
        assert 0 < committed(kafka)[AT] <= seen < 50
        assert listener.of("lost") == []


def test_stop_ends_single_records_between_two(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics="t") as consumer:
        seen = []
        for record in consumer.records():
            seen.append(record.offset)
            if record.offset == 4:
                consumer.stop()
    assert seen == [0, 1, 2, 3, 4]
    assert committed(kafka) == {AT: 5}


def test_single_records_need_all_columns(kafka: FakeKafka) -> None:
    with (
        new_consumer(kafka.bootstrap, topics="t", columns=["value"]) as consumer,
        pytest.raises(InputError, match="records\\(\\) needs all columns"),
    ):
        consumer.records()


# Positions


def test_pause_and_resume_neither_skip_nor_repeat(kafka: FakeKafka) -> None:
    with new_consumer(kafka.bootstrap, topics="many", fetching=SMALL) as consumer:
        records: list[tuple[int, int]] = []
        joined_rows = read(consumer, 1)
        records += joined_rows
        for turn in range(40):
            tp = MANY[turn % 4]
            consumer.pause(tp)
            assert tp in consumer.paused
            batch = consumer.poll(0.02)
            if batch is not None:
                assert tp.partition not in batch.column("partition").to_pylist()
                records += rows(batch)
            consumer.resume(tp)
        assert consumer.paused == frozenset()
        records += read(consumer, 200 - len(records))
    assert sorted(records) == [(p, o) for p in range(4) for o in range(50)]
    for number in range(4):
        mine = [o for p, o in records if p == number]
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
    """Regression: it raised once, and then neither it nor the others were ever read."""
    with new_consumer(kafka.bootstrap, topics="many") as first:
        joined(first, 4)
        first.commit({MANY[0]: 45, MANY[1]: 46})
        for tp in MANY[:2]:
            first.seek(tp, "latest")
        first.pause(*MANY)
        with kafka._dispatcher.changed:
            for tp in MANY[2:]:
                kafka._dispatcher.state.groups["g"].offsets.pop(tp, None)
    with kafka._dispatcher.changed:
        for tp in MANY[2:]:
            kafka._dispatcher.state.groups["g"].offsets.pop(tp, None)
    with new_consumer(kafka.bootstrap, topics="many", start="error", commit_every=None) as consumer:
        for _ in range(3):
            with pytest.raises(InputError, match=r"group g has no committed offset for many-[23], and start is"):
                read(consumer, 10**6)
        consumer.seek(MANY[2], 48)
        with pytest.raises(InputError, match="many-3"):
            read(consumer, 10**6)
        consumer.seek(MANY[3], 49)
        records = read(consumer, 3)
        assert sorted((p, o) for p, o in records if p > 1) == [(2, 48), (2, 49), (3, 49)]


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


def test_start_positions_without_permission_are_an_error(kafka: FakeKafka) -> None:
    """Regression: it was retried without a pause and without an error for the program."""
    fault = kafka.fail("OffsetFetch", ErrorCode.group_authorization_failed, times=None)
    with new_consumer(kafka.bootstrap, topics="t") as consumer:
        for _ in range(3):
            with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
                read(consumer, 1)
    assert fault.hits == 1
