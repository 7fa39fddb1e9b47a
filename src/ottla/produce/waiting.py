"""How a program waits for a delivery: blocking, by a callback, or in asyncio.

A delivery comes in, which knows whether it is done and from which shipments it hears. The thread that settles shipments
calls what waits. This module does not know what an outcome is.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Generator
from typing import Any

from ottla.net.waiting import Flag

_log = logging.getLogger(__name__)
SENDER_THREAD = "ottla-sender"
"""How the names of the threads that deliver begin."""


def is_sender_thread() -> bool:
    """Whether this is the sender's thread, which runs callbacks, hooks and event sinks."""
    return threading.current_thread().name.startswith(SENDER_THREAD)


def check_may_wait(what: str) -> None:
    """Raises `RuntimeError` on the sender's thread, which would wait for itself."""
    if is_sender_thread():
        raise RuntimeError(f"a callback must not wait for {what}: it runs on the thread that delivers")


def wait(delivery: Any, timeout: float | None) -> None:
    """Block until the delivery is done.

    Raises `TimeoutError`, `UsedAfterFork`, and `RuntimeError` on the sender's thread.
    """
    if delivery.done:
        return
    _check_process(delivery)
    check_may_wait("a delivery")
    if timeout is None or timeout > 0:
        is_done = Flag()
        forget = call_when_done(delivery, lambda _: is_done.set())
        try:
            while not is_done.wait(timeout) and timeout in (None, math.inf):
                pass
        finally:
            forget()
    if not delivery.done:
        raise TimeoutError(f"no outcome after {timeout or 0:.1f} s; delivery continues")


def call_when_done(delivery: Any, function: Callable[[Any], None]) -> Callable[[], None]:
    """Call `function` once, as soon as the delivery is done. Returns a function that cancels the call."""
    calls = [function]
    """The thread that takes it out calls it, so it is called once."""

    def check() -> bool:
        if calls and delivery.done:
            try:
                call = calls.pop()
            except IndexError:
                return True  # another thread took it
            _guarded(call, delivery)
        return not calls

    for shipment in delivery._shipments():
        shipment.watch(check)
    check()  # what has no rows has no shipment to watch

    def forget() -> None:
        calls.clear()
        for shipment in delivery._shipments():
            shipment.unwatch(check)

    return forget


def add_callback(delivery: Any, function: Callable[[Any], None]) -> None:
    """Add a callback; at once if the delivery is done, which is allowed even in a forked child."""
    if not delivery.done:
        _check_process(delivery)
    call_when_done(delivery, function)


def awaited(delivery: Any) -> Generator[Any, None, None]:
    """Suspend the awaiting task until the delivery is done. The sender's thread wakes its event loop."""
    if delivery.done:
        return
    _check_process(delivery)
    import asyncio  # a program that awaits has imported it already

    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def finish() -> None:
        if not future.done():
            future.set_result(None)

    def wake(_: Any) -> None:
        try:
            loop.call_soon_threadsafe(finish)
        except RuntimeError:  # the event loop was closed meanwhile: nothing waits any more
            pass

    forget = call_when_done(delivery, wake)
    try:
        yield from future
    finally:
        forget()


def _check_process(delivery: Any) -> None:
    for shipment in delivery._shipments():
        shipment.check_process()


def _guarded(function: Callable[[Any], None], delivery: Any) -> None:
    """Call a function of the program and log what it raises."""
    try:
        function(delivery)
    except BaseException:  # SystemExit and the like must not end the sender, nor keep others waiting
        _log.exception("a delivery callback raised; the delivery itself is not affected")
