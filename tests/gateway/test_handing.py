"""While the producer has no room, senders wait; after a while what comes is lost and counted, until there is room."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa

from ottla.errors import BufferFull, InputError, OttlaError
from ottla.gateway.handing import Handing


class _Intake:
    """Stands for an `Intake` of which the buffer is full or not."""

    def __init__(self) -> None:
        self.is_full = False
        self.calls = 0
        self.taken: list[int] = []

    def send_table(self, topic: str, records: pa.RecordBatch) -> object:
        self.calls += 1
        if topic == "bad" or b"bad" in records.column("value").to_pylist():
            raise InputError("bad")
        if self.is_full:
            raise BufferFull(waiting_bytes=1, limit_bytes=1, seconds=0.0, holding="")
        self.taken.append(records.num_rows)
        return object()

    def watch(self, *_: object, **__: object) -> None:
        pass


def _handing(intake: _Intake, **settings: Any) -> Handing:
    return Handing(intake, **settings)  # type: ignore[arg-type]


class _Lost(list[int]):
    def __call__(self, topic: str, records: int, first_time: float, last_time: float, why: OttlaError) -> None:
        self.append(records)


def _rows(count: int, size: int = 1) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([b"x" * size] * count)})


def test_a_batch_waits_for_room() -> None:
    intake, lost = _Intake(), _Lost()
    intake.is_full = True
    handing = _handing(intake, full_seconds=60.0)
    thread = threading.Thread(target=lambda: handing("t", _rows(3), (0, 0), lost=lost))
    thread.start()
    while intake.calls < 3:
        pass
    intake.is_full = False
    thread.join(30)
    assert (intake.taken, lost) == ([3], [])


def test_after_a_while_without_room_everything_is_lost_at_once_until_there_is_room() -> None:
    now = 0.0
    intake, lost = _Intake(), _Lost()
    handing = _handing(intake, full_seconds=0.05, clock=lambda: now)

    def tick(topic: str, records: pa.RecordBatch) -> object:
        nonlocal now
        now += 0.02
        return _Intake.send_table(intake, topic, records)

    intake.send_table = tick  # type: ignore[method-assign]
    intake.is_full = True
    assert handing("t", _rows(2), (0, 0), lost=lost) == []
    calls = intake.calls
    assert calls > 1, "it has waited"
    handing("t", _rows(5), (0, 0), lost=lost)
    assert intake.calls == calls + 1, "it waits no longer"
    assert lost == [2, 5]
    intake.is_full = False
    handing("t", _rows(1), (0, 0), lost=lost)
    intake.is_full = True
    before = intake.calls
    handing("t", _rows(1), (0, 0), lost=lost)
    assert intake.calls > before + 1, "it waits again"


def test_what_is_wrong_is_lost_without_waiting() -> None:
    intake, lost = _Intake(), _Lost()
    _handing(intake, full_seconds=60.0)("bad", _rows(4), (0, 0), lost=lost)
    assert (intake.taken, sum(lost)) == ([], 4)


def test_one_record_that_is_not_accepted_takes_no_others_with_it() -> None:
    intake, lost = _Intake(), _Lost()
    records = pa.record_batch({"value": pa.array([b"%d" % number if number % 50 else b"bad" for number in range(100)])})
    deliveries = _handing(intake, full_seconds=60.0)("t", records, (0, 0), lost=lost)
    assert lost == [1, 1]
    assert sum(intake.taken) == sum(count for _, count in deliveries) == 98
    assert intake.calls < 40


def test_nothing_waits_when_the_listener_is_closed() -> None:
    intake, lost = _Intake(), _Lost()
    intake.is_full = True
    handing = _handing(intake, full_seconds=60.0)
    handing.close()
    handing("t", _rows(4), (0, 0), lost=lost)
    assert lost == [4]


def test_large_batches_go_in_portions_each_with_its_number_of_records() -> None:
    intake, lost = _Intake(), _Lost()
    deliveries = _handing(intake, full_seconds=0.0)("t", _rows(100, 200_000), (0, 0), lost=lost)
    assert sum(intake.taken) == sum(count for _, count in deliveries) == 100
    assert len(intake.taken) == 5
