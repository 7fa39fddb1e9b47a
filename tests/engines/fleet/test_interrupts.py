"""Ctrl-C, `sys.exit`, signal handlers and forks at any place: nothing is lost or stuck, and no attempt is counted."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.interrupting import Interrupter, ctrl_c, in_time
from tests.waiting import eventually

from ottla import Charter, Fleet, Producer, Reader, Record, Unit, Units
from ottla.engines.fleet import steward
from ottla.engines.fleet.held_units import Ending
from ottla.errors import StoreUnavailable, UsedAfterFork
from ottla.testing.fake.kafka import FakeKafka

TOPIC = "clicks"
RECORDS = 400
OURS = "ottla/engines/fleet/"
both_stores = pytest.mark.parametrize("kind", ["memory", "sqlite"])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A steward that looks often; no thread is left."""
    monkeypatch.setattr(steward, "_MOST_TICK", 0.02)
    yield
    names = ("ottla-fleet", "ottla-read")
    eventually(
        lambda: not [thread for thread in threading.enumerate() if thread.name.startswith(names)], "no thread is left"
    )


@pytest.fixture
def brokers(fake_kafka: FakeKafka) -> str:
    fake_kafka.create_topic(TOPIC)
    with Producer(fake_kafka.bootstrap) as producer:
        producer.send_many(TOPIC, [b"%d" % number for number in range(RECORDS)])
    with Reader(fake_kafka.bootstrap) as reader:  # what is compiled once is not interrupted
        assert sum(batch.num_rows for batch in reader.read(TOPIC)) == RECORDS
    return fake_kafka.bootstrap


Make = Callable[[], Fleet]


@pytest.fixture
def make(brokers: str, kind: str, group: str, tmp_path: Path) -> Iterator[Make]:
    """Makes nodes of one group. Leases are long: nothing is given back because one has ended."""
    url = "memory://" if kind == "memory" else f"sqlite:///{tmp_path}/fleet.db"
    made: list[Fleet] = []

    def new() -> Fleet:
        made.append(
            Fleet(
                brokers,
                group=group,
                topics=TOPIC,
                store=url,
                start="earliest",
                units=Units(records=10),
                charter=Charter(max_attempts=1, lease_seconds=600),
            )
        )
        return made[-1]

    yield new
    for fleet in made:
        in_time(fleet.close)


def is_clean(fleet: Fleet) -> bool:
    """No unit is in flight, and no attempt was counted as failed."""
    seen = fleet.look()
    assert (seen.counts.failed, seen.counts.reclaimed, seen.counts.given_up) == (0, 0, 0)
    return not seen.out


def rest(fleet: Fleet, handled: set[int]) -> None:
    """The next node does what is left."""

    def handle(unit: Unit) -> None:
        handled.update(record.offset for record in unit.records())

    fleet.run(handle, until_end=True)


@both_stores
def test_ctrl_c_in_a_block_and_around_it_loses_nothing_and_counts_no_attempt(make: Make) -> None:
    handled: set[int] = set()
    fleet, interrupter, place = make(), Interrupter(ctrl_c, OURS), 0

    def work() -> None:
        for unit in fleet.units():
            with unit:
                handled.update(record.offset for record in unit.records())
            return

    fleet.start()
    eventually(lambda: fleet.look().partitions, "it is planned")
    interruptions = 0
    while place <= interrupter.seen or not place:
        place += 1
        try:
            interrupter.during(work, place)
        except KeyboardInterrupt:
            interruptions += 1
        if place % 25 == 0:
            in_time(fleet.look)
            eventually(lambda: is_clean(fleet), lambda: f"units are stuck: {fleet.look()}")
            _begin_again(fleet, handled)
    assert interruptions > 80
    eventually(lambda: is_clean(fleet), lambda: f"{fleet.look()}")
    in_time(fleet.close)
    rest(make(), handled)
    assert handled == set(range(RECORDS))


def _begin_again(fleet: Fleet, handled: set[int]) -> None:
    """What was done was handled; it is all planned once more, so that there is always something to do."""
    state = fleet.look().partitions[0]
    assert set(range(state.done)) <= handled, f"{fleet.look()} {list(fleet.newest)[-5:]}"
    if state.done > RECORDS // 2:
        fleet._store.reset(state.partition, 0)
        handled.clear()


