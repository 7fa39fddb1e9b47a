"""A producer and signals: handlers that send, wait and close, and finalizers that send."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from ottla import Batching, Producer
from ottla.errors import OttlaError
from ottla.produce.delivery import Delivery
from ottla.testing import FakeKafka

from .stand import SOON, new, values

Record = tuple[bytes, bytes | None, Delivery]


@contextmanager
def storm(handler: Callable[[], None], seconds: float, *, is_single: bool = False) -> Iterator[None]:
    """Have signals call `handler` on the main thread, one every few hundred microseconds, or a single one."""

    def called(_number: int, _frame: FrameType | None) -> None:
        handler()

    before = signal.signal(signal.SIGALRM, called)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.0 if is_single else seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _assert_in_the_log(kafka: FakeKafka, sent: list[Record], topic: str = "t") -> None:
    """Each record is there once, under its own key, at its delivery's place."""
    log = kafka.records(topic, 0)
    assert sorted(record.value or b"" for record in log) == sorted(value for value, _, _ in sent)
    for value, key, delivery in sent:
        record = log[delivery.result(SOON).offset]
        assert (record.value, record.key) == (value, key)


@pytest.mark.parametrize("keyed", [True, False])
def test_a_signal_handler_may_send_in_the_middle_of_a_send(kafka: FakeKafka, keyed: bool) -> None:
    """Found: after 29 to 158 signals both waited forever; keys and deliveries went to other records."""
    sent: list[Record] = []
    numbers = iter(range(1 << 30))

    def send(kind: bytes) -> None:
        value = kind + b"%d" % next(numbers)
        key = b"key of " + value if keyed else None
        sent.append((value, key, producer.send("t", value, key)))

    def counts() -> list[int]:
        return [sum(value.startswith(kind) for value, _, _ in tuple(sent)) for kind in (b"main", b"signal")]

    with new(kafka, batching=Batching(linger=0)) as producer:
        ends = time.monotonic() + SOON
        with storm(lambda: send(b"signal"), 0.0003):
            while min(counts()) < 300 and time.monotonic() < ends:
                for _ in range(50):
                    send(b"main")
        producer.flush(SOON)
        _assert_in_the_log(kafka, sent)
    assert min(counts()) >= 100


def test_a_finalizer_may_send_in_the_middle_of_a_send(kafka: FakeKafka) -> None:
    sent: list[Record] = []

    class Dying:
        """In a cycle, so that the garbage collector finalizes it, during any allocation."""

        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            value = b"dying %d" % len(sent)
            sent.append((value, b"key of " + value, producer.send("t", value, b"key of " + value)))

    before = gc.get_threshold()
    with new(kafka, batching=Batching(linger=0)) as producer:
        gc.set_threshold(7, 2, 2)
        try:
            for number in range(2000):
                Dying()
                value = b"main %d" % number
                sent.append((value, None, producer.send("t", value)))
        finally:
            gc.set_threshold(*before)
        gc.collect()
        producer.flush(SOON)
        _assert_in_the_log(kafka, sent)
    assert len(sent) == 4000


def test_a_signal_handler_may_wait_in_the_middle_of_a_send(kafka: FakeKafka) -> None:
    """A handler that flushes waits for the sender, which must not need a lock of the interrupted call."""
    waited: list[int] = []

    def handler() -> None:
        waited.append(producer.send("t", b"signal").result(SOON).offset)
        producer.flush(SOON)

    with new(kafka, batching=Batching(linger=0)) as producer:
        ends = time.monotonic() + SOON
        with storm(handler, 0.003):
            while len(waited) < 50 and time.monotonic() < ends:
                producer.send("t", b"main", b"key")
        producer.flush(SOON)
    assert len(waited) >= 20
    assert values(kafka).count(b"signal") == len(waited)


def test_a_signal_handler_may_close_the_producer_at_any_moment(kafka: FakeKafka) -> None:
    """As programs do for SIGTERM."""
    for number in range(0, 30, 2):
        producer = new(kafka, batching=Batching(linger=0))
        accepted = 0
        closing = threading.Event()

        def handler(producer: Producer = producer, closing: threading.Event = closing) -> None:
            closing.set()
            producer.close(SOON)

        before = len(values(kafka))
        with storm(handler, 0.0005 * (number + 1), is_single=True):
            try:
                while True:
                    producer.send("t", b"1", b"key")
                    accepted += 1
            except OttlaError as error:
                message = str(error)
        assert message == "this producer was closed"
        assert closing.is_set()
        # The interrupted one may be in the log although its send raised.
        assert accepted <= len(values(kafka)) - before <= accepted + 1


@pytest.mark.parametrize("linger", [0.0, 0.005])
def test_a_flush_ends_while_another_thread_sends_first_records_to_new_topics(linger: float) -> None:
    """Found: a chunk that was taken while empty became a shipment of no rows, which was never settled."""
    topics = [f"new-{number}" for number in range(40)]
    over = threading.Event()
    before = sys.getswitchinterval()
    with (
        FakeKafka(topics=dict.fromkeys(topics, 1)) as kafka,
        new(kafka, batching=Batching(linger=linger)) as producer,
    ):

        def send() -> None:
            for topic in topics:
                producer.send(topic, b"first").result(SOON)
            over.set()

        thread = threading.Thread(target=send)
        sys.setswitchinterval(1e-5)
        try:
            thread.start()
            while not over.is_set():
                producer.flush(SOON)
        finally:
            sys.setswitchinterval(before)
        thread.join()
        assert [values(kafka, topic) for topic in topics] == [[b"first"]] * len(topics)
