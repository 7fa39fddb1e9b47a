"""Nodes of one group: who plans, what they work on, what is refused, and what they leave behind."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import mend
from tests.engines.fleet.crew import SHORT, Handled, missing, new_fleet, settled, write
from tests.engines.fleet.servers import RedisServer
from tests.faults.breaking import leaders
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.admin.group_admin import GroupAdmin
from ottla.cluster import LocalCluster
from ottla.config import Timeouts
from ottla.engines.fleet import goal, held_units, planner, steward
from ottla.engines.fleet.held_units import Ending
from ottla.engines.fleet.planning import Units
from ottla.engines.fleet.store import open_store
from ottla.engines.fleet.unit import Unit
from ottla.errors import (
    BrokerError,
    ConfigError,
    ErrorCode,
    FleetConflict,
    FleetError,
    InputError,
    StoreUnavailable,
    UsedAfterFork,
)
from ottla.events.values import (
    PlannerChanged,
    StoreDown,
    StoreUp,
    UnitReclaimed,
)
from ottla.model import OffsetRange, TopicPartition
from ottla.net import Cluster
from ottla.produce.producer import Producer
from ottla.testing import FakeKafka

from .working import (
    ORDERED,
    SECONDS,
    SMALL,
    Diary,
    NewFleet,
    NewTopic,
    ends,
    events_of,
    first_unit,
    in_background,
    only,
)

pytestmark = [pytest.mark.broker, pytest.mark.usefixtures("no_thread_is_left")]


# The group


def test_a_node_that_dies_leaves_its_units_to_the_others(fleet: NewFleet, new_topic: NewTopic) -> None:
    """The node does not die here; only its beat stops. The other nodes cannot tell the difference."""
    topic, diary = new_topic(200), Diary()
    dead, alive = fleet(topic), fleet(topic)
    unit = first_unit(dead)
    assert dead._steward is not None
    dead._steward._stopped.set()
    alive.run(diary, until_end=True)
    assert sorted((entry.range.start, entry.attempt) for entry in diary.handled) == [
        (start, 1 + (start == unit.range.start)) for start in (0, 100)
    ]
    (event,) = events_of(alive, UnitReclaimed)
    assert (event.start, event.attempt, event.node.partition("/")[0]) == (unit.range.start, 1, dead.node)
    assert unit.done() is Ending.LOST


def test_another_node_plans_when_the_planner_is_gone(kafka: LocalCluster, fleet: NewFleet, new_topic: NewTopic) -> None:
    topic, diary = new_topic(100), Diary()
    first, second = fleet(topic), fleet(topic)
    first.start()
    eventually(lambda: first._steward is not None and first._steward.is_planner, "the first one plans")
    second.start()
    assert first._steward is not None
    first._steward._stopped.set()
    write(kafka.bootstrap, topic, 100, first=100)
    second.run(diary, until_end=True)
    eventually(lambda: second._steward is not None and second._steward.is_planner, "the second one plans")
    assert diary.ranges[-1] == (0, 100, 200)


def test_planning_continues_after_a_position_was_moved(
    kafka: LocalCluster, fleet: NewFleet, new_topic: NewTopic, group: str
) -> None:
    topic, diary = new_topic(300), Diary()
    node, store = fleet(topic), open_store("memory://", group)
    node.run(diary, until_end=True)
    for _ in range(20):  # some of these fall between a look of the planner and its plan
        store.reset(TopicPartition(topic, 0), 0)
    write(kafka.bootstrap, topic, 1, first=300)
    fleet(topic).run(diary, until_end=True)
    assert only(node, topic).done == 301


def test_topics_are_added_and_removed_for_all_nodes(kafka: LocalCluster, fleet: NewFleet, new_topic: NewTopic) -> None:
    first, later, diary = new_topic(100), new_topic(100), Diary()
    node, other = fleet(first), fleet()
    thread = in_background(lambda: node.run(diary))
    settled(node.look, ends(first, 100))
    other.start()
    other.add_topics(later)
    settled(node.look, ends(later, 100))
    other.remove_topics(first)
    write(kafka.bootstrap, first, 100, first=100)
    write(kafka.bootstrap, later, 100, first=100)
    settled(node.look, ends(later, 200))
    assert only(node, first).planned == 100
    node.add_topics(first)
    settled(node.look, ends(first, 200))
    node.stop()
    thread.join(SECONDS)
    assert sorted(entry.range for entry in diary.handled) == sorted(
        OffsetRange(topic, 0, start, start + 100) for topic in (first, later) for start in (0, 100)
    )


def test_units_of_a_topic_that_is_added_later_are_as_large_as_they_should_be(
    kafka: LocalCluster, fleet: NewFleet, new_topic: NewTopic
) -> None:
    """Found: who planned when there was no topic yet guessed for a minute how large records are."""
    topic = new_topic()
    with Producer(kafka.bootstrap, compression="none") as producer:
        producer.send_many(topic, [b"x" * 10_000] * 50)
    node = fleet(units=Units(bytes=100_000), start="earliest")
    node.start()
    eventually(lambda: node._planner._last, "it has planned once, without a topic")
    node.add_topics(topic)
    sizes: list[int] = []
    node.run(lambda unit: sizes.append(len(unit.range)), until_end=True)
    assert sizes == [9] * 5 + [5]


def test_partitions_that_are_added_are_read_from_their_beginning(
    kafka: LocalCluster, client: Cluster, fleet: NewFleet, new_topic: NewTopic
) -> None:
    topic, diary = new_topic(100), Diary()
    node = fleet(topic, start="latest")
    thread = in_background(lambda: node.run(diary))
    settled(node.look, ends(topic, 100))
    Admin(client).add_partitions(topic, 2)
    with Producer(kafka.bootstrap) as producer:
        for number in range(50):
            producer.send(topic, b"%d" % number, partition=1)
        producer.flush(SECONDS)
    settled(node.look, {(topic, 1): 50})
    node.stop()
    thread.join(SECONDS)
    assert sum(entry.records for entry in diary.handled) == 50


def test_a_topic_that_is_gone_does_not_keep_the_others_from_being_worked_to_their_end(
    client: Cluster, fleet: NewFleet, new_topic: NewTopic
) -> None:
    """Found: with a deleted topic in the group, `until_end` raised before anything was done."""
    gone, there, later = new_topic(200), new_topic(200), new_topic(200)
    fleet(gone, there).run(Diary(), until_end=True)
    Admin(client).delete_topics(gone)
    diary = Diary()
    fleet(gone, there, later).run(diary, until_end=True)
    assert {entry.range.topic for entry in diary.handled} == {later}
    with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        fleet("misspelled").run(diary, until_end=True)


def test_an_unknown_topic_halts_only_itself(fleet: NewFleet, new_topic: NewTopic) -> None:
    topic, diary = new_topic(100), Diary()
    names = [f"nobody-knows-{number}" for number in range(4)]
    node = fleet(topic, *names)
    thread = in_background(lambda: node.run(diary))
    settled(node.look, ends(topic, 100), seconds=5)
    eventually(lambda: {*node._planner.halted} == {*names}, lambda: f"halted: {node._planner.halted}")
    node.stop()
    thread.join(SECONDS)


def test_a_partition_without_leader_delays_only_itself(
    kafka: LocalCluster, client: Cluster, fleet: NewFleet, new_topic: NewTopic
) -> None:
    topic, diary = new_topic(200, partitions=3), Diary()
    victim = leaders(client, topic)[1]
    node = fleet(topic)
    kafka.kill(victim)
    try:
        eventually(lambda: victim not in leaders(client, topic).values(), "it has no leader")
        thread = in_background(lambda: node.run(diary))
        led = {(topic, index): 200 for index, leader in leaders(client, topic).items() if leader >= 0}
        assert len(led) == 2
        settled(node.look, led)
        eventually(lambda: f"{topic}/1" in node._planner.halted, lambda: f"halted: {node._planner.halted}")
    finally:
        mend(kafka)
    settled(node.look, ends(topic, 200, 3))
    node.stop()
    thread.join(SECONDS)
    assert all(entry.is_whole for entry in diary.handled)


def test_a_partition_without_leader_begins_later_where_its_topic_began(
    kafka: LocalCluster, client: Cluster, fleet: NewFleet, new_topic: NewTopic
) -> None:
    topic, diary = new_topic(200, partitions=3), Diary()
    victim = leaders(client, topic)[1]
    kafka.kill(victim)
    try:
        eventually(lambda: victim not in leaders(client, topic).values(), "it has no leader")
        node = fleet(topic, start="latest")
        thread = in_background(lambda: node.run(diary))
        eventually(lambda: len(node.look().partitions) == 2, lambda: f"planned: {node.look().partitions}")
    finally:
        mend(kafka)
    eventually(lambda: len(node.look().partitions) == 3, lambda: f"planned: {node.look().partitions}")
    Admin(client).add_partitions(topic, 4)
    with Producer(kafka.bootstrap) as producer:
        producer.send(topic, b"0", partition=3).result(SECONDS)
    eventually(lambda: len(node.look().partitions) == 4, lambda: f"planned: {node.look().partitions}")
    settled(node.look, {(topic, 0): 200, (topic, 1): 200, (topic, 2): 200, (topic, 3): 1})
    node.stop()
    thread.join(SECONDS)
    assert [(entry.range.partition, entry.records) for entry in diary.handled] == [(3, 1)], "only what was added since"


def test_a_planner_that_does_not_reach_the_brokers_lets_another_one_plan(
    kafka: LocalCluster, fleet: NewFleet, new_topic: NewTopic, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steward, "_USELESS_SECONDS", 2.0)
    topic, diary = new_topic(300), Diary()
    with new_fleet("127.0.0.1:1", group, "memory://", topics=topic, units=SMALL, timeouts=Timeouts(total=1.0)) as cut:
        cut.start()
        eventually(lambda: events_of(cut, PlannerChanged), "it has the right to plan")
        eventually(lambda: topic in cut.look().halted, lambda: f"halted: {cut.look()}")
        node = fleet(topic)
        thread = in_background(lambda: node.run(diary))
        settled(node.look, ends(topic, 300))
        assert node.look().planning_node == node.node
        node.stop()
        thread.join(SECONDS)
    assert missing(diary.handled, ends(topic, 300)) == []


def test_what_cannot_be_planned_is_said_and_ends_work_until_the_end(
    group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All the time, and not only between two rounds."""
    monkeypatch.setattr(goal, "_HALTED_SECONDS", 3.0)
    with FakeKafka(topics={"t": 1}) as kafka:
        with Producer(kafka.bootstrap) as producer:
            producer.send("t", b"one").result(SECONDS)
        kafka.fail("OffsetFetch", ErrorCode.group_authorization_failed, times=None)
        with (
            new_fleet(kafka.bootstrap, group, "memory://", topics="t") as node,
            pytest.raises(FleetError, match=r"does not plan t: .*GROUP_AUTHORIZATION_FAILED"),
        ):
            node.run(lambda unit: None, until_end=True)


