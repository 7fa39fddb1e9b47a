"""A delivery leads to the outcome of its own record, however it is asked, from any thread or event loop."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.interrupting import interrupted

from ottla.errors import Fenced, InputError, KeptInSpool, NotDelivered, OttlaError, copied
from ottla.model import OffsetRange
from ottla.produce.delivery import (
    BulkDelivery,
    Delivery,
    Outcome,
    Placement,
    Refusal,
    Sent,
    SentMany,
    Shipment,
)
from ottla.produce.outgoing import Outgoing, ShipmentShare
from ottla.produce.records import diverted
from ottla.produce.tables import StreamDelivery
from ottla.produce.waiting import SENDER_THREAD

SOON = 10.0
Rows = range | np.ndarray[tuple[int], np.dtype[np.int64]]


def batch(partition: int = 0, topic: str = "t") -> Outgoing:
    return Outgoing(topic, partition, opened=0.0, created=0.0)


def placed(*placements: tuple[Outgoing, Rows, int], count: int) -> Shipment:
    """A shipment of `count` rows, with these rows in these batches."""
    shipment = Shipment("t")
    shipment.count = shipment.unsettled = count
    shipment.now_ms = 1_500
    for carrier, rows, first in placements:
        shipment.placements.append(Placement(carrier, rows, first))
        carrier.shipments.append(ShipmentShare(shipment, len(rows)))
    return shipment


def one_record() -> tuple[Outgoing, Delivery]:
    carrier = batch()
    return carrier, Delivery(placed((carrier, range(1), 0), count=1), 0)


def later(function: Callable[[], None], *, name: str = "someone") -> threading.Thread:
    thread = threading.Thread(target=function, name=name)
    thread.start()
    return thread


FAILED = NotDelivered("no", topic="t", partition=0)


# One record


def test_an_error_that_is_raised_for_many_records_does_not_collect_their_tracebacks() -> None:
    carrier = batch()
    shipment = placed((carrier, range(3), 0), count=3)
    carrier.decide(Outcome(0, -1, -1, FAILED))
    for row in range(3):
        with pytest.raises(NotDelivered):
            Delivery(shipment, row).result(0)
    assert FAILED.__traceback__ is None


class Untouchable:
    """Rows that may be counted, and no more."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, rows: object) -> None:
        raise AssertionError("a row was looked at")


def test_whether_a_list_was_delivered_is_known_without_looking_at_its_rows() -> None:
    """Regression: every flush made an array of all rows for each batch, 25 us a record over 1,000 partitions."""
    first, second = batch(0), batch(1)
    rows: Any = Untouchable(3)
    shipment = placed((first, rows, 0), (second, rows, 0), count=6)
    first.decide(Outcome(0, 42, -1))
    second.decide(Outcome(0, 7, -1))
    assert BulkDelivery([shipment]).exception(0) is None
    failed = placed((batch(2), rows, 0), count=3)
    failed.placements[0].carrier.decide(Outcome(0, -1, -1, FAILED))  # type: ignore[attr-defined]
    assert str(BulkDelivery([shipment, failed]).exception(0)).startswith("t-0: 3 records were not delivered")


