"""A producer's life: before its first record, after its end, in a forked child and at the end of the interpreter."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from ottla import Batching, Producer
from ottla.errors import OttlaError, UsedAfterFork
from ottla.testing import FakeKafka

from .stand import SOON, new, stuck, values


def test_constructing_connects_nothing() -> None:
    producer = Producer("127.0.0.1:9")
    assert threading.active_count() >= 1
    assert not any(thread.name.startswith("ottla-sender") for thread in threading.enumerate())
    producer.close()


def test_a_closed_producer_says_so(kafka: FakeKafka) -> None:
    producer = new(kafka)
    producer.send("t", b"1")
    producer.close()
    producer.close()
    for use in (
        lambda: producer.send("t", b"2"),
        lambda: producer.send_many("t", [b"2"]),
        lambda: producer.send_table("t", pa.table({"value": [b"2"]})),
        lambda: producer.partition_for("t"),
        lambda: producer.flush(),
    ):
        with pytest.raises(OttlaError, match="this producer was closed"):
            use()
    assert "closed" in repr(producer)
    assert values(kafka) == [b"1"]


def test_a_closed_producer_leaves_no_thread_behind(kafka: FakeKafka) -> None:
    before = set(threading.enumerate())
    with new(kafka) as producer:
        producer.send("t", b"1").result(SOON)
    left = {thread for thread in set(threading.enumerate()) - before if "ottla" in thread.name}
    assert not left


def _use_in_child(producer: Producer, answers: Any) -> None:
    started = time.monotonic()
    for use in (lambda: producer.send("t", b"child"), lambda: producer.send_many("t", [b"child"]), producer.flush):
        try:
            use()
        except UsedAfterFork as error:
            answers.put((str(error), time.monotonic() - started))
        else:
            answers.put(("nothing was raised", 0.0))
    producer.close()


def test_a_forked_child_gets_an_error_at_once(kafka: FakeKafka) -> None:
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    with new(kafka, batching=Batching(linger=0.2)) as producer:
        producer.send("t", b"1").result(SOON)
        delivery = producer.send("t", b"2")  # an open chunk that the child must not append to
        child = context.Process(target=_use_in_child, args=(producer, answers))
        child.start()
        child.join(SOON)
        assert child.exitcode == 0
        for _ in range(3):
            text, seconds = answers.get()
            assert f"made in process {os.getpid()} before fork()" in text
            assert seconds < 5
        delivery.result(SOON)
    answers.close()
    assert values(kafka) == [b"1", b"2"]


def _script(kafka: FakeKafka, body: str) -> subprocess.CompletedProcess[str]:
    program = f"import ottla\nproducer = ottla.Producer({kafka.bootstrap!r}, batching=ottla.Batching(linger=30))\n"
    return subprocess.run(
        [sys.executable, "-c", program + textwrap.dedent(body)], capture_output=True, text=True, timeout=60, check=False
    )


def test_an_interpreter_that_ends_without_close_flushes(kafka: FakeKafka) -> None:
    done = _script(kafka, "for i in range(100): producer.send('t', b'%d' % i)\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert values(kafka) == [b"%d" % i for i in range(100)]


def test_an_interpreter_that_ends_says_what_it_could_not_send(kafka: FakeKafka) -> None:
    stuck(kafka)
    done = _script(
        kafka,
        """
        import time
        import ottla.produce.producer as module
        module._EXIT_SECONDS = 0.5
        for i in range(100): producer.send('t', b'%d' % i)
        print(time.monotonic())
        """,
    )
    assert time.monotonic() - float(done.stdout) < 20, "from its last line to its end"
    assert "100 records were not delivered" in done.stderr


def test_rows_that_are_handed_in_while_the_producer_closes_are_refused(kafka: FakeKafka) -> None:
    producer = new(kafka)
    producer.send("t", b"before").result(SOON)

    def closing() -> Iterator[bytes]:
        yield b"1"
        producer.close(SOON)
        yield b"2"

    with pytest.raises(OttlaError, match="closed"):
        producer.send_many("t", closing())
    assert values(kafka) == [b"before"]
