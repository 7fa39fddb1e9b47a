"""The loop: each request has exactly one answer; commands, timers, errors of the actor, and the end."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.waiting import eventually

from ottla.config import Retry, Timeouts
from ottla.errors import ConnectionLost, OttlaError, RequestTimedOut
from ottla.events import ConnectionDown, ConnectionUp, Event, Events
from ottla.net import Cluster, Deadline
from ottla.net.loop import Answer, Loop
from ottla.testing import FakeKafka
from ottla.wire import messages

API_VERSIONS, VERSION = 18, 3
QUICK = Retry(initial=0.005, maximum=0.05)
TIMES = Timeouts(connect=1.0, request=2.0, total=2.0)


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka(topics={"t": 1}) as fake:
        yield fake


@pytest.fixture
def cluster(kafka: FakeKafka) -> Iterator[Cluster]:
    with Cluster(kafka.bootstrap, retry=QUICK, timeouts=TIMES, chance=random.Random(1)) as client:
        client.metadata(["t"])
        yield client


def question() -> list[bytes]:
    """A request that any broker answers."""
    entity = messages.request_type(API_VERSIONS, VERSION)
    fields = {"client_software_name": "ottla", "client_software_version": "1"}
    return [messages.encode_body(messages.compose(entity, fields))]


class Asking:
    """An actor that sends queued requests to broker 1 and keeps the answers."""

    def __init__(self, cluster: Cluster, *, seconds: float = 5.0) -> None:
        self.events: list[Event] = []
        self.loop: Loop[Any] = Loop(
            cluster, channel="asking", name="ottla-asking", most_requests=5, events=Events(self.events.append)
        )
        self.seconds = seconds
        self.queued: list[Any] = []
        self.answers: list[Answer[Any]] = []
        self.turns = 0
        self.began = self.ended = self.recovered = 0
        self.error: OttlaError | None = None
        self.until = float("inf")
        self.change: Callable[[], object] = lambda: None

    def begin(self) -> None:
        self.began += 1

    def turn(self, now: float) -> float:
        assert self.began == 1
        assert not self.ended
        self.turns += 1
        self.change()
        self.answers += self.loop.answers()
        link = self.loop.links.get(1)
        if link is None or (self.queued and not link.is_up):
            if link is not None:
                self.loop.links.connect(link, now)
            return self.loop.links.next_at(now)
        while self.queued and link.has_room:
            self.loop.request(self.queued.pop(0), link, API_VERSIONS, VERSION, question(), seconds=self.seconds)
        return self.until

    def recover(self) -> None:
        self.recovered += 1

    def end(self, error: OttlaError | None) -> None:
        self.ended += 1
        self.error = error

    def ask(self, *requests: Any) -> None:
        self.loop.call(lambda: self.queued.extend(requests))

    def got(self) -> list[Any]:
        return [answer.request for answer in list(self.answers)]


@pytest.fixture
def asking(cluster: Cluster) -> Iterator[Asking]:
    actor = Asking(cluster)
    yield actor
    actor.loop.stop(actor, Deadline.after(5.0))


def test_requests_come_back_as_answers_in_order(asking: Asking) -> None:
    asking.loop.start(asking)
    asking.ask(*range(50))
    eventually(lambda: len(asking.answers) == 50)
    assert asking.got() == list(range(50))
    assert all(answer.error is None and len(answer.body) for answer in asking.answers)
    assert [type(event) for event in asking.events] == [ConnectionUp]


@pytest.mark.parametrize("when", ["before", "after"])
def test_each_request_has_one_answer_whatever_becomes_of_the_connection(
    kafka: FakeKafka, asking: Asking, when: str
) -> None:
    asking.loop.start(asking)
    asking.ask("first")
    eventually(lambda: asking.got() == ["first"])
    if when == "before":
        kafka.down(1)
        asking.ask("a", "b", "c")
    else:
        kafka.silence("ApiVersions", times=3)
        asking.ask("a", "b", "c")
        link = asking.loop.links.find(1)
        eventually(lambda: link is not None and link.requests == 3)
        kafka.down(1)
        eventually(lambda: len(asking.answers) == 4)
        assert all(isinstance(answer.error, ConnectionLost) for answer in asking.answers[1:])
    eventually(lambda: any(isinstance(event, ConnectionDown) for event in asking.events))
    kafka.up(1)
    asking.ask("last")
    eventually(lambda: "last" in asking.got())
    assert sorted(asking.got()) == ["a", "b", "c", "first", "last"]
    link = asking.loop.links.find(1)
    assert link is not None
    assert link.requests == 0


def test_a_request_without_an_answer_times_out(kafka: FakeKafka, cluster: Cluster) -> None:
    actor = Asking(cluster, seconds=0.2)
    actor.loop.start(actor)
    try:
        actor.ask("first")
        eventually(lambda: actor.got() == ["first"])
        kafka.silence("ApiVersions", times=1)
        actor.ask("late")
        eventually(lambda: actor.got() == ["first", "late"])
        assert isinstance(actor.answers[1].error, RequestTimedOut)
    finally:
        actor.loop.stop(actor, Deadline.after(5.0))


def test_an_answer_that_makes_no_sense_costs_the_connection(asking: Asking) -> None:
    asking.loop.start(asking)
    asking.ask("first")
    eventually(lambda: asking.got() == ["first"])
    link = asking.answers[0].link
    asking.loop.result_of(lambda: asking.loop.distrust(link, OttlaError("nonsense")))
    assert link.is_away
    asking.ask("second")
    eventually(lambda: asking.got() == ["first", "second"])
    assert asking.answers[1].error is None


def test_commands_and_their_results_come_from_the_loop(asking: Asking) -> None:
    assert asking.loop.is_elsewhere, "it is about to be"
    asking.loop.start(asking)
    asking.loop.start(asking)
    thread = asking.loop.result_of(threading.current_thread)
    assert thread is not threading.current_thread()
    assert asking.loop.result_of(lambda: asking.loop.result_of(lambda: 3)) == 3, "asked from the loop itself"
    assert asking.began == 1
    asking.loop.stop(asking, Deadline.after(5.0))
    assert asking.loop.has_stopped
    assert asking.ended == 1
    assert asking.loop.result_of(threading.current_thread) is threading.current_thread()


def test_a_result_that_does_not_come_in_time_is_an_error(asking: Asking) -> None:
    going = threading.Event()
    asking.change = lambda: going.wait(10)
    asking.loop.start(asking)
    with pytest.raises(TimeoutError, match="ottla-asking"):
        asking.loop.result_of(lambda: None, Deadline.after(0.05))
    going.set()


def test_the_actor_is_called_again_at_the_time_it_names(asking: Asking) -> None:
    asking.ask("first")
    asking.loop.start(asking)
    eventually(lambda: asking.got() == ["first"])
    before = asking.turns
    asking.loop.call(lambda: setattr(asking, "until", time.monotonic() + 0.05))
    eventually(lambda: asking.turns > before + 1)
    asking.loop.call(lambda: setattr(asking, "until", float("inf")))


def test_an_error_of_the_actor_ends_the_loop_and_is_reported(asking: Asking, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise RuntimeError("a bug")

    asking.change = fail
    asking.loop.start(asking)
    eventually(lambda: asking.loop.has_stopped)
    assert str(asking.error) == "ottla-asking crashed: RuntimeError: a bug"
    assert "a bug" in caplog.text
    caplog.clear()


def test_a_loop_that_was_stopped_first_cannot_be_started(asking: Asking) -> None:
    asking.loop.stop(asking, Deadline.after(1.0))
    assert asking.loop.has_stopped
    asking.loop.start(asking)
    asking.loop.stop(asking, Deadline.after(1.0))
    assert (asking.began, asking.turns, asking.ended) == (0, 0, 1)


def test_stop_from_within_returns_at_once(asking: Asking) -> None:
    asking.loop.start(asking)
    asking.loop.call(lambda: asking.loop.stop(asking, Deadline.after(60.0)))
    eventually(lambda: asking.loop.has_stopped, seconds=10)
    assert asking.ended == 1


# Two drivers


class Driven(Asking):
    """Records which thread takes its turns, and runs a hook in the middle of each turn."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.drivers: list[int] = []
        self.is_turning = False

    def turn(self, now: float) -> float:
        assert not self.is_turning, "two turns at once"
        self.is_turning = True
        self.drivers.append(threading.get_ident())
        until = super().turn(now)
        self.is_turning = False
        return until

    def recover(self) -> None:
        super().recover()
        self.is_turning = False

    def drive(self, is_done: Callable[[], bool], seconds: float = 10.0) -> None:
        self.loop.drive(self, is_done, Deadline.after(seconds))

    def mine(self) -> int:
        return self.drivers.count(threading.get_ident())