def test_how_far_it_is_done_is_committed_to_a_consumer_group(
    client: Cluster, fleet: NewFleet, new_topic: NewTopic, group: str
) -> None:
    topic = new_topic(300)
    node = fleet(topic, commit_group=f"{group}-seen")
    units = [first_unit(node) for _ in range(3)]
    units.sort(key=lambda unit: unit.range.start)
    units[0].done()
    units[2].done()
    admin = GroupAdmin(client)

    def committed() -> int | None:
        entry = admin.committed(f"{group}-seen").get(TopicPartition(topic, 0))
        return None if entry is None else entry.offset

    eventually(lambda: committed() == 100, lambda: f"committed: {committed()}")
    units[1].done()
    eventually(lambda: committed() == 300, lambda: f"committed: {committed()}")


def test_the_last_that_was_done_is_committed_before_a_node_leaves(
    client: Cluster, fleet: NewFleet, new_topic: NewTopic, group: str
) -> None:
    topic = new_topic(300)
    node = fleet(topic, commit_group=f"{group}-seen")
    node.run(lambda unit: None, until_end=True)
    node.close()
    committed = GroupAdmin(client).committed(f"{group}-seen")
    assert {tp: entry.offset for tp, entry in committed.items()} == {TopicPartition(topic, 0): 300}


