"""A producer's life: before its first record, after its end, in a forked child and at the end of the interpreter."""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ottla import Batching, Producer
from ottla.errors import NotDelivered, OttlaError, UsedAfterFork
from ottla.testing import FakeKafka

from .stand import SOON, new, stuck, values


def test_constructing_connects_nothing() -> None:
    producer = Producer("127.0.0.1:9")
    assert threading.active_count() >= 1
    assert not any(thread.name.startswith("ottla-sender") for thread in threading.enumerate())
    producer.close()


def test_a_closed_producer_raises(kafka: FakeKafka) -> None:
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
    leftover = {thread for thread in set(threading.enumerate()) - before if "ottla" in thread.name}
    assert not leftover


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
        import ottla.produce.lifetimes as module
        module._EXIT_SECONDS = 0.5
        for i in range(100): producer.send('t', b'%d' % i)
        print(time.monotonic())
        """,
    )
    assert time.monotonic() - float(done.stdout) < 20, "from its last line to its end"
    assert "100 records were not delivered" in done.stderr


def test_several_unclosed_producers_share_the_time_at_exit(kafka: FakeKafka) -> None:
    """Found: ten seconds each, one after the other. None takes time from another that can deliver."""
    done = _script(
        kafka,
        """
        import time
        import ottla.produce.lifetimes as module
        module._EXIT_SECONDS = 8.0
        away = [ottla.Producer("127.0.0.1:9", delivery_timeout=600) for _ in range(8)]
        for one in away:
            one.send("t", b"never")
        producer.send("t", b"arrives")
        print(time.monotonic())
        """,
    )
    assert time.monotonic() - float(done.stdout) < 8.0 + 30.0, "not eight times eight"
    assert done.stderr.count("1 record was not delivered") == 8
    assert values(kafka) == [b"arrives"]


CHILD = """
    import multiprocessing, sys
    from concurrent.futures import ProcessPoolExecutor

    import ottla
    import ottla.produce.producer  # so that forked children need not

    BOOTSTRAP = {bootstrap!r}


    def child(number):
        producer = ottla.Producer(BOOTSTRAP, batching=ottla.Batching(linger=30))
        for i in range(50):
            producer.send("t", b"%d of %d" % (i, number))
        globals()["kept"] = producer
        if number == 1:
            sys.exit(3)


    if __name__ == "__main__":
        context = multiprocessing.get_context({method!r})
        if {method!r} == "forkserver":
            context.set_forkserver_preload(["ottla.produce.producer"])
        children = [context.Process(target=child, args=(number,)) for number in range(2)]
        for one in children:
            one.start()
        for one in children:
            one.join(60)
        assert [one.exitcode for one in children] == [0, 3], children
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            list(pool.map(child, [2]))
"""


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_children_of_multiprocessing_that_end_without_close_flush(
    kafka: FakeKafka, tmp_path: Path, method: str
) -> None:
    """Found: forked ones do not run atexit, and lost everything silently."""
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(CHILD.format(bootstrap=kafka.bootstrap, method=method)))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(value or b"" for value in values(kafka)) == sorted(
        b"%d of %d" % (i, number) for i in range(50) for number in range(3)
    )


def test_a_producer_imports_no_multiprocessing(kafka: FakeKafka) -> None:
    look = "import sys; print('multiprocessing' in sys.modules)"
    done = _script(kafka, f"producer.send('t', b'1'); producer.flush(30); {look}")
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_a_delivery_in_a_forked_child_raises_instead_of_waiting(kafka: FakeKafka) -> None:
    """Found: it waited forever."""
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    stuck(kafka)

    def use() -> None:
        for wait in (
            lambda: single.result(),
            lambda: single.exception(),
            lambda: many.result(),
            lambda: list(many.outcomes()),
            lambda: single.add_done_callback(print),
            lambda: asyncio.run(awaiting(single)),
            lambda: asyncio.run(awaiting(many)),
        ):
            try:
                wait()
            except UsedAfterFork as error:
                answers.put(str(error))
            else:
                answers.put("nothing was raised")
        answers.put(str((single.done, done.result().offset)))

    async def awaiting(delivery: Any) -> None:
        await delivery

    with new(kafka, batching=Batching(linger=0.2)) as producer:
        kafka.clear_faults()
        done = producer.send("t", b"0")
        done.result(SOON)
        stuck(kafka)
        single, many = producer.send("t", b"1"), producer.send_many("t", [b"2", b"3"])
        child = context.Process(target=use)
        child.start()
        child.join(SOON)
        assert child.exitcode == 0
        for _ in range(7):
            assert "made before fork(): only its own process learns" in answers.get()
        assert answers.get() == "(False, 0)"
        kafka.clear_faults()
        assert single.result(SOON).offset == 1
        assert many.result(SOON).records == 2
    answers.close()
    assert values(kafka) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("seconds", [math.inf, 1e300, None])
def test_a_wait_may_be_endless(kafka: FakeKafka, seconds: float | None) -> None:
    """Found: OverflowError."""
    with new(kafka) as producer:
        assert producer.send("t", b"1").result(seconds).offset == 0
        assert producer.send_many("t", [b"2"]).result(seconds).records == 1
        producer.send("t", b"3")
        producer.flush(seconds)
        producer.send("t", b"4")
        producer.close(seconds)
    assert len(values(kafka)) == 4


def test_a_wait_for_no_time_tells_at_once(kafka: FakeKafka) -> None:
    stuck(kafka)
    producer = new(kafka, delivery_timeout=2)
    delivery = producer.send("t", b"1")
    for seconds in (0, 0.0, -1, 0.01):
        with pytest.raises(TimeoutError, match="delivery continues"):
            delivery.result(seconds)
    with pytest.raises(TimeoutError):
        producer.flush(0.01)
    with pytest.raises(NotDelivered):
        producer.close(5)


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