@pytest.fixture
def driven(cluster: Cluster) -> Iterator[Driven]:
    actor = Driven(cluster)
    actor.loop.start(actor)
    yield actor
    actor.loop.stop(actor, Deadline.after(5.0))
    assert actor.loop.has_stopped


def test_a_program_that_waits_drives_and_the_other_thread_keeps_away(driven: Driven) -> None:
    driven.ask("first")
    driven.drive(lambda: driven.got() == ["first"])
    for number in range(200):
        driven.ask(number)
        driven.drive(lambda queued=number: queued in driven.got())  # type: ignore[misc]
    others = len(driven.drivers) - driven.mine()
    assert driven.got() == ["first", *range(200)]
    assert driven.mine() >= 400
    assert others < 100, "the other thread did the work"


def test_the_other_thread_steps_in_when_the_program_is_away(driven: Driven) -> None:
    for number in range(5):
        driven.drive(lambda: True)
        driven.ask(number)
        eventually(lambda: len(driven.answers) == number + 1)  # noqa: B023
    assert driven.got() == list(range(5))


def test_a_program_that_hands_over_is_relieved(driven: Driven) -> None:
    driven.drive(lambda: False, seconds=0.05)
    driven.loop.hand_over()
    before = len(driven.drivers)
    eventually(lambda: len(driven.drivers) > before)
    assert driven.drivers[-1] != threading.get_ident()


