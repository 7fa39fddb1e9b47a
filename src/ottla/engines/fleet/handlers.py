"""Calling a handler: refused beforehand if it cannot be called, and failed if what it returned has still to be run.

A function and its argument come in, nothing goes out. What the handler does is not known here.
"""

from __future__ import annotations

import inspect
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, TypeVar

from ottla.errors import InputError

T = TypeVar("T")


def call(handler: Callable[[T], object], argument: T) -> None:
    """Calls it. Raises `InputError` for a coroutine or generator that comes back: its work was not done."""
    returned: Any = handler(argument)
    if inspect.isawaitable(returned) or inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        if inspect.iscoroutine(returned) or inspect.isgenerator(returned):
            returned.close()
        raise InputError(
            f"the handler returned {type(returned).__name__}, which nobody runs, so nothing was done: write a plain"
            " function that returns when the work is done"
        )


def came_from_outside(error: BaseException) -> bool:
    """Whether a block was ended by somebody else, so that its own code has not failed: by Ctrl-C, another signal, or
    the end of the generator or task in which it runs."""
    if isinstance(error, Exception):
        return False
    if not isinstance(error, KeyboardInterrupt | SystemExit):
        return True  # GeneratorExit, and what asyncio and trio cancel with
    if threading.current_thread() is not threading.main_thread():
        return False  # signals are handled in the main thread
    return isinstance(error, KeyboardInterrupt) or _was_raised_by_a_signal(error.__traceback__)


def _was_raised_by_a_signal(trace: TracebackType | None) -> bool:
    """Whether a handler of a signal is among the functions that an exception has left."""
    handlers = {getattr(signal.getsignal(one), "__code__", None) for one in signal.valid_signals()} - {None}
    while trace is not None:
        frame: FrameType = trace.tb_frame
        if frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False
