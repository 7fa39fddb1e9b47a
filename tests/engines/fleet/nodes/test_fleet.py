"""A fleet on real brokers: what is in the topics becomes units, and every unit is done once, whatever happens."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest
from tests.engines.fleet.crew import missing, settled, write
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.engines.fleet.held_units import Ending
from ottla.engines.fleet.planning import Units
from ottla.engines.fleet.store import open_store
from ottla.engines.fleet.unit import Unit
from ottla.engines.fleet.units import Charter
from ottla.errors import (
    InputError,
    LeaseLost,
)
from ottla.events.values import (
    UnitEnded,
)
from ottla.model import OffsetRange

from .working import (
    ORDERED,
    SECONDS,
    Diary,
    NewFleet,
    NewTopic,
    ends,
    events_of,
    first_unit,
    in_background,
    only,
    take_away,
)

pytestmark = [pytest.mark.broker, pytest.mark.usefixtures("no_thread_is_left")]


# Everything is done once


@pytest.mark.parametrize("url", ["memory", "sqlite", "redis"], indirect=True)
def test_units_cover_everything_exactly_once(url: str, fleet: NewFleet, new_topic: NewTopic) -> None:
    topic, diary = new_topic(1050, partitions=3), Diary()
    node = fleet(topic, store=url)
    node.run(diary, threads=2, until_end=True)
    expected = [*range(0, 1001, 100), 1050]
    assert diary.ranges == [(index, start, stop) for index in range(3) for start, stop in itertools.pairwise(expected)]
    assert all(entry.is_whole and entry.attempt == 1 for entry in diary.handled)
    assert node.look().counts.done == 33
    assert node.look().counts.offsets == 3150


@pytest.mark.parametrize("url", ["sqlite", "redis"], indirect=True)
def test_two_nodes_share_the_work(url: str, fleet: NewFleet, new_topic: NewTopic) -> None:
    topic, diaries = new_topic(2000, partitions=2), (Diary(), Diary())
    both = threading.Barrier(2)

    def working(diary: Diary) -> Callable[[Unit], None]:
        def work(unit: Unit) -> None:
            if not diary.handled:
                both.wait(SECONDS)  # each has one before anybody goes on
            diary(unit)

        return work

    nodes = [fleet(topic, store=url) for _ in diaries]
    threads = [
        in_background(lambda node=node, diary=diary: node.run(working(diary), until_end=True))  # type: ignore[misc]
        for node, diary in zip(nodes, diaries, strict=True)
    ]
    for thread in threads:
        thread.join(SECONDS)
    everything = diaries[0].handled + diaries[1].handled
    assert len(everything) == 40
    assert missing(everything, ends(topic, 2000, 2)) == []
    assert all(entry.is_whole for entry in everything)
    assert all(diary.handled for diary in diaries)


def test_more_workers_than_partitions_are_all_busy(fleet: NewFleet, new_topic: NewTopic) -> None:
    topic, together = new_topic(600), threading.Barrier(6)
    fleet(topic).run(lambda unit: together.wait(SECONDS), threads=6, until_end=True)


def test_in_ordered_mode_one_unit_of_a_partition_is_out_at_a_time_and_in_order(
    fleet: NewFleet, new_topic: NewTopic
) -> None:
    topic, diary = new_topic(1000, partitions=2), Diary()
    out: list[int] = []
    most: list[int] = []

    def work(unit: Unit) -> None:
        out.append(unit.range.partition)
        most.append(max(out.count(0), out.count(1)))
        diary(unit)
        out.remove(unit.range.partition)

    fleet(topic, charter=ORDERED).run(work, threads=4, until_end=True)
    assert max(most) == 1
    for partition in range(2):
        starts = [entry.range.start for entry in diary.handled if entry.range.partition == partition]
        assert starts == list(range(0, 1000, 100))


def test_records_come_one_by_one(fleet: NewFleet, new_topic: NewTopic) -> None:
    topic = new_topic(250)
    node = fleet(topic)
    assert sorted(int(record.value or b"") for record in node.records(until_end=True)) == list(range(250))
    assert only(node, topic).done == 250


def test_threads_share_a_fleet_record_by_record(fleet: NewFleet, new_topic: NewTopic) -> None:
    topic, values = new_topic(400), list[int]()
    node = fleet(topic)

    def work() -> None:
        while (record := node.record()) is not None:
            values.append(int(record.value or b""))

    threads = [in_background(work) for _ in range(2)]
    eventually(lambda: len(values) == 400, lambda: f"{len(values)} records")
    eventually(lambda: only(node, topic).done >= 300, "units are done")
    node.stop()
    for thread in threads:
        thread.join(SECONDS)
    assert sorted(values) == list(range(400))


def test_a_log_that_grows_is_worked_on(kafka: LocalCluster, fleet: NewFleet, new_topic: NewTopic) -> None:
    topic, diary = new_topic(150), Diary()
    node = fleet(topic)
    thread = in_background(lambda: node.run(diary))
    settled(node.look, ends(topic, 150))
    write(kafka.bootstrap, topic, 100, first=150)
    settled(node.look, ends(topic, 250))
    node.stop()
    thread.join(SECONDS)
    assert diary.ranges == [(0, 0, 100), (0, 100, 150), (0, 150, 250)]


def test_the_end_is_that_of_the_call_even_if_more_is_written_all_the_time(
    kafka: LocalCluster, fleet: NewFleet, new_topic: NewTopic
) -> None:
    topic = new_topic(100)
    node, handled = fleet(topic), list[OffsetRange]()

    def work(unit: Unit) -> None:
        handled.append(unit.range)
        write(kafka.bootstrap, topic, 10, first=unit.range.stop)

    node.run(work, until_end=True)
    assert handled[0] == OffsetRange(topic, 0, 0, 100)


# Units that are not done


def test_a_unit_can_be_split(fleet: NewFleet, new_topic: NewTopic) -> None:
    topic, diary = new_topic(100), Diary()
    node = fleet(topic)
    assert first_unit(node).done(upto=30) is Ending.PART
    assert only(node, topic).done == 30
    node.run(diary, until_end=True)
    assert [(entry.range.start, entry.attempt) for entry in diary.handled] == [(30, 1)]
    assert only(node, topic).done == 100


@pytest.mark.parametrize("upto", [-1, 101])
def test_a_unit_cannot_be_split_outside_of_itself(fleet: NewFleet, new_topic: NewTopic, upto: int) -> None:
    unit = first_unit(fleet(new_topic(100)))
    with pytest.raises(InputError, match="is outside"):
        unit.done(upto=upto)


def test_a_unit_that_is_given_back_is_no_failure(fleet: NewFleet, new_topic: NewTopic) -> None:
    topic, diary = new_topic(100), Diary()
    node = fleet(topic)
    assert first_unit(node).give_back() is Ending.GIVEN_BACK
    node.run(diary, until_end=True)
    assert [entry.attempt for entry in diary.handled] == [1]
    assert node.look().counts.failed == 0


def test_a_unit_ends_once(fleet: NewFleet, new_topic: NewTopic) -> None:
    with first_unit(fleet(new_topic(100))) as unit:
        unit.done()
        with pytest.raises(InputError, match="has already ended: done"):
            unit.fail("too late")


def test_a_unit_at_offset_0_that_fails_is_tried_again(fleet: NewFleet, new_topic: NewTopic) -> None:
    topic, attempts = new_topic(100), list[tuple[int, int]]()
    node = fleet(topic)

    def work(unit: Unit) -> None:
        attempts.append((unit.range.start, unit.attempt))
        if unit.attempt < 3:
            raise RuntimeError("not yet")

    node.run(work, until_end=True)
    assert attempts == [(0, 1), (0, 2), (0, 3)]
    assert only(node, topic).done == 100
    assert [event.status for event in events_of(node, UnitEnded)] == ["failed", "failed", "done"]


def test_what_fails_too_often_comes_to_the_error_list_and_can_be_tried_again_or_dropped(
    kafka: LocalCluster, group: str, fleet: NewFleet, new_topic: NewTopic
) -> None:
    topic = new_topic(300)
    node = fleet(topic, charter=Charter(max_attempts=2, lease_seconds=1.0))
    broken = True

    def work(unit: Unit) -> None:
        if broken and unit.range.start > 0:
            raise ValueError(f"no luck with {unit.range.start}\nand more")

    node.run(work, until_end=True)
    store = open_store("memory://", group)
    failures = {failure.range.start: failure for failure in store.failures()}
    assert set(failures) == {100, 200}
    failure = failures[100]
    assert failure.reason == "ValueError: no luck with 100"
    assert "in work" in failure.traceback
    assert (failure.attempts, failure.host) == (2, node.host)
    assert only(node, topic)[1:] == (300, 100, 0, 0, 2)
    broken = False
    assert store.retry(failures[200].range)
    assert store.drop(failures[100].range)
    fleet(topic, charter=Charter(max_attempts=2, lease_seconds=1.0)).run(work, until_end=True)
    assert store.failures() == []
    assert only(node, topic)[1:] == (300, 300, 0, 0, 0)


def test_in_ordered_mode_a_failed_unit_holds_up_its_partition_and_no_other(
    fleet: NewFleet, new_topic: NewTopic
) -> None:
    topic, diary = new_topic(300, partitions=2), Diary()
    node = fleet(topic, charter=Charter(ordered=True, max_attempts=2, lease_seconds=1.0))

    def work(unit: Unit) -> None:
        if unit.range.partition == 0 and unit.range.start == 100:
            raise RuntimeError("no")
        diary(unit)

    node.run(work, until_end=True)
    assert diary.ranges == [(0, 0, 100), (1, 0, 100), (1, 100, 200), (1, 200, 300)]


def test_a_handler_that_takes_too_long_loses_its_unit(fleet: NewFleet, new_topic: NewTopic, group: str) -> None:
    topic = new_topic(100)
    node = fleet(topic, most_seconds=0.3, charter=Charter(max_attempts=2, lease_seconds=1.0))
    late: list[Unit] = []

    def work(unit: Unit) -> None:
        late.append(unit)
        eventually(lambda: unit.is_lost, "its time is over")

    node.run(work, until_end=True)
    assert [unit.ending for unit in late] == [Ending.LOST, Ending.LOST]
    (failure,) = open_store("memory://", group).failures()
    assert (failure.reason, failure.host) == ("it took longer than 0.3 s", node.host)


def test_a_holder_who_has_lost_the_lease_is_refused(fleet: NewFleet, new_topic: NewTopic, group: str) -> None:
    topic, diary = new_topic(100), Diary()
    node, store = fleet(topic), open_store("memory://", group)
    unit = first_unit(node)
    (out,) = store.pulse().out

    eventually(lambda: take_away(store), "taken between two beats")
    eventually(lambda: unit.is_lost, "it is reported")
    with pytest.raises(LeaseLost, match="was given to another node while this one read it"):
        list(unit.read())
    node.run(diary, until_end=True)
    assert unit.done() is Ending.LOST
    assert [(entry.range, entry.attempt) for entry in diary.handled] == [(out.range, 2)]
    assert diary.handled[0].fence > unit.fence


def test_a_unit_that_is_lost_is_not_waited_for(kafka: LocalCluster, fleet: NewFleet, new_topic: NewTopic) -> None:
    """The log that has its topic's name by now may never have its offsets, and the node has other work."""
    topic = new_topic(100)
    node = fleet(topic, on_lost="earliest")
    unit = first_unit(node)
    with Admin(kafka.bootstrap) as admin:
        admin.delete_topics(topic)
        admin.create_topic(topic, partitions=1)
    with pytest.raises(LeaseLost, match="was given to another node while this one read it"):
        unit.table()


def test_records_go_on_after_a_unit_was_lost(fleet: NewFleet, new_topic: NewTopic, group: str) -> None:
    topic = new_topic(30_000)
    node, store = fleet(topic, units=Units(records=30_000)), open_store("memory://", group)
    records = node.records(until_end=True)
    values = [int(next(records).value or b"")]

    eventually(lambda: take_away(store), "taken between two beats")
    eventually(lambda: not node._held_units.all(), "it is reported")
    values += [int(record.value or b"") for record in records]
    assert {*values} == {*range(30_000)}
    assert only(node, topic).done == 30_000