def test_a_call_of_another_thread_wakes_the_program_that_drives(driven: Driven) -> None:
    calls: list[int] = []
    caller = threading.Timer(0.05, lambda: driven.loop.call(lambda: calls.append(threading.get_ident())))
    caller.start()
    driven.drive(lambda: bool(calls))
    caller.join()
    assert calls == [threading.get_ident()]


def test_a_wait_ends_at_its_deadline_and_with_the_loop(driven: Driven) -> None:
    driven.drive(lambda: False, seconds=0.01)
    stopper = threading.Timer(0.05, driven.loop.stop, args=(driven, Deadline.after(5.0)))
    stopper.start()
    driven.drive(lambda: False, seconds=60.0)
    stopper.join()
    assert driven.ended == 1
    driven.drive(lambda: False, seconds=60.0)


@pytest.mark.parametrize("comes_back", [True, False], ids=["the-program", "the-other-thread"])
def test_after_an_interrupt_the_next_turn_begins_with_recovering(
    kafka: FakeKafka, driven: Driven, comes_back: bool
) -> None:
    driven.ask("first")
    driven.drive(lambda: driven.got() == ["first"])
    kafka.silence("ApiVersions", times=1)
    driven.ask("void")
    link = driven.loop.links.find(1)
    assert link is not None
    driven.drive(lambda: link.requests == 1)
    commands: list[str] = []

    def interrupted() -> None:
        commands.append("again")
        if len(commands) == 1:
            raise KeyboardInterrupt

    caller = threading.Timer(0.05, driven.loop.call, args=(interrupted,))
    caller.start()
    with pytest.raises(KeyboardInterrupt):
        driven.drive(lambda: False)
    caller.join()
    if comes_back:
        driven.drive(lambda: len(commands) == 2)
    eventually(lambda: len(commands) == 2, "what was interrupted is done again")
    assert driven.recovered == 1
    assert link.requests == 0
    driven.ask("last")
    eventually(lambda: driven.got() == ["first", "last"], "requests that were under way are void")


def test_a_signal_handler_that_waits_in_the_middle_of_a_turn_gets_an_error(driven: Driven) -> None:
    errors: list[str] = []

    def handler() -> None:
        try:
            driven.drive(lambda: False)
        except OttlaError as error:
            errors.append(str(error))
        assert not driven.loop.is_elsewhere
        driven.loop.stop(driven, Deadline.after(60.0))

    def in_a_turn() -> None:
        if threading.current_thread() is threading.main_thread() and not errors:
            handler()

    driven.change = in_a_turn
    driven.drive(lambda: bool(errors))
    assert "set a flag in the handler" in errors[0]
    eventually(lambda: driven.loop.has_stopped, seconds=10)


def test_a_signal_handler_that_comes_while_the_program_polls_may_wait_as_well(driven: Driven) -> None:
    came: list[int] = []

    def handler(*_: object) -> None:
        driven.drive(lambda: True)
        came.append(driven.mine())

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        driven.drive(lambda: bool(came))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert came
