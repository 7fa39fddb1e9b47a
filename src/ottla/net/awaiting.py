"""Calls that block, for programs that `await`: each runs on a thread of its own, while the event loop goes on.

A blocking method comes in; a coroutine function with the same arguments, results and errors goes out. So there is one
implementation. This module knows nothing about what is called; it imports asyncio only for programs that await.
"""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from ottla.net.deadline import Deadline, LeavableDeadline

if TYPE_CHECKING:
    from concurrent.futures import Future

S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")


def awaitable(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Return the coroutine function of a blocking method.

    A task that is cancelled first waits until the call has ended: half of a commit is none.
    """

    @functools.wraps(method)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await on_thread(lambda: method(self, *args, **kwargs))

    call.__doc__ = f"`{method.__name__}` for asyncio, on a thread. A task that is cancelled first waits for its end."
    return call


async def on_thread(call: Callable[[], T]) -> T:
    """Run a blocking call on a new thread and return its result. Raises what it raises.

    A task that is cancelled waits for its end.
    """
    from asyncio import CancelledError

    future = _started(call)
    cancelled: CancelledError | None = None
    while not future.done():
        try:
            await ended(future)
        except CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from future.exception()
    return future.result()


async def until_left(call: Callable[[Deadline], T], deadline: Deadline) -> T:
    """Run a blocking call on a new thread, with a deadline that passes when the task is cancelled, which goes at once.

    So the thread ends soon after, and repeated calls that are all left do not pile up. Raises what the call raises.
    """
    limit = LeavableDeadline(deadline.at, deadline.started)
    try:
        future = _started(lambda: call(limit))
        await ended(future)
    except BaseException:
        limit.leave()
        raise
    return future.result()


def _started(call: Callable[[], T]) -> Future[T]:
    from concurrent.futures import Future

    future: Future[T] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            future.set_result(context.run(call))
        except BaseException as error:
            future.set_exception(error)

    # A daemon: a program that ends does not wait for a call that its task has left.
    threading.Thread(target=run, name="ottla-await", daemon=True).start()
    return future


async def ended(future: Future[Any]) -> None:
    """Wait for the end of a future of another thread. A task that is cancelled leaves the future alone."""
    from asyncio import Future as Waiting
    from asyncio import get_running_loop

    loop = get_running_loop()
    waiting: Waiting[None] = loop.create_future()

    def finish() -> None:
        if not waiting.done():
            waiting.set_result(None)

    def call(_: Future[Any]) -> None:
        try:
            loop.call_soon_threadsafe(finish)
        except RuntimeError:  # the loop was closed in the meantime, so no task waits
            pass

    future.add_done_callback(call)
    await waiting