@both_stores
@pytest.mark.parametrize("step", [pytest.param(3, marks=pytest.mark.long), 11])
@pytest.mark.parametrize("way", ["record", "records"])
def test_ctrl_c_in_the_middle_of_records_loses_none(make: Make, way: str, step: int) -> None:
    handled: set[int] = set()
    fleet, interrupter, place = make(), Interrupter(ctrl_c, OURS), 0
    records: list[Iterator[Record]] = []

    def following() -> Record | None:
        if way == "record":
            return fleet.record()
        records[:] = records or [fleet.records()]
        return next(records[0])

    def work() -> None:
        for _ in range(12):  # across the end of a unit
            record = following()
            assert record is not None
            handled.add(record.offset)

    fleet.start()
    eventually(lambda: fleet.look().partitions, "it is planned")
    while place <= interrupter.seen or not place:
        place += step
        try:
            interrupter.during(work, place)
        except KeyboardInterrupt:
            records.clear()
        state = fleet.look().partitions[0]
        assert set(range(state.done)) <= handled, f"at place {place}"
        if state.done > RECORDS // 2:
            if way == "record":
                in_time(lambda: fleet._sharing.put_back())
            records.clear()
            fleet._store.reset(state.partition, 0)
            handled.clear()
    records.clear()
    in_time(fleet.close)
    assert is_clean(make())
    rest(make(), handled)
    assert handled == set(range(RECORDS))


@both_stores
@pytest.mark.parametrize(
    "say",
    [Unit.done, Unit.give_back, lambda unit: unit.done(unit.range.start + 5), Unit.table],
    ids=["done", "give_back", "split", "table"],
)
def test_ctrl_c_while_a_unit_is_ended_leaves_no_holder(make: Make, say: Callable[[Unit], object]) -> None:
    fleet, interrupter, place = make(), Interrupter(ctrl_c, OURS), 0
    while place <= interrupter.seen or not place:
        place += 1
        unit = next(fleet.units())
        with suppress(KeyboardInterrupt):
            interrupter.during(lambda said=unit: say(said), place)  # type: ignore[misc]
        del unit
        if fleet.look().counts.done > 30:
            fleet._store.reset(fleet.look().partitions[0].partition, 0)
    eventually(lambda: is_clean(fleet), lambda: f"{fleet.look()}")
    assert place > 10


