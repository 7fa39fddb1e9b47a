"""The hub: takes events from whoever does the work and calls every sink with them, in the emitter's thread.

A sink that raises is logged once, counted and otherwise ignored, so that watching never harms what is watched.
The hub has no thread and no queue: a sink that is slow slows the emitter, and must do its waiting elsewhere.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Self

from ottla.errors import ConfigError
from ottla.events.event import Event

_log = logging.getLogger(__name__)

Sink = Callable[[Event], object]
"""Anything that can be called with an event; what it returns is ignored. `Events.close` calls its `close()`, if any."""


class Events:
    """Passes events on to sinks. Any thread may emit, subscribe and unsubscribe at any time.

    `active` says whether anybody listens: look at it first where building the event would cost something.
    """

    __slots__ = ("_lock", "_subscriptions", "active")

    def __init__(self, *sinks: Sink) -> None:
        self._lock = threading.Lock()
        self._subscriptions: tuple[_Subscription, ...] = ()
        self.active = False
        for sink in sinks:
            self.subscribe(sink)

    def subscribe(self, sink: Sink) -> Callable[[], None]:
        """Call `sink` with every event from now on. The function returned ends that, and does not close the sink."""
        if not callable(sink):
            raise ConfigError(f"a sink is called with each event, and {sink!r} cannot be called")
        subscription = _Subscription(sink)
        with self._lock:
            self._replace((*self._subscriptions, subscription))
        return lambda: self._remove(subscription)

    def emit(self, event: Event) -> None:
        """Call every sink with `event`. Takes no lock: it walks the sinks that were there when it began."""
        for subscription in self._subscriptions:
            try:
                subscription.sink(event)
            except KeyboardInterrupt:
                raise
            except BaseException:  # a sys.exit() in a sink must not end an I/O thread either
                self._failed(subscription, event)

    def close(self) -> None:
        """Take all sinks off and close those that can be closed."""
        with self._lock:
            leaving = self._subscriptions
            self._replace(())
        for sink in {id(one.sink): one.sink for one in leaving}.values():
            _close(sink)
        for one in leaving:
            one.report()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _remove(self, subscription: _Subscription) -> None:
        with self._lock:
            before = self._subscriptions
            self._replace(tuple(one for one in before if one is not subscription))
        if len(before) != len(self._subscriptions):
            subscription.report()

    def _replace(self, subscriptions: tuple[_Subscription, ...]) -> None:
        self._subscriptions = subscriptions
        self.active = bool(subscriptions)

    def _failed(self, subscription: _Subscription, event: Event) -> None:
        with self._lock:
            subscription.failures += 1
            first = subscription.failures == 1
        if first:
            _quietly(_log.exception, "sink %s raised on %s; from now on it is only counted", subscription, event.kind)


class _Subscription:
    """One sink in one hub, with the number of times that it raised. Compared by identity."""

    __slots__ = ("failures", "sink")

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.failures = 0

    def __str__(self) -> str:
        return _name(self.sink)

    def report(self) -> None:
        """Say at the end how often the sink failed, if it was more than the once that was logged."""
        if self.failures > 1:
            _quietly(_log.warning, "sink %s raised on %d events in all", self, self.failures)


def _name(sink: object) -> str:
    return str(getattr(sink, "__qualname__", type(sink).__qualname__))


def _close(sink: object) -> None:
    close = getattr(sink, "close", None)
    if callable(close):
        try:
            close()
        except Exception:
            _quietly(_log.exception, "sink %s raised when it was closed", _name(sink))


def _quietly(log: Callable[..., None], text: str, *args: object) -> None:
    # The sink that failed may be the log itself.
    try:
        log(text, *args)
    except Exception:  # noqa: S110
        pass
