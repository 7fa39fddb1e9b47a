"""Single records of many requests are written together, and each request still gets its own outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from ottla.errors import BufferFull, NotDelivered, OttlaError, RecordTooLarge
from ottla.gateway.http.answers import Outcome
from ottla.gateway.http.gathering import Gathering, Waiting
from ottla.gateway.http.problems import Problem
from ottla.gateway.http.waking import Waker
from ottla.gateway.intake import Incoming
from ottla.model import TopicPartition
from ottla.produce.delivery import BulkDelivery, Decided, Sent


class _Bulk(BulkDelivery):
    """A delivery that the test decides, row by row."""

    __slots__ = ("call", "rows")

    def __init__(self) -> None:
        self.rows: list[Decided] = []
        self.call: Callable[[Any], None] = lambda _: None

    def add_done_callback(self, function: Callable[[BulkDelivery], None]) -> None:
        self.call = function

    def decided(self) -> Any:
        return iter(self.rows)

    def lands(self, rows: Sequence[int], offset: int, *, partition: int = 0) -> None:
        self.rows.append(Decided(TopicPartition("t", partition), np.array(rows), offset, None))

    def fails(self, rows: Sequence[int], error: OttlaError) -> None:
        self.rows.append(Decided(TopicPartition("t", 0), np.array(rows), -1, error))


class _One:
    """A delivery of one record, acknowledged at once or never."""

    def __init__(self, *, is_acknowledged: bool = True) -> None:
        self._is_acknowledged = is_acknowledged

    def add_done_callback(self, function: Callable[[Any], None]) -> None:
        if self._is_acknowledged:
            function(self)

    def result(self, timeout: float) -> Sent:
        return Sent("t", 0, 5, 1.0)


class _Intake:
    """What was handed over, and how."""

    def __init__(self) -> None:
        self.groups: list[list[Incoming]] = []
        self.bulks: list[_Bulk] = []
        self.refuses: Callable[[Incoming], OttlaError | None] = lambda _: None
        self.is_acknowledging = True

    def send_one(self, topic: str, record: Incoming) -> _One:
        self._take([record])
        return _One(is_acknowledged=self.is_acknowledging)

    def send(self, topic: str, records: Sequence[Incoming]) -> _Bulk:
        self._take(records)
        self.bulks.append(_Bulk())
        return self.bulks[-1]

    def _take(self, records: Sequence[Incoming]) -> None:
        for record in records:
            error = self.refuses(record)
            if error is not None:
                raise error
        self.groups.append(list(records))


def _gathering(intake: _Intake, *, seconds: float = 30.0) -> Gathering:
    waker = Waker(asyncio.get_running_loop())
    unknown = lambda: Problem(504, "outcome unknown")  # noqa: E731
    return Gathering(intake, waker, unknown=unknown, seconds=seconds)  # type: ignore[arg-type]


def _write(gathering: Gathering, *values: bytes, topic: str = "t") -> list[Waiting]:
    return [gathering.write(topic, Incoming(value)) for value in values]


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


def _places(outcomes: Sequence[Outcome]) -> list[tuple[int, int]]:
    return [(each.landed[0].partition, each.landed[0].offset) for each in outcomes]


def test_records_of_one_pass_leave_together_and_each_gets_its_place() -> None:
    async def run() -> None:
        intake = _Intake()
        waiting = _write(_gathering(intake), b"a", b"b", b"c")
        await _until(lambda: bool(intake.bulks))
        bulk = intake.bulks[0]
        bulk.lands([0, 2], 10)
        bulk.lands([1], 7, partition=3)
        bulk.call(bulk)
        assert _places(await asyncio.gather(*waiting)) == [(0, 10), (3, 7), (0, 11)]
        assert [[record.value for record in group] for group in intake.groups] == [[b"a", b"b", b"c"]]

    asyncio.run(run())


def test_a_record_alone_takes_the_way_of_single_records() -> None:
    async def run() -> None:
        intake = _Intake()
        (waiting,) = _write(_gathering(intake), b"a")
        assert _places([await waiting]) == [(0, 5)]
        assert not intake.bulks

    asyncio.run(run())


def test_what_comes_while_a_group_is_on_its_way_is_the_next_group() -> None:
    async def run() -> None:
        intake = _Intake()
        gathering = _gathering(intake)
        first = _write(gathering, b"a", b"b")
        await asyncio.sleep(0)
        second = _write(gathering, b"c")
        second += _write(gathering, b"d")
        for number, waiting in enumerate((first, second)):
            await _until(lambda number=number: len(intake.bulks) > number)  # type: ignore[misc]
            bulk = intake.bulks[number]
            bulk.lands([0, 1], 10 * number)
            bulk.call(bulk)
            assert _places(await asyncio.gather(*waiting)) == [(0, 10 * number), (0, 10 * number + 1)]

    asyncio.run(run())


def test_a_group_that_is_not_acknowledged_holds_up_neither_the_next_nor_its_own_decided_records() -> None:
    """A partition without a leader must not stop a topic."""

    async def run() -> None:
        intake = _Intake()
        gathering = _gathering(intake)
        stuck, sound = _write(gathering, b"a", b"b")
        await asyncio.sleep(0)
        following = _write(gathering, b"c", b"d")
        await _until(lambda: len(intake.bulks) == 2)
        intake.bulks[0].lands([1], 7, partition=1)
        assert _places([await sound]) == [(1, 7)]
        intake.bulks[1].lands([0, 1], 8, partition=1)
        intake.bulks[1].call(intake.bulks[1])
        assert _places(await asyncio.gather(*following)) == [(1, 8), (1, 9)]
        assert not stuck.done()

    asyncio.run(run())


def test_records_gather_while_enough_groups_are_on_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.gateway.http.gathering._HOLD_SECONDS", 60.0)

    async def run() -> None:
        intake = _Intake()
        gathering = _gathering(intake)
        for _ in range(4):
            _write(gathering, b"a", b"b")
            await asyncio.sleep(0)
        assert len(intake.bulks) == 4
        waiting = []
        for value in (b"c", b"d", b"e"):
            waiting += _write(gathering, value)
            await asyncio.sleep(0)
        assert len(intake.bulks) == 4
        intake.bulks[1].lands([0, 1], 0)
        intake.bulks[1].call(intake.bulks[1])
        await _until(lambda: len(intake.bulks) == 5)
        assert [record.value for record in intake.groups[-1]] == [b"c", b"d", b"e"]
        intake.bulks[4].lands([0, 1, 2], 8)
        intake.bulks[4].call(intake.bulks[4])
        assert _places(await asyncio.gather(*waiting)) == [(0, 8), (0, 9), (0, 10)]

    asyncio.run(run())


def test_other_topics_do_not_wait() -> None:
    async def run() -> None:
        intake = _Intake()
        gathering = _gathering(intake)
        _write(gathering, b"a", b"b")
        await asyncio.sleep(0)
        _write(gathering, b"c", b"d", topic="u")
        await asyncio.sleep(0)
        assert len(intake.bulks) == 2

    asyncio.run(run())


def test_a_wrong_record_fails_alone() -> None:
    async def run() -> None:
        intake = _Intake()
        intake.refuses = lambda record: (
            RecordTooLarge("a record", size_bytes=9, limit_bytes=1) if record.value == b"wrong" else None
        )
        waiting = _write(_gathering(intake), b"a", b"wrong", b"c")
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(results[1], Problem)
        assert results[1].status == 413
        assert [isinstance(each, Outcome) for each in results] == [True, False, True]

    asyncio.run(run())


def test_each_request_gets_an_error_of_its_own() -> None:
    """One exception that is raised in many tasks would gather their tracebacks."""

    async def run() -> None:
        intake = _Intake()
        full = BufferFull(waiting_bytes=1, limit_bytes=1, seconds=0.0, holding="nothing")
        intake.refuses = lambda _: full
        results = await asyncio.gather(*_write(_gathering(intake), b"a", b"b"), return_exceptions=True)
        assert [each.status for each in results if isinstance(each, Problem)] == [503, 503]
        assert results[0] is not results[1]

    asyncio.run(run())


def test_what_fails_later_is_in_the_outcome() -> None:
    async def run() -> None:
        intake = _Intake()
        waiting = _write(_gathering(intake), b"a", b"b")
        await _until(lambda: bool(intake.bulks))
        bulk = intake.bulks[0]
        bulk.lands([0], 3)
        bulk.fails([1], NotDelivered("no leader"))
        bulk.call(bulk)
        outcomes = await asyncio.gather(*waiting)
        assert [each.failed for each in outcomes] == [0, 1]

    asyncio.run(run())


@pytest.mark.parametrize("values", [(b"a",), (b"a", b"b")])
def test_after_the_deadline_the_outcome_is_unknown(values: tuple[bytes, ...]) -> None:
    async def run() -> None:
        intake = _Intake()
        intake.is_acknowledging = False
        waiting = _write(_gathering(intake, seconds=0.01), *values)
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [each.status for each in results if isinstance(each, Problem)] == [504] * len(values)

    asyncio.run(run())


@pytest.mark.parametrize("is_held", [False, True])
def test_a_large_record_does_not_overtake_those_before_it(is_held: bool) -> None:
    async def run() -> None:
        intake = _Intake()
        gathering = _gathering(intake)
        if is_held:
            _write(gathering, b"first", b"group")
            await asyncio.sleep(0)
        _write(gathering, b"a", b"b", b"x" * 20_000, b"c", topic="t")
        _write(gathering, b"other", topic="u")
        await _until(lambda: sum(map(len, intake.groups)) == 5 + 2 * is_held)
        values = [record.value for group in intake.groups for record in group if record.value != b"other"]
        assert values[2 * is_held :] == [b"a", b"b", b"x" * 20_000, b"c"]

    asyncio.run(run())


def test_sound_records_of_a_refused_group_keep_their_order() -> None:
    async def run() -> None:
        intake = _Intake()
        intake.refuses = lambda record: (
            RecordTooLarge("a record", size_bytes=9, limit_bytes=1) if record.value == b"wrong" else None
        )
        gathering = _gathering(intake)
        waiting = _write(gathering, b"a", b"wrong", b"b", b"x" * 20_000, b"c", b"wrong", b"d")
        await _until(lambda: sum(map(len, intake.groups)) == 5)
        values = [record.value for group in intake.groups for record in group]
        assert values == [b"a", b"b", b"x" * 20_000, b"c", b"d"]
        assert all(isinstance(waiting[number].exception(), Problem) for number in (1, 5))

    asyncio.run(run())


def test_large_records_go_on_their_own_and_many_leave_at_once() -> None:
    async def run() -> None:
        intake = _Intake()
        gathering = _gathering(intake)
        _write(gathering, b"x" * 20_000)
        assert [len(group) for group in intake.groups] == [1]
        _write(gathering, *[b"a"] * 600)
        assert [len(group) for group in intake.groups] == [1, 512]

    asyncio.run(run())
