"""The hub: every sink gets every event, and no sink does harm."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from ottla.errors import ConfigError
from ottla.events import Event, Events, Flushed, LogSink

from .samples import in_threads, samples

EVENT = Flushed("clicks", 0, 1, 2, 3)


@pytest.fixture(autouse=True)
def fast_switching() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def ignore(event: Event) -> None:
    """A sink."""


def raising(error: BaseException) -> Callable[[Event], None]:
    def sink(event: Event) -> None:
        raise error

    return sink


class Closable:
    def __init__(self, error: Exception | None = None) -> None:
        self.closed = 0
        self.error = error

    def __call__(self, event: Event) -> None:
        pass

    def close(self) -> None:
        self.closed += 1
        if self.error:
            raise self.error


def test_every_sink_gets_every_event_in_order() -> None:
    first: list[Event] = []
    second: list[Event] = []
    hub = Events(first.append, second.append)
    for event in samples():
        hub.emit(event)
    assert [str(event) for event in first] == [str(event) for event in second] == [str(event) for event in samples()]


def test_a_hub_is_active_while_it_has_sinks() -> None:
    hub = Events()
    states = [hub.active]
    hub.emit(EVENT)
    leave = hub.subscribe(ignore)
    states.append(hub.active)
    leave()
    states.append(hub.active)
    assert states == [False, True, False]


def test_unsubscribing_twice_takes_only_the_one_sink_off() -> None:
    got: list[Event] = []
    hub = Events(got.append)
    leave = hub.subscribe(got.append)
    leave()
    leave()
    hub.emit(EVENT)
    assert got == [EVENT]


def test_what_cannot_be_called_is_refused_as_a_sink() -> None:
    with pytest.raises(ConfigError, match="42 cannot be called"):
        Events(42)  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(3)], ids=["error", "exit"])
def test_a_sink_that_raises_does_no_harm_and_is_logged_once(
    caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    got: list[Event] = []
    hub = Events(raising(error), got.append)
    for _ in range(5):
        hub.emit(EVENT)
    assert len(got) == 5
    assert len(caplog.records) == 1
    assert "raising.<locals>.sink raised on flushed" in caplog.text
    hub.close()
    assert "raised on 5 events in total" in caplog.text


def test_an_interrupt_by_the_user_passes_through() -> None:
    with pytest.raises(KeyboardInterrupt):
        Events(raising(KeyboardInterrupt())).emit(EVENT)


def test_two_sinks_that_raise_are_both_named(caplog: pytest.LogCaptureFixture) -> None:
    class Other:
        def __call__(self, event: Event) -> None:
            raise ValueError("other")

    hub = Events(raising(RuntimeError("one")), Other())
    hub.emit(EVENT)
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
    assert "Other raised" in caplog.text


def test_a_log_that_raises_does_no_harm() -> None:
    class Broken(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            raise OSError("disk full")

    broken = Broken()
    logger = logging.getLogger("ottla.events")
    logger.addHandler(broken)
    got: list[Event] = []
    try:
        Events(LogSink(levels={Flushed: logging.ERROR}), got.append).emit(EVENT)
    finally:
        logger.removeHandler(broken)
    assert got == [EVENT]


def test_closing_closes_each_sink_once_also_after_one_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    bad, good = Closable(OSError("gone")), Closable()
    with Events(bad, good, good, ignore) as hub:
        assert good.closed == 0
    hub.close()
    assert (bad.closed, good.closed, hub.active) == (1, 1, False)
    assert "Closable raised when it was closed" in caplog.text


def test_a_sink_may_subscribe_and_unsubscribe_while_it_is_called() -> None:
    got: list[Event] = []
    hub = Events()

    def once(event: Event) -> None:
        leave()
        hub.subscribe(got.append)

    leave = hub.subscribe(once)
    hub.emit(EVENT)
    assert got == []
    hub.emit(EVENT)
    assert got == [EVENT]


def test_no_event_is_lost_or_doubled_while_others_come_and_go() -> None:
    got: list[Event] = []
    hub = Events(got.append)
    stop = threading.Event()

    def come_and_go() -> None:
        while not stop.is_set():
            hub.subscribe(ignore)()

    restless = [threading.Thread(target=come_and_go) for _ in range(3)]
    for thread in restless:
        thread.start()
    in_threads(3, lambda: hub.emit(EVENT), times=5_000)
    stop.set()
    for thread in restless:
        thread.join(60)
    assert len(got) == 15_000
    assert hub.active


def test_failures_from_many_threads_are_all_counted(caplog: pytest.LogCaptureFixture) -> None:
    hub = Events(raising(RuntimeError("no")))
    in_threads(4, lambda: hub.emit(EVENT), times=500)
    hub.close()
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "raised on 2000 events in total" in caplog.text
