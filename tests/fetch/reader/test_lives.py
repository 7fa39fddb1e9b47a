"""Using a reader from several threads, closing, interrupting and forking."""

from __future__ import annotations

import _thread
import contextlib
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from tests.fetch.watching import QUICK, TIMES, by_partition, names, new_reader, open_sockets, threads_of_reading, values
from tests.interrupting import interrupted
from tests.waiting import eventually

from ottla.errors import ConnectionLost, OttlaError, UsedAfterFork
from ottla.fetch.reader import Reader
from ottla.model import OffsetRange
from ottla.net import Cluster
from ottla.testing import FakeKafka

from .stand import MANY


def test_several_reads_at_once_on_one_reader(reader: Reader) -> None:
    results: list[dict[int, list[int]]] = []
    threads = [threading.Thread(target=lambda: results.append(by_partition(reader.read("many")))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert results == [MANY] * 6


def test_two_iterators_may_be_read_in_turn(reader: Reader) -> None:
    pairs = list(zip(names(reader.read("t")), names(reader.read("t")), strict=True))
    assert len(pairs) == 100
    assert all(left == right for left, right in pairs)


def test_one_range_after_another_is_read_over_the_same_connection(kafka: FakeKafka, reader: Reader) -> None:
    def opened() -> int:
        return sum(request.api == "ApiVersions" for request in kafka.requests)

    list(reader.read(OffsetRange("t", 0, 0, 10)))
    before = opened()
    for start in range(10, 100, 10):
        assert len(list(names(reader.read(OffsetRange("t", 0, start, start + 10))))) == 10
    assert opened() == before


def test_a_reader_that_is_closed_leaves_a_cluster_to_others_as_it_found_it(kafka: FakeKafka) -> None:
    with Cluster(kafka.bootstrap) as cluster, Reader(cluster) as other:
        list(other.read("many"))
        before = open_sockets()
        for _ in range(3):
            with Reader(cluster) as reader:
                assert by_partition(reader.read("many")) == MANY
        eventually(lambda: open_sockets() <= before, lambda: f"{before} sockets as before, not {open_sockets()}")
        assert by_partition(other.read("many")) == MANY


def test_an_iterator_that_is_closed_early_leaves_nothing_behind(kafka: FakeKafka, reader: Reader) -> None:
    list(reader.read("many"))
    before = open_sockets()
    for _ in range(5):
        reading = reader.read("many", 0, None)
        next(reading)
        assert threads_of_reading()
        reading.close()
        assert not threads_of_reading()
    for _ in reader.read("many"):
        break
    assert not threads_of_reading()
    # One connection to each broker may have been opened just then; it is kept for the next read.
    eventually(lambda: open_sockets() <= before + 4, f"about {before} sockets as before, not {open_sockets()}")


def test_an_iterator_that_is_never_begun_costs_nothing(reader: Reader) -> None:
    reading = reader.read("t")
    assert not threads_of_reading()
    del reading


def test_closing_a_reader_ends_iterators_that_are_open(kafka: FakeKafka) -> None:
    before = open_sockets()
    reader = new_reader(kafka.bootstrap)
    reading = reader.read("many", 0, None)
    next(reading)
    reader.close()
    assert not threads_of_reading()
    with pytest.raises(ConnectionLost, match="closed"):
        list(reading)
    with pytest.raises(ConnectionLost, match="closed"):
        reader.read("t")
    eventually(lambda: open_sockets() <= before, "the sockets are closed")


def test_closing_a_reader_ends_its_iterators_although_the_cluster_is_shared(kafka: FakeKafka) -> None:
    with Cluster(kafka.bootstrap, retry=QUICK, timeouts=TIMES) as shared:
        with Reader(shared) as reader:
            reading = reader.read("t", 0, None)
            next(reading)
        assert not threads_of_reading()
        with pytest.raises(ConnectionLost, match="closed"):
            next(reading)
        with Reader(shared) as another:
            assert another.count("t") == 100


def test_closing_wakes_a_thread_that_waits_for_records(kafka: FakeKafka) -> None:
    reader = new_reader(kafka.bootstrap)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            list(reader.read("none", 0, None))
        except OttlaError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    kafka.wait_for_request("Fetch")
    began = time.monotonic()
    reader.close()
    thread.join(5)
    assert not thread.is_alive()
    assert time.monotonic() - began < 3
    assert [type(error) for error in errors] == [ConnectionLost]


def test_ctrl_c_ends_a_wait_at_once_and_the_reader_can_be_used_again(kafka: FakeKafka, reader: Reader) -> None:
    pressed: list[float] = []

    def press() -> None:
        kafka.wait_for_request("Fetch")
        pressed.append(time.monotonic())
        _thread.interrupt_main()

    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        list(reader.read("none", 0, None))
    assert time.monotonic() - pressed[0] < 2
    thread.join()
    assert not threads_of_reading()
    assert reader.count("t") == 100


# A socket that was made at that very instruction is closed by the garbage collector, which says so.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_at_any_instruction_leaves_no_thread_when_the_reader_is_closed(kafka: FakeKafka) -> None:
    def press() -> None:
        raise KeyboardInterrupt

    def work(reader: Reader) -> None:
        assert len(values(reader.read(OffsetRange("t", 0, 0, 100)))) == 100

    for step in range(1, 10_000, 5):
        reached = True
        with new_reader(kafka.bootstrap) as reader, contextlib.suppress(KeyboardInterrupt):
            doing = partial(work, reader)
            reached = interrupted(doing, step, press, files=("fetch/reader.py", "fetch/buffer.py", "fetch/fetcher.py"))
        eventually(lambda: not threads_of_reading(), "no thread is left")
        if not reached:
            assert step > 300, "it was interrupted in many places"
            return
    pytest.fail("reading has no end")


def _child(reading: Iterator[pa.RecordBatch], reader: Reader, queue: Any) -> None:
    for call in (lambda: next(reading), lambda: reader.read("t"), lambda: reader.count("t")):
        try:
            call()
            queue.put("nothing")
        except UsedAfterFork as error:
            queue.put(str(error))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_gets_an_error_at_once_and_the_parent_reads_on(kafka: FakeKafka, reader: Reader) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    reading = reader.read("many", 0, 500)
    first = next(reading)
    child = context.Process(target=_child, args=(reading, reader, queue))
    child.start()
    answers = [queue.get(timeout=10) for _ in range(3)]
    child.join(10)
    queue.close()
    assert child.exitcode == 0
    assert all(f"created in process {os.getpid()} before fork()" in answer for answer in answers)
    assert first.num_rows + sum(batch.num_rows for batch in reading) == 2000