# What is refused, and what is waited for


def test_nodes_with_other_settings_are_refused(fleet: NewFleet, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    fleet(topic).start()
    with pytest.raises(FleetConflict, match="was begun unordered, not ordered"):
        fleet(topic, charter=ORDERED).start()


def test_a_store_that_is_not_there_is_one_clear_error(fleet: NewFleet) -> None:
    node = fleet("t", store="redis://127.0.0.1:9/0")
    with pytest.raises(StoreUnavailable, match=r"the fleet's store redis://127.0.0.1:9 does not answer: .*refused"):
        node.start()


def test_an_unknown_kind_of_store_is_refused(kafka: LocalCluster) -> None:
    with pytest.raises(ConfigError, match=r"store mongodb://... is not supported"):
        new_fleet(kafka.bootstrap, "g", "mongodb://localhost")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"most_seconds": 0}, "most_seconds must be greater than 0"),
        ({"start": -1}, "start is offset -1"),
        ({"on_lost": "panic"}, "on_lost is 'panic'"),
        ({"units": 5}, "units must be an? Units"),
    ],
)
def test_settings_that_make_no_sense_are_refused(kafka: LocalCluster, options: dict[str, Any], error: str) -> None:
    with pytest.raises((ConfigError, InputError), match=error):
        new_fleet(kafka.bootstrap, "g", "memory://", **options)


def test_a_node_that_was_closed_stays_closed(fleet: NewFleet, new_topic: NewTopic, group: str) -> None:
    node = fleet(new_topic(100))
    first_unit(node).done()
    node.close()
    uses: list[Callable[[], object]] = [
        node.start,
        lambda: list(node.units()),
        lambda: node.run(lambda unit: None),
        lambda: node.add_topics("t"),
    ]
    for use in uses:
        with pytest.raises(FleetError, match="is closed: create a new Fleet"):
            use()
    assert node.record() is None
    seen = open_store("memory://", group).look()
    assert (seen.nodes, seen.planner) == ((), None)


