"""A fork in every state of a reader, a consumer and an admin: the child gets an error or drops what it has, and the
parent continues."""

from __future__ import annotations

import gc
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest
from tests.consume.consuming import new_consumer, read
from tests.forking import WAYS
from tests.interrupting import Interrupter, in_time
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.errors import OttlaError, UsedAfterFork
from ottla.fetch.reader import Reader
from ottla.testing import FakeKafka

from .subjects import RECORDS, SUBJECTS, TOPIC, Consuming, Reading, Subject, stock
from .test_interrupts import FOLDERS

# Threads are running: that is what these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
NEEDS_NOTHING = {"position", "records", "iterate", "read on"}
"""Calls that send no request, or only if something is left to do."""
Kind = Callable[[FakeKafka, random.Random], Subject]
State = Callable[[Subject], Any]


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka(brokers=2, auto_create=None) as cluster:
        stock(cluster)
        yield cluster


def _in_child(subject: Subject, iterators: list[Iterator[object]]) -> dict[str, str]:
    """Return what the child gets for each use. It may also close and drop everything without harm."""
    uses: dict[str, Callable[[], object]] = {name: call for name, call in subject.calls.items() if name != "close"}
    # What was fetched before the fork may come first.
    uses |= {f"iterator {number}": partial(list, iterator) for number, iterator in enumerate(iterators)}
    results: dict[str, str] = {}
    for name, use in uses.items():
        try:
            use()
            results[name] = "nothing was raised"
        except BaseException as error:
            results[name] = type(error).__name__
    repr(subject.client)
    iterators.clear()
    subject.client.close()
    subject.client = None
    gc.collect()
    return results


def _dropped(subject: Subject, iterators: list[Iterator[object]]) -> dict[str, str]:
    """The child uses nothing."""
    iterators.clear()
    subject.client = None
    gc.collect()
    return {}


# The states: each hands out the iterators that are open in it


@contextmanager
def quiet(_: Subject) -> Iterator[list[Iterator[object]]]:
    """Used before, and idle."""
    yield []


@contextmanager
def iterating(subject: Subject) -> Iterator[list[Iterator[object]]]:
    """In the middle of iterators."""
    client = subject.client
    made: list[Iterator[object]] = []
    if isinstance(subject, Reading):
        made = [client.read("t"), client.read("t", stop=None), client.batches("t"), client.decoded("t")]
        for iterator in made:
            next(iterator)
    if isinstance(subject, Consuming):
        made = [subject.open_records()]
    yield made
    made.clear()


@contextmanager
def working(subject: Subject) -> Iterator[list[Iterator[object]]]:
    """Another thread is in the middle of calls."""
    over, failed, count = threading.Event(), list[BaseException](), 0

    def work() -> None:
        nonlocal count
        calls = [call for name, call in subject.calls.items() if name not in ("close", "read on", "read a part")]
        try:
            while not over.is_set():
                calls[count % len(calls)]()
                count += 1
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        eventually(lambda: count > 3 or failed, "it works")
        yield []
    finally:
        over.set()
        thread.join(60)
    assert failed == []


@contextmanager
def closing(subject: Subject) -> Iterator[list[Iterator[object]]]:
    """Another thread closes it."""
    client = subject.client
    thread = threading.Thread(target=client.close)
    thread.start()
    yield []
    thread.join(60)


@contextmanager
def closed(subject: Subject) -> Iterator[list[Iterator[object]]]:
    subject.client.close()
    yield []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("state", [quiet, iterating, working, closing, closed])
@pytest.mark.parametrize("kind", SUBJECTS)
def test_a_fork_in_every_state(
    kafka: FakeKafka, kind: Kind, state: State, way: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Found: a child waited for the end of a thread that only the parent has.
    monkeypatch.setattr("ottla.fetch.fetcher._STOP_SECONDS", 1000.0)
    subject = kind(kafka, random.Random(0))
    try:
        for child in (_in_child, _dropped):
            if child is _dropped and state in (closing, closed):
                continue
            with state(subject) as iterators:
                results = way(lambda work=child, made=iterators: work(subject, made))
            if state not in (closing, closed):
                wrong = {name: error for name, error in results.items() if error != UsedAfterFork.__name__}
                assert wrong.keys() <= NEEDS_NOTHING, wrong
                in_time(subject.check)
    finally:
        in_time(subject.close)


@pytest.mark.parametrize("forks", [4, pytest.param(100, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", SUBJECTS)
def test_forks_in_the_middle_of_calls(kafka: FakeKafka, kind: Kind, forks: int) -> None:
    """As a signal handler would make the child: it is in the middle of the call as well."""
    chance = random.Random(forks)
    subject = kind(kafka, chance)
    codes: list[dict[str, str]] = []

    def fork() -> None:
        codes.append(chance.choice(WAYS)(lambda: _in_child(subject, [])))

    try:
        while len(codes) < forks:
            name = chance.choice([name for name in subject.calls if name not in ("close", "read on")])
            with suppress(OttlaError):
                Interrupter(fork, *FOLDERS).during(subject.calls[name], int(10 ** chance.uniform(0, 3.3)))
        in_time(subject.check)
    finally:
        in_time(subject.close)
    for results in codes:
        wrong = {name: error for name, error in results.items() if error != UsedAfterFork.__name__}
        assert wrong.keys() <= NEEDS_NOTHING, wrong


@pytest.mark.parametrize("kind", SUBJECTS)
def test_a_child_makes_its_own(kafka: FakeKafka, kind: Kind) -> None:
    """While another thread of the parent is busy with the parent's."""
    subject = kind(kafka, random.Random(0))

    def own() -> int:
        with new_consumer(kafka.bootstrap, group=f"own-{os.getpid()}", topics=TOPIC) as consumer:
            count = len(read(consumer, RECORDS))
        with Reader(kafka.bootstrap) as reader, Admin(kafka.bootstrap) as admin:
            assert TOPIC in admin.topic_names()
            return count + reader.count(TOPIC)

    try:
        with working(subject):
            assert [way(own) for way in WAYS] == [2 * RECORDS] * len(WAYS)
    finally:
        in_time(subject.close)
