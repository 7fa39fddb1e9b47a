"""A fork in every state of a producer: the child gets an error, the parent continues, nothing is lost or duplicated."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.forking import WAYS
from tests.waiting import eventually

from ottla import Batching, Buffering, Delivery, Producer, Spool
from ottla.errors import BufferFull, UsedAfterFork
from ottla.testing import FakeKafka

from .stand import SOON, new, stuck, values

# These tests fork while threads are running, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

Sent = list[tuple[bytes, Delivery]]
State = Callable[[FakeKafka, Path], Any]


def _uses(producer: Producer, delivery: Delivery | None) -> dict[str, Callable[[], object]]:
    uses: dict[str, Callable[[], object]] = {
        "send": lambda: producer.send("t", b"child"),
        "keyed": lambda: producer.send("t", b"child", b"key"),
        "send_many": lambda: producer.send_many("t", [b"child"]),
        "send_table": lambda: producer.send_table("t", pa.table({"value": [b"child"]})),
        "flush": lambda: producer.flush(),
        "persist": lambda: producer.persist(),
        "partition_for": lambda: producer.partition_for("t"),
        "transaction": lambda: producer.transaction(),
    }
    if delivery is not None and not delivery.done:
        uses["result"] = lambda: delivery.result()
        uses["callback"] = lambda: delivery.add_done_callback(print)
    return uses


def _in_child(producer: Producer, delivery: Delivery | None) -> dict[str, str]:
    """What each use raises in the child; and closing does nothing."""
    errors: dict[str, str] = {}
    for name, use in _uses(producer, delivery).items():
        try:
            use()
            errors[name] = "nothing was raised"
        except BaseException as error:
            errors[name] = type(error).__name__
    producer.close()
    with producer:
        pass
    repr(producer)
    return errors


# The states: each yields a producer in that state, and what was sent so far


@contextmanager
def fresh(kafka: FakeKafka, _: Path) -> Iterator[tuple[Producer, Sent]]:
    with new(kafka) as producer:
        yield producer, []


@contextmanager
def sending(kafka: FakeKafka, _: Path) -> Iterator[tuple[Producer, Sent]]:
    """Another thread is sending."""
    sent: Sent = []
    over = threading.Event()

    def send() -> None:
        number = 0
        while not over.is_set():
            value = b"%d" % number
            sent.append((value, producer.send("t", value, b"key")))
            number += 1
            time.sleep(0.0002)

    with new(kafka) as producer:
        thread = threading.Thread(target=send)
        thread.start()
        eventually(lambda: len(sent) > 20, "it sends")
        try:
            yield producer, sent
        finally:
            over.set()
            thread.join(SOON)


@contextmanager
def waiting(kafka: FakeKafka, _: Path) -> Iterator[tuple[Producer, Sent]]:
    """A chunk is open, and nothing of it was handed over."""
    with new(kafka, batching=Batching(linger=0.5)) as producer:
        producer.send("t", b"warm")
        producer.flush(SOON)
        yield producer, [(b"1", producer.send("t", b"1")), (b"2", producer.send("t", b"2", b"key"))]


@contextmanager
def full(kafka: FakeKafka, _: Path) -> Iterator[tuple[Producer, Sent]]:
    """The buffer is full, and another thread waits for room."""
    stuck(kafka)
    sent: Sent = []

    def send() -> None:
        for number in range(40):
            value = b"%d" % number + bytes(60_000)
            sent.append((value, producer.send("t", value)))

    with new(kafka, buffering=Buffering(bytes=1 << 20)) as producer:
        thread = threading.Thread(target=send)
        thread.start()
        eventually(lambda: producer._budget.waiting, "a thread waits for room")
        yield producer, sent
        kafka.clear_faults()
        thread.join(SOON)


@contextmanager
def closing(kafka: FakeKafka, _: Path) -> Iterator[tuple[Producer, Sent]]:
    """Another thread is closing it."""
    producer = new(kafka)
    sent = [(b"1", producer.send("t", b"1"))]
    producer.flush(SOON)
    stuck(kafka)
    sent.append((b"2", producer.send("t", b"2")))
    thread = threading.Thread(target=producer.close)
    thread.start()
    eventually(lambda: producer._closed, "it closes")
    yield producer, sent
    kafka.clear_faults()
    thread.join(SOON)


@contextmanager
def spooling(kafka: FakeKafka, folder: Path) -> Iterator[tuple[Producer, Sent]]:
    """Records wait on disk."""
    with new(kafka, spool=Spool(folder / "spool", write_ahead=True)) as producer:
        stuck(kafka)
        sent = [(b"%d" % number, producer.send("t", b"%d" % number)) for number in range(10)]
        producer.persist(SOON)
        yield producer, sent
        kafka.clear_faults()


@contextmanager
def closed(kafka: FakeKafka, _: Path) -> Iterator[tuple[Producer, Sent]]:
    producer = new(kafka)
    sent = [(b"1", producer.send("t", b"1"))]
    producer.close(SOON)
    yield producer, sent


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("state", [fresh, sending, waiting, full, closing, spooling, closed])
def test_a_fork_in_every_state(kafka: FakeKafka, tmp_path: Path, state: State, way: Callable[..., Any]) -> None:
    before = values(kafka)
    with state(kafka, tmp_path) as (producer, sent):
        errors = way(lambda: _in_child(producer, sent[-1][1] if sent else None))
        assert errors == dict.fromkeys(errors, UsedAfterFork.__name__)
        if state not in (closing, closed, full, spooling):
            sent.append((b"after", producer.send("t", b"after")))
            assert sent[-1][1].result(SOON).offset >= 0
    log = [value for value in values(kafka) if value != b"warm"]
    assert sorted(value or b"" for value in log) == sorted([value for value, _ in sent] + [b or b"" for b in before])
    whole = values(kafka)
    assert [whole[delivery.result(SOON).offset] for _, delivery in sent] == [value for value, _ in sent]


@pytest.mark.parametrize("forks", [5, pytest.param(150, marks=pytest.mark.long)])
def test_forks_at_random_moments(kafka: FakeKafka, tmp_path: Path, forks: int) -> None:
    chance = random.Random(forks)
    sent: list[tuple[bytes, Delivery]] = []
    over = threading.Event()
    options = {"buffering": Buffering(bytes=1 << 20), "spool": Spool(tmp_path / "spool", write_ahead=True)}
    with new(kafka, **options) as producer:

        def send(thread: int) -> None:
            number = 0
            while not over.is_set():
                value = b"%d/%d" % (thread, number) + bytes(500)
                try:
                    sent.append((value, producer.send("t", value, b"key" if number % 2 else None)))
                except BufferFull:
                    pass
                number += 1
                time.sleep(0.0005)

        threads = [threading.Thread(target=send, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(forks):
            time.sleep(chance.uniform(0, 0.02))
            errors = chance.choice(WAYS)(lambda: _in_child(producer, sent[-1][1] if sent else None))
            assert errors == dict.fromkeys(errors, UsedAfterFork.__name__)
        over.set()
        for thread in threads:
            thread.join(SOON)
        producer.flush(SOON)
    log = values(kafka)
    assert sorted(value or b"" for value in log) == sorted(value for value, _ in sent)
    assert [log[delivery.result(SOON).offset] for _, delivery in sent] == [value for value, _ in sent]
