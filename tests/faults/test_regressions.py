"""Bugs of ours that the brokers' faults have brought to light, each reproduced reliably."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest

from ottla.errors import NotDelivered
from ottla.events import Events
from ottla.produce.delivery import BulkDelivery, Delivery, Placement, Refusal, Shipment
from ottla.produce.intake import Budget, Chunk, Handover, Intake
from ottla.produce.options import Buffering
from ottla.produce.producer import Producer
from ottla.produce.sender import Sender
from ottla.wire.columns import from_bytes


def test_a_list_stays_behind_the_records_that_the_sender_is_just_taking_away(monkeypatch: pytest.MonkeyPatch) -> None:
    taking = threading.Event()

    def slow(chunk: Chunk) -> int:
        if threading.current_thread().name == "taking":  # it has the chunk and has not handed it over
            taking.set()
            time.sleep(0.2)
        return list.__len__(chunk)

    monkeypatch.setattr(Chunk, "__len__", slow)
    with Events() as events:
        intake = Intake(Budget(Buffering(), holding=lambda: "", events=events), wake=lambda: None)
        intake.put("t", b"first", key=None, extras=None, usable=lambda: None)
        sender = threading.Thread(target=intake.take_all, name="taking")
        sender.start()
        assert taking.wait(30)
        intake.hand_over(Handover("t", Shipment("t"), from_bytes([b"second", b"third"]), None, 0.0, 0.0))
        sender.join()
        handed, _ = intake.take(0.0, lambda _: 0.0)
    assert [handover.columns.count for handover in handed] == [1, 2]


def test_threads_that_send_first_at_the_same_time_find_a_running_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Sender.start

    def slow(sender: Sender) -> None:
        time.sleep(0.2)
        real(sender)

    monkeypatch.setattr(Sender, "start", slow)
    errors: list[BaseException] = []
    producer = Producer("127.0.0.1:9", delivery_timeout=0.5)

    def send() -> None:
        try:
            producer.send("t", b"x")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with pytest.raises(Exception, match="not delivered"):
        producer.close(5)
    assert errors == []


@pytest.mark.parametrize("bulk", [False, True], ids=["send", "send_many"])
def test_a_batch_whose_failure_was_raised_is_not_kept(bulk: bool) -> None:
    def failed() -> weakref.ref[Refusal]:
        batch = Refusal("t", 0, NotDelivered("no broker"))
        shipment = Shipment("t")
        shipment.count, shipment.unsettled = 1, 0
        shipment.placements.append(Placement(batch, range(1), 0))
        delivery = BulkDelivery([shipment]) if bulk else Delivery(shipment, 0)
        with pytest.raises(NotDelivered):
            delivery.result(0)
        error = delivery.exception(0)
        assert error is not None
        with pytest.raises(NotDelivered):
            raise error
        return weakref.ref(batch)

    batch = failed()
    gc.collect()
    assert batch() is None
