"""Records that their callers send themselves, while callers are interrupted, or too slow for the loop."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.waiting import eventually

from ottla import Batching, Producer
from ottla.events import ConnectionDown, Event
from ottla.net.connection import Connection
from ottla.net.pending import InFlight
from ottla.net.transport import Transport
from ottla.produce import requests
from ottla.produce.waiting import SENDER_THREAD
from ottla.testing import FakeKafka
from ottla.wire import partitioning

from .stand import SOON, new, values

_PLACES = [(Connection, "version"), (InFlight, "add"), (Transport, "enter"), (Transport, "send"), (Transport, "leave")]


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def producer(kafka: FakeKafka, events: list[Event]) -> Producer:
    """A producer whose next record takes the fast path."""
    kafka.create_topic("other")
    producer = new(kafka, batching=Batching(linger=0), events=[events.append])
    for topic in ("t", "other"):
        producer.send(topic, b"first").result(SOON)
    eventually(lambda: producer._fast_path is not None and producer._fast_path.offer is not None)
    return producer


def before(monkeypatch: pytest.MonkeyPatch, place: tuple[type, str], act: Callable[[], None]) -> None:
    """Call `act` on this thread when it next reaches `place`, like a signal handler."""
    real, thread_id, calls = getattr(*place), threading.get_ident(), iter([True])

    def first(*arguments: Any, **options: Any) -> Any:
        if threading.get_ident() == thread_id and next(calls, False):
            act()
        return real(*arguments, **options)

    monkeypatch.setattr(*place, first)


@pytest.mark.parametrize("place", _PLACES, ids=lambda place: f"{place[0].__name__}.{place[1]}")
def test_a_handler_waits_in_the_middle_of_sending(
    producer: Producer, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch, place: tuple[type, str]
) -> None:
    """Found: the loop waited for a lock of the interrupted caller; and a record that was meanwhile sent again and
    acknowledged could not be sent: its caller got an AssertionError."""
    before(monkeypatch, place, lambda: producer.flush(SOON))
    with producer:
        assert producer.send("t", b"second").result(SOON).offset == 1
        assert producer.send("t", b"third").result(SOON).offset == 2
    assert values(kafka) == [b"first", b"second", b"third"]


def test_the_loop_does_not_send_while_a_caller_is_about_to(
    producer: Producer, kafka: FakeKafka, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: with threads that send, one of 25 such records cost its connection: "an answer with correlation id 5 came
    where 4 was due"."""

    def others_send() -> None:
        producer.send_many("t", [b"third"])
        producer.send_many("other", [b"second"])
        eventually(lambda: producer._sender._core.in_flight >= 2)

    monkeypatch.setattr(requests, "UNSTARTED_SECONDS", SOON)
    before(monkeypatch, (Transport, "send"), others_send)
    with producer:
        assert producer.send("t", b"second").result(SOON).offset == 1
    assert values(kafka) == [b"first", b"second", b"third"]
    assert values(kafka, "other") == [b"first", b"second"]
    assert not [event for event in events if isinstance(event, ConnectionDown)]


def test_the_loop_has_the_hash_of_keys_compiled(kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: the first record with a key compiled the kernel in its caller's thread. Ctrl-C during that left a lock of
    the compiler behind, and the loop waited for it forever."""
    threads: list[threading.Thread] = []

    def hash_key(_key: bytes) -> int:
        threads.append(threading.current_thread())
        return 0

    monkeypatch.setattr(partitioning, "hash_key", hash_key)
    with new(kafka, batching=Batching(linger=0)) as producer:
        producer.send("t", b"first").result(SOON)
        eventually(lambda: producer._fast_path is not None and producer._fast_path.offer is not None)
        producer.send("t", b"second", key=b"key").result(SOON)
    assert threads[0].name.startswith(SENDER_THREAD)


def test_callers_who_never_come_back_leave_nothing_behind(
    producer: Producer, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: the request of each of them was kept forever."""

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    for number in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(Connection, "start_at_once", interrupted)
            with pytest.raises(KeyboardInterrupt):
                producer.send("t", b"%d" % number)
        producer.flush(SOON)  # it is sent again
        eventually(lambda: producer._fast_path is not None and producer._fast_path.offer is not None)
    assert values(kafka) == [b"first", b"0", b"1", b"2"]
    gc.collect()
    assert not producer._sender._requests.given_up
    producer.close()