@both_stores
@pytest.mark.parametrize(
    "call",
    [Fleet.start, lambda fleet: next(fleet.units()), Fleet.close, Fleet.look, lambda fleet: fleet.add_topics(TOPIC)],
    ids=["start", "units", "close", "look", "add_topics"],
)
def test_ctrl_c_in_any_call_leaves_a_node_that_can_be_used_and_closed(
    make: Make, call: Callable[[Fleet], object]
) -> None:
    interrupter, is_close = Interrupter(ctrl_c, OURS), call is Fleet.close
    fleet = make()
    if is_close:
        fleet.start()
    interrupter.during(lambda: call(fleet), 10**9)
    in_time(fleet.close)
    count = interrupter.seen
    assert count > 5
    for place in sorted({*range(1, count, max(1, count // 25)), *range(1, min(count, 10))}):
        fleet = make()
        if is_close:
            fleet.start()
        with suppress(KeyboardInterrupt):
            interrupter.during(lambda node=fleet: call(node), place)  # type: ignore[misc]
        if not is_close:
            in_time(fleet.start)
            eventually(lambda node=fleet: len(node.look().partitions) == 1, "somebody plans")  # type: ignore[misc]
        in_time(fleet.close)
    eventually(lambda: is_clean(make()), "all is given back")


@both_stores
def test_a_handler_of_a_signal_may_stop_and_look_at_any_place(make: Make) -> None:
    fleet, looks = make(), list[bool]()

    def look() -> None:
        with suppress(StoreUnavailable):  # in the middle of a step of the same thread
            fleet.look()
            looks.append(True)

    def work() -> None:
        with next(fleet.units()) as unit:
            unit.table()

    fleet.start()
    interrupter, place = Interrupter(look, OURS), 0
    while place <= interrupter.seen or not place:
        place += 2
        interrupter.during(work, place)
        if fleet.look().counts.done % 35 == 34:
            fleet._store.reset(fleet.look().partitions[0].partition, 0)
    assert len(looks) > 30
    for place in range(1, interrupter.seen, max(1, interrupter.seen // 20)):
        fleet = make()
        stopper = Interrupter(fleet.stop, OURS)
        if stopper.during(lambda node=fleet: next(node.units(), None), place):  # type: ignore[misc]
            assert list(fleet.units()) == []
        in_time(fleet.close)


@both_stores
def test_leaving_the_program_in_a_call_is_like_ctrl_c(make: Make) -> None:
    """`sys.exit` in a handler of a signal, at some of the places of the loop."""
    fleet, interrupter = make(), Interrupter(sys.exit, OURS)

    def work() -> None:
        with next(fleet.units()) as unit:
            unit.table()

    fleet.start()
    interrupter.during(work, 10**9)
    for place in range(1, interrupter.seen, 7):
        with suppress(SystemExit):
            interrupter.during(work, place)
    in_time(fleet.look)
    in_time(fleet.close)
    eventually(lambda: not make().look().out, "all is given back")


# Units that nobody has


@both_stores
def test_a_unit_that_is_dropped_goes_back_and_is_reported(make: Make) -> None:
    fleet = make()
    first = next(fleet.units()).range
    eventually(lambda: is_clean(fleet), "it went back")
    assert fleet.look().counts.given_back == 1
    unit = next(fleet.units())
    assert (unit.range, unit.attempt) == (first, 1)
    assert [event.kind for event in fleet.newest if event.kind == "unit_reclaimed"] == ["unit_reclaimed"]
    assert unit.done() is Ending.DONE


class Farewell:
    """Ends a unit when it is garbage collected, wherever that happens."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit

    def __del__(self) -> None:
        self.unit.give_back()


@both_stores
def test_a_unit_may_be_given_back_when_an_object_is_thrown_away(make: Make) -> None:
    fleet = make()
    for _ in range(5):
        farewell = Farewell(next(fleet.units()))
        del farewell
    assert is_clean(fleet)
    assert fleet.look().counts.given_back == 5


# Forks


def in_child(work: Callable[[], object]) -> int:
    """The exit code of a forked child, which must not hang."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            work()
            code = 0
        except UsedAfterFork:
            code = 7
        except SystemExit as error:
            code = int(error.code or 0)
        finally:
            os._exit(code)
    ended: list[int] = []
    waiting = threading.Thread(target=lambda: ended.append(os.waitpid(pid, 0)[1]), daemon=True)
    waiting.start()
    waiting.join(60)
    if not ended:
        os.kill(pid, 9)
        pytest.fail(f"the child hangs in {work}")
    return os.waitstatus_to_exitcode(ended[0])


@both_stores
def test_a_forked_child_uses_nothing_of_its_parent(make: Make) -> None:
    fleet = make()
    fleet.start()
    unit = next(fleet.units())
    calls: list[Callable[[], object]] = [
        fleet.start,
        fleet.look,
        lambda: next(fleet.units()),
        fleet.record,
        lambda: next(fleet.records()),
        lambda: fleet.run(print),
        lambda: fleet.add_topics(TOPIC),
        lambda: fleet.remove_topics(TOPIC),
        unit.done,
        unit.give_back,
        lambda: unit.fail("no"),
        unit.table,
    ]
    assert [in_child(call) for call in calls] == [7] * len(calls)
    assert in_child(fleet.close) == 0
    assert unit.done() is Ending.DONE
    assert is_clean(fleet)


@both_stores
def test_a_child_that_leaves_a_block_does_not_end_the_unit_of_its_parent(make: Make) -> None:
    fleet = make()
    with next(fleet.units()) as unit:

        def leave() -> None:
            with unit:
                sys.exit(3)

        assert in_child(leave) == 3
        assert in_child(lambda: unit.__exit__(None, None, None)) == 0
        assert [out.range for out in fleet.look().out] == [unit.range]
    assert unit.ending is Ending.DONE


def _places(interrupter: Interrupter, work: Callable[[], object]) -> int:
    """Where the work could be interrupted."""
    interrupter.during(work, 10**9)
    return interrupter.seen


@both_stores
def test_a_fork_at_any_place_leaves_a_child_that_can_make_a_node_of_its_own(make: Make, brokers: str) -> None:
    fleet, codes = make(), list[int]()

    def own() -> None:
        with make() as mine:
            if "sqlite" in repr(mine):
                mine.look()
            else:
                assert mine.look().partitions == ()

    def work() -> None:
        with next(fleet.units()) as unit:
            unit.table()

    fleet.start()
    interrupter = Interrupter(lambda: codes.append(in_child(own)), OURS)
    places = min(_places(interrupter, work) for _ in range(3))  # waits add some
    for place in range(1, places, max(1, places // 10)):
        interrupter.during(work, place)
    assert len(codes) > 5
    assert set(codes) == {0}