def test_closing_ends_workers_without_an_error(fleet: NewFleet, new_topic: NewTopic) -> None:
    node, ended = fleet(new_topic(100)), list[bool]()

    def work() -> None:
        node.run(lambda unit: None, threads=3)
        ended.append(True)

    thread = in_background(work)
    eventually(lambda: node.look().counts.done > 0, "it works")
    node.close()
    thread.join(SECONDS)
    assert ended == [True]


def test_topics_can_be_added_before_anybody_works(fleet: NewFleet, new_topic: NewTopic) -> None:
    topic, diary = new_topic(100), Diary()
    node = fleet()
    node.add_topics(topic)
    node.run(diary, until_end=True)
    assert missing(diary.handled, ends(topic, 100)) == []


def test_a_node_that_was_stopped_does_not_wait_for_a_store_for_ever(
    fleet: NewFleet, new_topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_units, "_HURRIED_SECONDS", 0.5)
    with RedisServer(tmp_path) as server:
        node = fleet(new_topic(100), store=f"redis://127.0.0.1:{server.port}")
        unit = first_unit(node)
        server.kill()
        node.stop()
        assert unit.done() is Ending.UNSURE


def test_what_kafka_remembers_is_kept_fresh_while_nothing_happens(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers delete offsets that were not committed for some days."""
    monkeypatch.setattr(planner, "_RENEW_SECONDS", 0.5)
    with FakeKafka(topics={"t": 1}) as kafka, new_fleet(kafka.bootstrap, group, "memory://", topics="t") as node:
        node.start()
        eventually(lambda: sum(entry.api == "OffsetCommit" for entry in kafka.requests) >= 3, "it is committed again")


def test_a_forked_child_must_not_use_it(fleet: NewFleet, new_topic: NewTopic) -> None:
    node = fleet(new_topic(10))
    node.start()
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def use() -> None:
        try:
            next(node.units())
        except UsedAfterFork as error:
            answers.put(str(error))
        node.close()

    child = context.Process(target=use)
    child.start()
    child.join(SECONDS)
    assert child.exitcode == 0
    assert "created before fork()" in answers.get()
    answers.close()
    assert first_unit(node).done() is Ending.DONE


# The end


def test_stop_finishes_what_is_in_hand_and_takes_no_more(fleet: NewFleet, new_topic: NewTopic) -> None:
    topic, diary = new_topic(1000), Diary()
    node = fleet(topic)

    def work(unit: Unit) -> None:
        node.stop()
        diary(unit)

    node.run(work)
    assert len(diary.handled) == 1
    assert node.look().counts.done == 1


def test_close_gives_back_what_is_in_hand(fleet: NewFleet, new_topic: NewTopic, group: str) -> None:
    node, store = fleet(new_topic(300)), open_store("memory://", group)
    units = [first_unit(node) for _ in range(2)]
    node.close()
    snapshot = store.look()
    assert snapshot.out == ()
    assert snapshot.partitions[0].waiting == 3
    assert snapshot.counts.given_back == 2
    assert (snapshot.planner, snapshot.nodes) == (None, ())
    assert [unit.done() for unit in units] == [Ending.LOST, Ending.LOST]


def test_a_store_that_goes_away_for_longer_than_leases_last_is_waited_for_and_no_unit_is_lost(
    fleet: NewFleet, new_topic: NewTopic, tmp_path_factory: pytest.TempPathFactory
) -> None:
    topic, diary = new_topic(1000), Diary()
    with RedisServer(tmp_path_factory.mktemp("redis"), "--appendonly", "yes") as redis:
        nodes = [fleet(topic, store=f"redis://127.0.0.1:{redis.port}") for _ in range(2)]
        units = [first_unit(node) for node in nodes]
        redis.kill()
        eventually(lambda: all(events_of(node, StoreDown) for node in nodes), "it is reported")
        down = time.monotonic()
        endings: list[Ending] = []
        ending = in_background(lambda: endings.append(units[0].done()))
        eventually(lambda: time.monotonic() > down + 2.5 * SHORT.lease_seconds, "longer than a lease")
        redis.start()
        eventually(lambda: all(events_of(node, StoreUp) for node in nodes), "that, too, is reported")
        ending.join(SECONDS)
        assert [*endings, units[1].done()] == [Ending.DONE, Ending.DONE]
        nodes[0].run(diary, until_end=True)
        assert missing([*diary.handled, *map(handled_as, units)], ends(topic, 1000)) == []
        assert nodes[0].look().counts.reclaimed == 0
        for node in nodes:
            node.close()


def handled_as(unit: Unit) -> Handled:
    """A unit that was done without being read."""
    return Handled(unit.range, unit.attempt, unit.fence, 0, 0, 0, 0, 0)
