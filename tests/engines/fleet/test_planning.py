"""What is planned next: pure tables, and properties over random logs, positions and settings."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.engines.fleet.planning import Log, Misplaced, Round, Units, Wrong, plan
from ottla.engines.fleet.units import Move, PartitionState
from ottla.errors import ConfigError
from ottla.fetch.options import OnLost
from ottla.model import OffsetRange, TopicPartition

A, B, C = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
TEN = Units(records=10, backlog=100)
Logs = Mapping[TopicPartition, Log]
States = Mapping[TopicPartition, PartitionState]


def state(partition: TopicPartition, planned: int, *, waiting: int = 0) -> PartitionState:
    """A partition that is planned up to there."""
    return PartitionState(partition, planned, done=0, waiting=waiting, out=0, failed=0)


def planned(
    logs: Logs, states: States | None = None, *, units: Units = TEN, on_lost: OnLost = OnLost.ERROR, size: float = 1.0
) -> Round:
    """A round in which new partitions begin with their log."""
    return plan(
        logs,
        states or {},
        lambda partition: logs[partition].start,
        units=units,
        on_lost=on_lost,
        record_bytes=dict.fromkeys(logs, size),
    )


def cut(partition: TopicPartition, *offsets: int) -> tuple[OffsetRange, ...]:
    """Units between these offsets."""
    return tuple(OffsetRange(*partition, start, stop) for start, stop in itertools.pairwise(offsets))


def test_what_a_log_has_is_cut_into_full_units_and_a_rest() -> None:
    assert planned({A: Log(0, 25)}).moves == (Move(A, None, 25, cut(A, 0, 10, 20, 25)),)


def test_a_log_that_grows_is_not_cut_again() -> None:
    first = planned({A: Log(0, 25)})
    second = planned({A: Log(0, 37)}, {A: state(A, 25, waiting=3)})
    assert first.moves[0].units[-1].stop == second.moves[0].units[0].start
    assert second.moves == (Move(A, 25, 37, cut(A, 25, 35, 37)),)


def test_nothing_new_is_no_move() -> None:
    assert planned({A: Log(0, 25)}, {A: state(A, 25)}) == Round((), (), 0)


def test_an_empty_new_partition_is_known_from_then_on() -> None:
    assert planned({A: Log(7, 7)}).moves == (Move(A, None, 7, ()),)


def test_units_have_at_most_this_many_bytes() -> None:
    due = planned({A: Log(0, 10)}, units=Units(records=10, bytes=400), size=100.0)
    assert due.moves[0].units == cut(A, 0, 4, 8, 10)


def test_a_record_larger_than_a_unit_is_a_unit_of_its_own() -> None:
    due = planned({A: Log(0, 3)}, units=Units(records=10, bytes=10), size=1000.0)
    assert due.moves[0].units == cut(A, 0, 1, 2, 3)


def test_a_full_backlog_pauses_planning_and_tells_how_much_is_left() -> None:
    due = planned({A: Log(0, 900), B: Log(0, 900)}, {A: state(A, 500, waiting=50), B: state(B, 500, waiting=50)})
    assert due == Round((), (), 800)


def test_what_waits_for_one_partition_keeps_no_other_from_its_share() -> None:
    due = planned({A: Log(0, 9000), B: Log(0, 9000)}, {A: state(A, 500, waiting=100), B: state(B, 500)})
    assert [(move.partition, len(move.units)) for move in due.moves] == [(B, 25)]


def test_units_of_topics_that_are_not_planned_any_more_count_too() -> None:
    due = planned({A: Log(0, 9000)}, {A: state(A, 0), C: state(C, 9, waiting=30)})
    assert [len(move.units) for move in due.moves] == [70]


def test_each_of_many_partitions_has_a_unit_however_small_the_backlog_is() -> None:
    due = planned({A: Log(0, 90), B: Log(0, 90), C: Log(0, 90)}, units=Units(records=10, backlog=1))
    assert [len(move.units) for move in due.moves] == [1, 1, 1]


def test_a_long_log_does_not_keep_a_short_one_waiting() -> None:
    due = planned({A: Log(0, 100_000), B: Log(0, 15)}, units=Units(records=10, backlog=4))
    assert {move.partition: move.units for move in due.moves} == {A: cut(A, 0, 10, 20), B: cut(B, 0, 10, 15)}


def test_a_new_partition_has_a_share_of_a_full_backlog() -> None:
    due = planned({A: Log(5, 30), B: Log(0, 90)}, {B: state(B, 0, waiting=200)}, units=Units(records=10, backlog=2))
    assert due.moves == (Move(A, None, 15, cut(A, 5, 15)),)


@pytest.mark.parametrize(("position", "wrong"), [(4, Wrong.BEFORE), (31, Wrong.AFTER)])
@pytest.mark.parametrize(
    ("on_lost", "goes_on"), [(OnLost.ERROR, None), (OnLost.EARLIEST, 5), (OnLost.LATEST, 30)], ids=lambda it: str(it)
)
def test_a_position_outside_of_the_log_is_reported_and_follows_the_policy(
    position: int, wrong: Wrong, on_lost: OnLost, goes_on: int | None
) -> None:
    due = planned({A: Log(5, 30)}, {A: state(A, position)}, on_lost=on_lost)
    assert due.misplaced == (Misplaced(A, wrong, position, Log(5, 30), goes_on),)
    moves = {
        None: (),
        5: (Move(A, position, 30, cut(A, 5, 15, 25, 30)),),
        30: (Move(A, position, 30, ()),),
    }
    assert due.moves == moves[goes_on]


def test_a_misplaced_partition_holds_up_no_other() -> None:
    due = planned({A: Log(5, 30), B: Log(0, 10)}, {A: state(A, 1)})
    assert [move.partition for move in due.moves] == [B]


@pytest.mark.parametrize("position", [5, 30])
def test_the_ends_of_a_log_are_in_it(position: int) -> None:
    assert planned({A: Log(5, 30)}, {A: state(A, position)}).misplaced == ()


@pytest.mark.parametrize("name", ["records", "bytes", "backlog"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_settings_that_make_no_sense_are_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"Units\({name}=...\) must be a whole number of at least 1"):
        Units(**{name: value})  # type: ignore[arg-type]


# Whatever the logs are like

PARTITIONS = st.builds(TopicPartition, st.sampled_from("tu"), st.integers(0, 3))
LOGS = st.dictionaries(
    PARTITIONS, st.tuples(st.integers(0, 50), st.integers(0, 300)).map(lambda it: Log(it[0], it[0] + it[1])), min_size=1
)
UNITS = st.builds(Units, records=st.integers(1, 60), bytes=st.integers(1, 5000), backlog=st.integers(1, 40))


@given(LOGS, UNITS, st.floats(0.001, 500), st.data())
@settings(max_examples=200, deadline=None)
def test_rounds_cover_every_offset_once_and_the_backlog_is_bounded(
    logs: dict[TopicPartition, Log], units: Units, size: float, data: st.DataObject
) -> None:
    states: dict[TopicPartition, PartitionState] = {}
    waiting: dict[TopicPartition, list[OffsetRange]] = {partition: [] for partition in logs}
    everything: dict[TopicPartition, list[OffsetRange]] = {partition: [] for partition in logs}
    for _ in range(10_000):
        due = planned(logs, states, units=units, size=size)
        for move in due.moves:
            assert move.before == (states[move.partition].planned if move.partition in states else None)
            waiting[move.partition] += move.units
            everything[move.partition] += move.units
            states[move.partition] = state(move.partition, move.to)
        share = max(1, units.backlog // (2 * len(logs)))
        assert all(
            len(waiting[partition]) >= share or states[partition].planned == log.stop for partition, log in logs.items()
        )
        assert sum(map(len, waiting.values())) <= max(units.backlog, len(logs))
        assert due.behind == sum(
            log.stop - states[partition].planned for partition, log in logs.items() if partition in states
        )
        if not due.behind and not any(waiting.values()):
            break
        for partition, units_left in waiting.items():  # a part of them is worked on
            del units_left[: data.draw(st.integers(1, 40))]
            states[partition] = states[partition]._replace(waiting=len(units_left))
    for partition, log in logs.items():
        _check_exact(everything[partition], log)
        assert all(len(unit) <= units.records for unit in everything[partition])


def _check_exact(units: list[OffsetRange], log: Log) -> None:
    position = log.start
    for unit in units:
        assert unit.start == position < unit.stop
        position = unit.stop
    assert position == log.stop


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=12),
    st.integers(1, 30),
)
def test_a_log_that_grows_bit_by_bit_is_covered_exactly(growth: list[int], records: int) -> None:
    stop, states, everything = 0, dict[TopicPartition, PartitionState](), list[OffsetRange]()
    for more in growth:
        stop += more
        due = planned({A: Log(0, stop)}, states, units=Units(records=records, backlog=10_000))
        for move in due.moves:
            everything += move.units
            states[A] = state(A, move.to)
    _check_exact(everything, Log(0, stop))
