"""The hub: passes events to every sink, in the emitter's thread.

Comes in: events. Goes out: calls of the sinks. A sink that raises is logged once, counted, and otherwise ignored, so
that monitoring never harms the work. The hub has no thread and no queue: a slow sink slows the emitter, and must wait
elsewhere.
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
"""Any callable that takes an event. Its result is ignored. `Events.close` calls its `close()`, if any."""


class Events:
    """Passes events to sinks. Any thread may emit, subscribe and unsubscribe at any time.

    `active` is true if there are sinks: check it first where building the event would be expensive.
    """

    __slots__ = ("_lock", "_subscriptions", "active")

    def __init__(self, *sinks: Sink) -> None:
        self._lock = threading.Lock()
        self._subscriptions: tuple[_Subscription, ...] = ()
        self.active = False
        for sink in sinks:
            self.subscribe(sink)

    def subscribe(self, sink: Sink) -> Callable[[], None]:
        """Call `sink` with every event from now on. Returns a function that removes it without closing it.

        Raises `ConfigError` if `sink` is not callable.
        """
        if not callable(sink):
            raise ConfigError(f"a sink is called with each event, and {sink!r} cannot be called")
        subscription = _Subscription(sink)
        with self._lock:
            self._replace((*self._subscriptions, subscription))
        return lambda: self._remove(subscription)

    def emit(self, event: Event) -> None:
        """Call every sink with `event`. Takes no lock: it iterates over the sinks present when it began."""
        for subscription in self._subscriptions:
            try:
                subscription.sink(event)
            except KeyboardInterrupt:
                raise
            except BaseException:  # a sys.exit() in a sink must not end an I/O thread either
                self._failed(subscription, event)

    def close(self) -> None:
        """Remove all sinks and close those that have a `close()`."""
        with self._lock:
            removed = self._subscriptions
            self._replace(())
        for sink in {id(subscription.sink): subscription.sink for subscription in removed}.values():
            _close(sink)
        for subscription in removed:
            subscription.report()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _remove(self, subscription: _Subscription) -> None:
        with self._lock:
            before = self._subscriptions
            self._replace(tuple(other for other in before if other is not subscription))
        if len(before) != len(self._subscriptions):
            subscription.report()

    def _replace(self, subscriptions: tuple[_Subscription, ...]) -> None:
        """Replace the tuple of subscriptions as a whole, so that `emit` needs no lock."""
        self._subscriptions = subscriptions
        self.active = bool(subscriptions)

    def _failed(self, subscription: _Subscription, event: Event) -> None:
        """Count a failure of a sink, and log the first one."""
        with self._lock:
            subscription.failures += 1
            first = subscription.failures == 1
        if first:
            _quietly(
                _log.exception, "sink %s raised on %s; further failures are only counted", subscription, event.kind
            )


class _Subscription:
    """A sink in a hub, and how often it raised. Compared by identity."""

    __slots__ = ("failures", "sink")

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.failures = 0

    def __str__(self) -> str:
        return _name(self.sink)

    def report(self) -> None:
        """Log how often the sink failed in total, if that was more than the one failure already logged."""
        if self.failures > 1:
            _quietly(_log.warning, "sink %s raised on %d events in total", self, self.failures)


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
    """Log, and ignore a failure of the log."""
    # The sink that failed may be the log itself.
    try:
        log(text, *args)
    except Exception:  # noqa: S110
        pass