def test_the_error_of_many_calls_is_not_copied_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: a flush behind an outage took 20 us and a kilobyte for each partition of each call."""
    carriers = [batch(number) for number in range(2)]
    shipments = [
        placed(*((carrier, np.array([row]), number) for row, carrier in enumerate(carriers)), count=2)
        for number in range(100)
    ]
    for carrier in carriers:
        carrier.decide(Outcome(0, -1, -1, NotDelivered("no", topic="t", partition=carrier.partition, records=100)))
    copies: list[NotDelivered] = []

    def counted(error: NotDelivered) -> NotDelivered:
        copies.append(error)
        return copied(error)

    for module in ("delivery", "failed_rows"):
        monkeypatch.setattr(f"ottla.produce.{module}.copied", counted)
    error = BulkDelivery(shipments).exception(0)
    assert error is not None
    assert error.records == 200
    assert len(copies) <= 1


def test_a_delivery_is_open_until_its_batch_is_decided() -> None:
    carrier, delivery = one_record()
    assert "waiting" in repr(delivery)
    carrier.decide(Outcome(0, 42, -1))
    assert delivery.done
    assert delivery.result(0) == Sent("t", 0, 42, 1.5)
    assert delivery.exception(0) is None
    assert "acknowledged" in repr(delivery)


def test_a_record_that_no_sender_has_seen_yet_is_open() -> None:
    delivery = Delivery(Shipment("t"), 0)
    assert not delivery.done
    with pytest.raises(TimeoutError, match=r"no outcome after 0.0 s"):
        delivery.result(0.01)


def test_a_failed_delivery_raises_why() -> None:
    carrier, delivery = one_record()
    carrier.decide(Outcome(0, -1, -1, FAILED))
    assert str(delivery.exception(0)) == str(FAILED)
    with pytest.raises(NotDelivered, match="no"):
        delivery.result(0)
    assert "failed" in repr(delivery)


def test_a_wait_ends_when_the_outcome_comes_from_another_thread() -> None:
    carrier, delivery = one_record()
    seen: list[Sent] = []
    waiters = [later(lambda: seen.append(delivery.result(SOON))) for _ in range(5)]
    carrier.decide(Outcome(0, 7, -1))
    for waiter in waiters:
        waiter.join(SOON)
    assert [sent.offset for sent in seen] == [7] * 5


def test_a_wait_that_takes_too_long_leaves_the_delivery_going() -> None:
    carrier, delivery = one_record()
    started = time.monotonic()
    with pytest.raises(TimeoutError, match="delivery continues"):
        delivery.exception(0.05)
    assert time.monotonic() - started < SOON
    carrier.decide(Outcome(0, 7, -1))
    assert delivery.result(0).offset == 7


def test_the_brokers_clock_wins_where_the_topic_says_so() -> None:
    carrier, delivery = one_record()
    carrier.decide(Outcome(0, 7, 2_250))
    assert delivery.result(0).timestamp == 2.25


def test_each_row_has_its_own_timestamp() -> None:
    carrier = batch()
    shipment = placed((carrier, range(3), 0), count=3)
    shipment.times = np.array([1000, 2000, 3000])
    carrier.decide(Outcome(0, 10, -1))
    assert [Delivery(shipment, row).result(0).timestamp for row in range(3)] == [1.0, 2.0, 3.0]


def test_without_acknowledgements_the_offset_is_unknown() -> None:
    carrier, delivery = one_record()
    carrier.decide(Outcome(0, -1, -1))
    assert delivery.result(0).offset == -1


def test_a_delivery_is_small_and_unknown_to_the_garbage_collector() -> None:
    _, delivery = one_record()
    assert sys.getsizeof(delivery) <= 40
    assert not gc.is_tracked(delivery)


def test_a_diverted_record_has_failed_at_once() -> None:
    delivery = diverted("t", InputError("too large"))
    assert delivery.done
    with pytest.raises(NotDelivered, match="too large"):
        delivery.result(0)


# Callbacks


def test_a_callback_is_called_once_with_its_delivery() -> None:
    carrier, delivery = one_record()
    called: list[Delivery] = []
    delivery.add_done_callback(called.append)
    assert called == []
    carrier.decide(Outcome(0, 1, -1))
    carrier.decide(Outcome(0, 2, -1))
    assert [argument is delivery for argument in called] == [True]
    assert delivery.result(0).offset == 1


def test_a_callback_on_a_finished_delivery_is_called_at_once() -> None:
    carrier, delivery = one_record()
    carrier.decide(Outcome(0, 1, -1))
    called: list[Delivery] = []
    delivery.add_done_callback(called.append)
    assert len(called) == 1


def test_a_callback_that_raises_is_logged_and_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    carrier, delivery = one_record()
    called: list[Delivery] = []

    def fails(_: Delivery) -> None:
        raise ValueError("of the program")

    delivery.add_done_callback(fails)
    delivery.add_done_callback(called.append)
    with caplog.at_level(logging.ERROR):
        carrier.decide(Outcome(0, 1, -1))
    assert len(called) == 1
    assert delivery.result(0).offset == 1
    assert "a delivery callback raised" in caplog.text
    assert "of the program" in caplog.text


def test_waiting_in_a_callback_is_refused_instead_of_hanging() -> None:
    # It would block the thread that delivers.
    carrier, delivery = one_record()
    _, other = one_record()
    refused: list[BaseException] = []

    def waits(_: Delivery) -> None:
        try:
            other.result(SOON)
        except RuntimeError as error:
            refused.append(error)

    delivery.add_done_callback(waits)
    later(lambda: carrier.decide(Outcome(0, 1, -1)), name=f"{SENDER_THREAD}-x").join(SOON)
    assert "a callback must not wait for a delivery" in str(refused[0])


def test_a_callback_may_ask_for_its_own_outcome() -> None:
    carrier, delivery = one_record()
    seen: list[int] = []
    delivery.add_done_callback(lambda done: seen.append(done.result().offset))
    later(lambda: carrier.decide(Outcome(0, 9, -1)), name=f"{SENDER_THREAD}-x").join(SOON)
    assert seen == [9]


_FILES = ("produce/delivery.py", "produce/waiting.py")


@pytest.mark.parametrize("others", [0, 2])
def test_no_callback_is_lost_when_the_outcome_comes_at_any_instruction(others: int) -> None:
    # A thread that adds a callback stores it first and then checks for the outcome; the sender stores the outcome first
    # and then checks for callbacks. If one of them checked first, or if callbacks were hidden for a moment, none would
    # be called.
    for step in range(1, 1000):
        carrier = batch()
        shipment = placed((carrier, range(others + 1), 0), count=others + 1)
        called: list[Delivery] = []
        for row in range(others):
            Delivery(shipment, row).add_done_callback(called.append)
        threads: list[threading.Thread] = []

        def decide(carrier: Outgoing = carrier, threads: list[threading.Thread] = threads) -> None:
            threads.append(later(lambda: carrier.decide(Outcome(0, 1, -1))))
            threads[0].join(0.004)  # it may need the lock that is held here

        delivery = Delivery(shipment, others)
        got_there = interrupted(partial(delivery.add_done_callback, called.append), step, decide, files=_FILES)
        for thread in threads:
            thread.join(SOON)
        if not got_there:
            assert step > 20
            return
        assert len(called) == others + 1, f"interrupted at {step}"
    raise AssertionError("adding a callback has no end")


def test_many_callbacks_on_records_of_one_batch_cost_little() -> None:
    carrier = batch()
    shipment = placed((carrier, range(5000), 0), count=5000)
    called: list[Delivery] = []
    started = time.process_time()
    for row in range(5000):
        Delivery(shipment, row).add_done_callback(called.append)
    carrier.decide(Outcome(0, 0, -1))
    assert len(called) == 5000
    assert time.process_time() - started < 2.0  # it is 10 if each one looks at all the others


# Event loops


def test_deliveries_are_awaited_from_several_event_loops_at_once() -> None:
    carrier = batch()
    shipment = placed((carrier, range(20), 0), count=20)
    ready = threading.Barrier(4)
    seen: list[list[Sent]] = []

    async def ask() -> list[Sent]:
        tasks = [asyncio.ensure_future(_await(Delivery(shipment, row))) for row in range(20)]
        await asyncio.sleep(0)
        ready.wait(SOON)
        return await asyncio.wait_for(asyncio.gather(*tasks), SOON)

    loops = [later(lambda: seen.append(asyncio.run(ask()))) for _ in range(3)]
    ready.wait(SOON)
    carrier.decide(Outcome(0, 100, -1))
    for loop in loops:
        loop.join(SOON)
    assert [[sent.offset for sent in results] for results in seen] == [list(range(100, 120))] * 3


async def _await(delivery: Delivery) -> Sent:
    return await delivery


def test_awaiting_raises_why_a_record_failed() -> None:
    carrier, delivery = one_record()

    async def ask() -> None:
        task = asyncio.ensure_future(_await(delivery))
        await asyncio.sleep(0)
        carrier.decide(Outcome(0, -1, -1, FAILED))
        with pytest.raises(NotDelivered):
            await task

    asyncio.run(ask())


def test_awaiting_a_finished_delivery_does_not_wait() -> None:
    carrier, delivery = one_record()
    carrier.decide(Outcome(0, 3, -1))
    assert asyncio.run(_await(delivery)).offset == 3


def test_an_awaiting_task_may_be_cancelled_and_its_loop_closed() -> None:
    carrier, delivery = one_record()

    async def ask() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(_await(delivery), 0.01)

    asyncio.run(ask())
    carrier.decide(Outcome(0, 3, -1))  # wakes a closed loop, which must not raise
    assert delivery.result(0).offset == 3


# Where rows are


def test_rows_as_a_range_and_as_an_array_lead_to_their_batches() -> None:
    first, second, third = batch(0), batch(1), batch(2)
    shipment = placed(
        (first, np.array([0, 2, 5]), 4), (second, np.array([1, 3, 4]), 0), (third, range(6, 9), 1), count=9
    )
    for carrier, offset in ((first, 100), (second, 200), (third, 300)):
        carrier.decide(Outcome(0, offset, -1))
    places = [Delivery(shipment, row).result(0)[1:3] for row in range(9)]
    assert places == [
        (0, 104),
        (1, 200),
        (0, 105),
        (1, 201),
        (1, 202),
        (0, 106),
        (2, 301),
        (2, 302),
        (2, 303),
    ]


def test_only_the_rows_of_a_decided_batch_are_done() -> None:
    first, second = batch(0), batch(1)
    shipment = placed((first, np.array([0, 2]), 0), (second, np.array([1]), 0), count=3)
    first.decide(Outcome(0, 5, -1))
    assert [Delivery(shipment, row).done for row in range(3)] == [True, False, True]


def test_records_of_a_split_batch_have_their_own_outcomes() -> None:
    whole = batch()
    shipment = placed((whole, range(10), 0), count=10)
    whole.decide(Outcome(0, 100, -1), Outcome(4, 200, -1), Outcome(7, -1, -1, FAILED))
    assert [Delivery(shipment, row).result(0).offset for row in range(7)] == [100, 101, 102, 103, 200, 201, 202]
    assert [str(Delivery(shipment, row).exception(0)) for row in range(7, 10)] == [str(FAILED)] * 3


def test_parts_together_decide_their_whole() -> None:
    whole = batch()
    shipment = placed((whole, range(6), 0), count=6)
    parts = [batch(), batch()]
    whole.parts_left = 2
    for part, first in zip(parts, (0, 2), strict=True):
        part.parent = (whole, first)
    parts[1].decide(Outcome(0, 50, -1))
    assert not Delivery(shipment, 0).done
    parts[0].decide(Outcome(0, 40, -1))
    assert [Delivery(shipment, row).result(0).offset for row in range(6)] == [40, 41, 50, 51, 52, 53]
    assert BulkDelivery([shipment]).result(0).ranges == (OffsetRange("t", 0, 40, 42), OffsetRange("t", 0, 50, 54))


def test_a_part_that_is_split_again_keeps_its_place() -> None:
    whole, part = batch(), batch()
    shipment = placed((whole, range(4), 0), count=4)
    whole.parts_left = 2
    first = batch()
    first.parent, part.parent = (whole, 0), (whole, 2)
    halves = [batch(), batch()]
    part.parts_left = 2
    for half, start in zip(halves, (0, 1), strict=True):
        half.parent = (part, start)
    halves[1].decide(Outcome(0, 9, -1))
    halves[0].decide(Outcome(0, 8, -1))
    first.decide(Outcome(0, 1, -1))
    assert [Delivery(shipment, row).result(0).offset for row in range(4)] == [1, 2, 8, 9]


# Many records


def test_ranges_are_joined_and_sorted() -> None:
    carriers = [batch(1), batch(0), batch(0), batch(1)]
    shipments = [placed((carrier, range(5), 0), count=5) for carrier in carriers]
    for carrier, offset in zip(carriers, (5, 20, 10, 0), strict=True):
        carrier.decide(Outcome(0, offset, -1))
    result = BulkDelivery(list(shipments)).result(0)
    ranges = (OffsetRange("t", 0, 10, 15), OffsetRange("t", 0, 20, 25), OffsetRange("t", 1, 0, 10))
    assert result == SentMany(20, ranges)


def test_a_bulk_delivery_is_done_when_every_record_is() -> None:
    first, second = batch(0), batch(1)
    shipment = placed((first, np.array([0, 2]), 0), (second, np.array([1]), 0), count=3)
    bulk = BulkDelivery([shipment])
    called: list[BulkDelivery] = []
    bulk.add_done_callback(called.append)
    first.decide(Outcome(0, 5, -1))
    assert called == []
    with pytest.raises(TimeoutError):
        bulk.result(0.01)
    second.decide(Outcome(0, 6, -1))
    assert bulk.done
    assert called == [bulk]
    assert bulk.result(0).records == 3
    assert "acknowledged" in repr(bulk)


def test_the_outcomes_of_a_call_say_which_rows_are_where_and_which_failed() -> None:
    good, cut, refused = batch(0), batch(1), batch(2)
    first = placed((good, range(2), 3), (cut, np.array([2, 4, 5]), 0), (refused, np.array([3]), 0), count=6)
    second = placed((good, range(1), 5), count=1)
    good.decide(Outcome(0, 100, -1))
    cut.decide(Outcome(0, 200, -1), Outcome(2, 300, -1))
    refused.decide(Outcome(0, -1, -1, NotDelivered("why")))
    outcomes = list(BulkDelivery([first, second]).outcomes(0))
    assert [
        (outcome.at.partition, outcome.rows.tolist(), outcome.offset, outcome.error is None) for outcome in outcomes
    ] == [
        (0, [0, 1], 103, True),
        (1, [2, 4], 200, True),
        (1, [5], 300, True),
        (2, [3], -1, False),
        (0, [6], 105, True),
    ]


def test_one_failed_record_fails_the_whole_call() -> None:
    good, bad = batch(0), batch(1)
    shipment = placed((good, np.array([0, 2]), 0), (bad, np.array([1]), 0), count=3)
    good.decide(Outcome(0, 5, -1))
    bad.decide(Outcome(0, -1, -1, FAILED))
    bulk = BulkDelivery([shipment])
    assert str(bulk.exception(0)) == str(FAILED)
    with pytest.raises(NotDelivered):
        bulk.result(0)


def test_one_error_for_several_partitions_is_of_their_kind_and_as_doubtful_as_one_of_them() -> None:
    """Regression: over several partitions neither Fenced nor KeptInSpool nor doubt was to be seen."""

    def raised(*errors: NotDelivered) -> NotDelivered:
        carriers = [batch(number) for number in range(len(errors))]
        shipment = placed(*((carrier, np.array([row]), 0) for row, carrier in enumerate(carriers)), count=len(errors))
        for carrier, error in zip(carriers, errors, strict=True):
            carrier.decide(Outcome(0, -1, -1, error))
        found = BulkDelivery([shipment]).exception(0)
        assert found is not None
        assert found.records == len(errors)
        return found

    kept, fenced = (partial(kind, "why", topic="t") for kind in (KeptInSpool, Fenced))
    certain, doubtful = (partial(NotDelivered, "no", topic="t", maybe_written=doubt) for doubt in (False, True))
    assert type(raised(kept(partition=0), kept(partition=1))) is KeptInSpool
    assert type(raised(kept(partition=0), certain(partition=1))) is NotDelivered
    assert type(raised(certain(partition=0), fenced(partition=1))) is Fenced
    assert not raised(certain(partition=0), certain(partition=1)).maybe_written
    for errors in [(0, 1), (0, 0)]:
        error = raised(certain(partition=errors[0]), doubtful(partition=errors[1]))
        assert error.maybe_written
        assert str(error).count("may or may not be in the log") == 1
    assert str(raised(doubtful(partition=0), doubtful(partition=1))).count("may or may not be in the log") == 1


def test_records_that_never_got_into_a_batch_have_their_refusal() -> None:
    shipment = Shipment("t")
    shipment.count, shipment.unsettled = 2, 2
    error: OttlaError = InputError("no such partition")
    shipment.placements.append(Placement(Refusal("t", 9, error), range(2), 0))
    shipment.settle(2)
    failure = BulkDelivery([shipment]).exception(0)
    assert failure is not None
    assert failure.cause is error


def test_without_acknowledgements_there_are_no_ranges() -> None:
    carrier = batch()
    shipment = placed((carrier, range(3), 0), count=3)
    carrier.decide(Outcome(0, -1, -1))
    assert BulkDelivery([shipment]).result(0) == SentMany(3, ())


def test_a_call_with_no_records_is_done() -> None:
    bulk = BulkDelivery([])
    assert bulk.done
    assert bulk.result(0) == SentMany(0, ())
    assert asyncio.run(_await_bulk(bulk)) == SentMany(0, ())


async def _await_bulk(bulk: BulkDelivery) -> SentMany:
    return await bulk


def test_a_bulk_delivery_is_awaited_across_shipments() -> None:
    carriers = [batch(0), batch(1)]
    bulk = BulkDelivery([placed((carrier, range(2), 0), count=2) for carrier in carriers])

    async def ask() -> SentMany:
        task = asyncio.ensure_future(_await_bulk(bulk))
        await asyncio.sleep(0)
        for offset, carrier in enumerate(carriers):
            later(lambda carrier=carrier, offset=offset: carrier.decide(Outcome(0, offset, -1))).join(SOON)  # type: ignore[misc]
        return await asyncio.wait_for(task, SOON)

    assert asyncio.run(ask()).records == 4


def test_what_a_hook_made_of_records_is_where_they_are() -> None:
    carrier = batch()
    shipment = placed((carrier, range(10), 0), count=10)
    carrier.decide(Outcome(0, 5, -1, made=2))
    assert BulkDelivery([shipment]).result(0) == SentMany(10, (OffsetRange("t", 0, 5, 7),))
    assert [Delivery(shipment, row).result(0).offset for row in (0, 9)] == [5, 5]


def test_records_that_a_hook_has_dropped_are_nowhere_and_did_not_fail() -> None:
    carrier = batch()
    shipment = placed((carrier, range(3), 0), count=3)
    carrier.decide(Outcome(0, -1, -1, made=0))
    assert BulkDelivery([shipment]).result(0) == SentMany(3, ())
    assert Delivery(shipment, 1).result(0).offset == -1


def test_the_callback_of_a_delivery_without_rows_is_called() -> None:
    called: list[BulkDelivery] = []
    for delivery in (BulkDelivery([]), StreamDelivery()):
        delivery.add_done_callback(called.append)
    assert len(called) == 2
