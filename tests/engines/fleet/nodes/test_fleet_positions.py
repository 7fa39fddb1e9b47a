"""Where a fleet starts and continues: new topics, positions that a log does not have, gaps, stores that lose data."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from tests.engines.fleet.crew import SHORT, missing, new_fleet, settled, write
from tests.fetch.compacting import COMPACTION, compact
from tests.fetch.logs import cut_back, fill, plain, plant
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.admin.group_admin import GroupAdmin
from ottla.cluster import LocalCluster
from ottla.config import Timeouts
from ottla.engines.fleet.kafka_memory import memory_group
from ottla.engines.fleet.planning import Units
from ottla.engines.fleet.store import open_store
from ottla.engines.fleet.units import LEAP, Charter
from ottla.errors import OffsetsLost, StoreUnavailable
from ottla.events.values import Event, PositionMisplaced, RangeLost, StoreWentBack, TopicReplaced, UnitEnded
from ottla.fetch.reader import Reader
from ottla.model import TopicPartition
from ottla.net import Cluster
from ottla.produce.producer import Producer
from ottla.testing import FakeKafka

from .working import (
    SECONDS,
    SMALL,
    Diary,
    NewFleet,
    NewTopic,
    delete_before,
    ends,
    events_of,
    first_unit,
    in_background,
    only,
)

pytestmark = [pytest.mark.broker, pytest.mark.usefixtures("no_thread_is_left")]


# Where it begins


@pytest.mark.parametrize(("start", "expected"), [("earliest", 0), ("latest", 300)])
def test_a_topic_that_is_new_to_the_group_begins_at_start(
    fleet: NewFleet, new_topic: NewTopic, start: str, expected: int
) -> None:
    topic, diary = new_topic(300), Diary()
    node = fleet(topic, start=start)
    node.run(diary, until_end=True)
    assert only(node, topic).done == 300
    assert min((entry.range.start for entry in diary.handled), default=300) == expected


def test_a_topic_can_begin_with_a_time(kafka: LocalCluster, fleet: NewFleet, new_topic: NewTopic) -> None:
    topic, diary, noon = new_topic(), Diary(), datetime.now(UTC) - timedelta(hours=1)
    with Producer(kafka.bootstrap) as producer:
        for number in range(10):
            at = noon + timedelta(minutes=number - 5)
            producer.send(topic, b"%d" % number, timestamp=at.timestamp())
        producer.flush(SECONDS)
    fleet(topic, start=noon).run(diary, until_end=True)
    assert diary.ranges == [(0, 5, 10)]


def test_the_group_goes_on_where_it_was(kafka: LocalCluster, fleet: NewFleet, new_topic: NewTopic) -> None:
    topic, diary = new_topic(300), Diary()
    first = fleet(topic)
    first.run(diary, until_end=True)
    first.close()
    write(kafka.bootstrap, topic, 100, first=300)
    fleet(topic).run(diary, until_end=True)
    assert diary.ranges == [(0, 0, 100), (0, 100, 200), (0, 200, 300), (0, 300, 400)]


# Positions that the log does not have


@pytest.mark.parametrize(("on_lost", "resume"), [("error", -1), ("earliest", 350), ("latest", 400)])
def test_a_position_before_the_beginning_of_the_log_follows_the_policy(
    kafka: LocalCluster, fleet: NewFleet, new_topic: NewTopic, on_lost: str, resume: int
) -> None:
    topic, diary = new_topic(200), Diary()
    first = fleet(topic)
    first.run(diary, until_end=True)
    first.close()
    write(kafka.bootstrap, topic, 200, first=200)
    delete_before(kafka, topic, 350)
    node = fleet(topic, on_lost=on_lost)
    thread = in_background(lambda: node.run(diary))
    eventually(lambda: events_of(node, PositionMisplaced), "it is reported")
    (event,) = events_of(node, PositionMisplaced)
    assert (event.position, event.start, event.stop, event.resume) == (200, 350, 400, resume)
    if resume < 0:
        eventually(lambda: f"{topic}/0" in node._planner.halted, "it says so")
    else:
        settled(node.look, ends(topic, 400))
    node.stop()
    thread.join(SECONDS)
    assert [entry.range.start for entry in diary.handled] == [0, 100, *([350] if resume == 350 else [])]
    assert len(events_of(node, PositionMisplaced)) == 1


@pytest.mark.parametrize(("on_lost", "done"), [("error", 250), ("earliest", 100), ("latest", 100)])
def test_a_position_after_the_end_of_the_log_follows_the_policy(
    fleet: NewFleet, new_topic: NewTopic, on_lost: str, done: int, group: str
) -> None:
    topic, diary = new_topic(100), Diary()
    node = fleet(topic, on_lost=on_lost)
    store = open_store("memory://", group)
    store.found(SHORT)
    store.reset(TopicPartition(topic, 0), 250)
    thread = in_background(lambda: node.run(diary))
    eventually(lambda: events_of(node, PositionMisplaced), "it is reported")
    eventually(lambda: only(node, topic).done == done, "it goes on, or does not")
    node.stop()
    thread.join(SECONDS)
    assert [entry.range.start for entry in diary.handled] == ([0] if on_lost == "earliest" else [])


@pytest.mark.parametrize("on_lost", ["error", "earliest"])
def test_a_topic_that_was_recreated_is_another_one(
    kafka: LocalCluster, client: Cluster, fleet: NewFleet, new_topic: NewTopic, on_lost: str
) -> None:
    topic, diary = new_topic(100, partitions=2), Diary()
    node = fleet(topic, on_lost=on_lost)
    thread = in_background(lambda: node.run(diary))
    settled(node.look, ends(topic, 100, 2))
    admin = Admin(client)
    admin.delete_topics(topic)
    admin.create_topic(topic, partitions=1, replicas=1)
    write(kafka.bootstrap, topic, 150)
    eventually(lambda: events_of(node, TopicReplaced), "it is reported")
    (event,) = events_of(node, TopicReplaced)
    assert event.goes_on == (on_lost == "earliest")
    if event.goes_on:
        eventually(
            lambda: [state[1:3] for state in node.look().partitions] == [(150, 150)],
            lambda: str(node.look().partitions),
        )
    else:
        eventually(lambda: topic in node._planner.halted, "it says so")
    node.stop()
    thread.join(SECONDS)
    assert sum(entry.records for entry in diary.handled) == (350 if event.goes_on else 200)


@pytest.mark.parametrize("on_lost", ["error", "earliest"])
def test_a_worker_that_knew_the_topic_before_reads_the_new_one_at_the_first_attempt(
    kafka: LocalCluster, client: Cluster, fleet: NewFleet, new_topic: NewTopic, group: str, on_lost: str
) -> None:
    """This node does not plan, so it can only learn from the lost lease that the topic was replaced."""
    topic, diary, events = new_topic(250), Diary(), list[Event]()
    planner = fleet(topic, on_lost=on_lost)
    planner.start()
    eventually(lambda: planner._steward is not None and planner._steward.is_planner, "the first one plans")
    worker = fleet(topic, on_lost=on_lost, events=[events.append])
    thread = in_background(lambda: worker.run(diary))
    settled(worker.look, ends(topic, 250))
    admin = Admin(client)
    admin.delete_topics(topic)
    admin.create_topic(topic, partitions=1, replicas=1)
    write(kafka.bootstrap, topic, 450)
    eventually(lambda: events_of(planner, TopicReplaced), "it is reported")
    if on_lost == "error":
        store = open_store("memory://", group)
        store.reset(TopicPartition(topic, 0), 0)
        store.add_topics({topic: str(admin.cluster.metadata([topic]).topics[topic].id)})
    eventually(lambda: only(worker, topic).done == 450, lambda: f"{worker.look()}, {events[-5:]}")
    worker.stop()
    thread.join(SECONDS)
    assert sum(entry.records for entry in diary.handled) == 700
    ended = [event for event in events if isinstance(event, UnitEnded)]
    assert {(event.attempt, event.status) for event in ended} == {(1, "done")}
    assert not [event for event in events if isinstance(event, RangeLost)]


def test_what_was_deleted_while_it_waited_comes_to_the_error_list(
    kafka: LocalCluster, fleet: NewFleet, new_topic: NewTopic, group: str
) -> None:
    topic, diary = new_topic(300), Diary()
    node = fleet(topic, charter=Charter(max_attempts=2))
    kept = first_unit(node)
    delete_before(kafka, topic, 250)
    kept.give_back()
    node.run(diary, until_end=True)
    failures = open_store("memory://", group).failures()
    assert [failure.range.start for failure in failures] == [0, 100, 200]
    assert all(failure.reason.startswith(OffsetsLost.__name__) for failure in failures)


@pytest.mark.parametrize("on_lost", ["earliest", "latest"])
def test_what_was_deleted_while_it_waited_is_reported_and_left_out_if_that_is_the_policy(
    kafka: LocalCluster, fleet: NewFleet, new_topic: NewTopic, group: str, on_lost: str
) -> None:
    topic, diary, events = new_topic(300), Diary(), list[Event]()
    node = fleet(topic, on_lost=on_lost, events=[events.append])
    kept = first_unit(node)
    delete_before(kafka, topic, 250)
    kept.give_back()
    node.run(diary, until_end=True)
    assert open_store("memory://", group).failures() == []
    assert only(node, topic).done == 300
    assert sum(entry.records for entry in diary.handled) == 50
    lost = sorted((entry.start, entry.stop) for entry in events if isinstance(entry, RangeLost))
    assert lost == [(0, 100), (100, 200), (200, 250)]


@pytest.mark.parametrize("on_lost", ["earliest", "latest"])
def test_units_of_a_log_that_was_cut_while_they_waited_end_with_what_there_is_of_them(group: str, on_lost: str) -> None:
    """The first unit ends behind the cut, which shows when nothing comes; the others begin behind it."""
    diary, events = Diary(), list[Event]()
    with FakeKafka(topics={"t": 1}) as kafka:
        fill(kafka, 30)
        options = {"units": SMALL, "on_lost": on_lost, "events": [events.append], "timeouts": Timeouts(total=2.0)}
        with new_fleet(kafka.bootstrap, group, "memory://", topics="t", **options) as node:
            kept = first_unit(node)
            cut_back(kafka, 50)
            kept.give_back()
            node.run(diary, until_end=True)
    assert open_store("memory://", group).failures() == []
    units = {entry.range: entry for entry in diary.handled if entry.range.stop > 50}
    assert [(entry.first, entry.last, entry.records) for _, entry in sorted(units.items())] == [
        (0, 49, 50),
        (-1, -1, 0),
        (-1, -1, 0),
    ]
    lost = sorted((entry.start, entry.stop) for entry in events if isinstance(entry, RangeLost))
    assert lost == [(50, 100), (100, 200), (200, 300)]


# Logs with gaps


def test_a_compacted_log_ends(group: str) -> None:
    """Units that lie in a hole, begin or end in one, or have nothing but one record, at the very end a hole again."""
    with FakeKafka(topics={"t": 1}) as kafka:
        plant(kafka, plain(2, deltas=[0, 7], last=9), base=2, stop=12)
        plant(kafka, plain(40, deltas=[1], last=5), base=40, stop=46)
        plant(kafka, plain(46, deltas=[], last=13), base=46, stop=60)
        with new_fleet(kafka.bootstrap, group, "memory://", topics="t", units=Units(records=5)) as node:
            offsets: list[int] = []
            node.run(lambda unit: offsets.extend(unit.table(("offset",)).column("offset").to_pylist()), until_end=True)
            assert sorted(offsets) == [2, 9, 41]
            assert only(node, "t").done == 60
            assert node.look().counts.done == 12
            assert node.look().counts.failed == 0


def test_a_topic_that_a_broker_has_compacted_ends(kafka: LocalCluster, fleet: NewFleet, new_topic: NewTopic) -> None:
    topic, count = new_topic(**{key.replace(".", "_"): value for key, value in COMPACTION.items()}), 600
    with Reader(kafka.bootstrap) as reader:
        compact(kafka, TopicPartition(topic, 0), count, is_there=lambda: reader.count(topic, 0, count))
        end = reader.offsets(topic, "latest")[TopicPartition(topic, 0)]
        node = fleet(topic, units=Units(records=7))
        offsets = sorted(record.offset for record in node.records(until_end=True))
        there = [offset for batch in reader.read(topic, 0, end) for offset in batch.column("offset").to_pylist()]
    assert {*there} <= {*offsets}, "compaction may have taken more since"
    assert len({*offsets}) == len(offsets) < end
    assert only(node, topic).done >= end
    assert node.look().counts.failed == 0


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_log_that_ends_with_markers_of_transactions_ends(
    kafka: LocalCluster, fleet: NewFleet, new_topic: NewTopic, isolation: str
) -> None:
    topic, values = new_topic(), list[bytes | None]()
    with Producer(kafka.bootstrap, transactional_id=f"id-{topic}") as producer:
        with producer.transaction():
            producer.send_many(topic, [b"kept"] * 5)
        with producer.transaction() as transaction:
            producer.send_many(topic, [b"aborted"] * 5).result(SECONDS)
            transaction.abort()
    with Reader(kafka.bootstrap) as reader:  # brokers write markers after they have promised to
        eventually(lambda: reader.ranges(topic)[0].stop == 12, "both markers are in the log")
    node = fleet(topic, isolation=isolation, units=Units(records=1))
    values = [record.value for record in node.records(until_end=True)]
    assert values.count(b"kept") == 5
    assert values.count(b"aborted") == (0 if isolation == "read_committed" else 5)
    assert only(node, topic).done == 12


def test_a_position_in_an_open_transaction_is_not_after_the_end_of_the_log(
    kafka: LocalCluster, fleet: NewFleet, new_topic: NewTopic
) -> None:
    """A node that reads everything has passed it; one that reads committed records must not start the log again."""
    topic = new_topic(10, partitions=2)
    with Producer(kafka.bootstrap, transactional_id=f"id-{topic}") as writer, Producer(kafka.bootstrap) as other:
        with writer.transaction():
            writer.send(topic, b"open", partition=0).result(SECONDS)
            with fleet(topic, isolation="read_uncommitted") as before:
                assert len(list(before.records(until_end=True))) == 21
            other.send(topic, b"meanwhile", partition=1).result(SECONDS)
            node = fleet(topic, on_lost="earliest")
            assert [record.value for record in node.records(until_end=True)] == [b"meanwhile"]  # so it has planned
        other.send(topic, b"later", partition=0).result(SECONDS)
        with Reader(kafka.bootstrap) as reader:
            after_marker = TopicPartition(topic, 0), 13
            eventually(lambda: after_marker in reader.offsets(topic, "latest").items(), "the transaction is over")
        assert [record.value for record in node.records(until_end=True)] == [b"later"]
    assert not events_of(node, PositionMisplaced)


# Stores that forget


def test_the_memory_in_kafka_outlives_a_store_that_was_lost(
    kafka: LocalCluster, client: Cluster, fleet: NewFleet, new_topic: NewTopic, group: str
) -> None:
    topic, diary = new_topic(300), Diary()
    first = fleet(topic)
    first.run(diary, until_end=True)
    number = first.look().number
    admin = GroupAdmin(client)
    eventually(
        lambda: [entry.offset for entry in admin.committed(memory_group(group)).values()] == [300], "it is remembered"
    )
    first.close()
    open_store("memory://", group).forget()
    write(kafka.bootstrap, topic, 100, first=300)
    node = fleet(topic)
    node.run(diary, until_end=True)
    assert events_of(node, StoreWentBack)
    assert diary.ranges == [(0, 0, 100), (0, 100, 200), (0, 200, 300), (0, 300, 400)]
    assert max(entry.fence for entry in diary.handled) > number + 1000


def test_numbers_do_not_start_over_if_the_lost_store_is_away_at_that_moment(
    client: Cluster, fleet: NewFleet, new_topic: NewTopic, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, diary, admin = new_topic(300), Diary(), GroupAdmin(client)
    first = fleet(topic)
    first.run(Diary(), until_end=True)
    number = first.look().number
    eventually(lambda: [entry.offset for entry in admin.committed(memory_group(group)).values()] == [300], "it is kept")
    first.close()
    open_store("memory://", group).forget()
    node = fleet(topic)
    raise_number, away = node._store.raise_number, [StoreUnavailable("memory", "away")]

    def once_away(least: int) -> None:
        if away:
            raise away.pop()
        raise_number(least)

    monkeypatch.setattr(node._store, "raise_number", once_away)
    node.start()
    eventually(lambda: not away and node.look().number > number, lambda: f"{node.look().number} after {number}")
    node.run(diary, until_end=True)


def test_a_store_that_comes_back_empty_is_filled_by_those_who_work(
    kafka: LocalCluster, fleet: NewFleet, new_topic: NewTopic, group: str
) -> None:
    topic, diary = new_topic(300), Diary()
    node = fleet(topic)
    thread = in_background(lambda: node.run(diary))
    settled(node.look, ends(topic, 300))
    open_store("memory://", group).forget()
    write(kafka.bootstrap, topic, 100, first=300)
    settled(node.look, ends(topic, 400))
    node.stop()
    thread.join(SECONDS)
    assert missing(diary.handled, ends(topic, 400)) == []


def test_topics_that_were_added_at_run_time_outlive_a_store_that_was_lost(
    client: Cluster, fleet: NewFleet, new_topic: NewTopic, group: str
) -> None:
    """With the node that added them; one that was removed does not come back."""
    started, added, removed = new_topic(100), new_topic(100), new_topic(100)
    first, admin = fleet(started, removed), GroupAdmin(client)
    first.add_topics(added)
    first.run(Diary(), until_end=True)
    eventually(lambda: len(admin.committed(memory_group(group))) == 3, "all are remembered")
    first.remove_topics(removed)

    def notes() -> list[str]:
        return [entry.metadata for entry in admin.committed(memory_group(group)).values()]

    eventually(lambda: sum("removed" in note for note in notes()) == 1, lambda: f"remembered: {notes()}")
    first.close()
    open_store("memory://", group).forget()
    node = fleet()
    node.start()
    eventually(lambda: {*node.look().topics} == {started, added}, lambda: f"topics: {node.look().topics}")
    assert any(added in event.reason for event in events_of(node, StoreWentBack))
    settled(node.look, ends(started, 100) | ends(added, 100))


def test_a_topic_that_was_removed_and_recreated_meanwhile_is_noticed_when_it_comes_back(
    kafka: LocalCluster, client: Cluster, fleet: NewFleet, new_topic: NewTopic
) -> None:
    """Its old position lies in the new log, and would go unnoticed."""
    topic, other, diary = new_topic(100), new_topic(10), Diary()
    node = fleet(topic, other, on_lost="earliest")
    thread = in_background(lambda: node.run(diary))
    settled(node.look, ends(topic, 100))
    node.remove_topics(topic)
    admin = Admin(client)
    admin.delete_topics(topic)
    admin.create_topic(topic, partitions=1, replicas=1)
    write(kafka.bootstrap, topic, 150)
    node.add_topics(topic)
    eventually(lambda: events_of(node, TopicReplaced), "it is reported")
    eventually(lambda: only(node, topic).done == 150, lambda: str(node.look().partitions))
    node.stop()
    thread.join(SECONDS)
    assert sum(entry.records for entry in diary.handled if entry.range.topic == topic) == 250


def test_positions_that_go_back_while_numbers_leap_are_reported(
    fleet: NewFleet, new_topic: NewTopic, group: str
) -> None:
    """As with a Redis that was started again without its last second, in which nothing was done but planned."""
    topic, store = new_topic(100), open_store("memory://", group)
    node = fleet(topic, units=Units(records=10, backlog=100))
    node.start()
    eventually(lambda: only(node, topic).planned == 100 if node.look().partitions else False, "it is planned")
    eventually(
        lambda: node._planner._last is not None and node._planner._last.partitions != (), "the planner has seen it"
    )
    store.raise_number(store.look().number + LEAP)
    store.reset(TopicPartition(topic, 0), 0)
    eventually(lambda: events_of(node, StoreWentBack), "it is reported")
    eventually(lambda: only(node, topic).planned == 100, "it is planned again")


def test_a_position_that_is_reset_by_hand_is_not_taken_for_a_loss(
    fleet: NewFleet, new_topic: NewTopic, group: str
) -> None:
    topic = new_topic(100)
    node = fleet(topic)
    node.run(Diary(), until_end=True)
    open_store("memory://", group).reset(TopicPartition(topic, 0), 0)
    eventually(lambda: only(node, topic).planned == 100, "it is planned again")
    assert events_of(node, StoreWentBack) == []
