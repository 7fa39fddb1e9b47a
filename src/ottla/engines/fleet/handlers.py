"""Calls to user-supplied handlers: detects coroutines and generators that nothing would run, and tells whether an
exception is the handler's own failure or an interrupt from outside.

A function and its argument, or an exception, come in. This module does not know what a handler does.
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
    """Call a handler. Raises what it raises, and `InputError` if it returns a coroutine or a generator."""
    returned: Any = handler(argument)
    if inspect.isawaitable(returned) or inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        if inspect.iscoroutine(returned) or inspect.isgenerator(returned):
            returned.close()
        raise InputError(
            f"the handler returned a {type(returned).__name__}, which is never run, so no work was done: write a plain"
            " function that returns when the work is done"
        )


def came_from_outside(error: BaseException) -> bool:
    """Whether a block was interrupted from outside, so that its own code has not failed.

    That is Ctrl-C, a signal handler that ends the program, or the end of the generator or task around the block.
    """
    if isinstance(error, Exception):
        return False
    if not isinstance(error, KeyboardInterrupt | SystemExit):
        return True  # GeneratorExit, and what asyncio and trio cancel with
    if threading.current_thread() is not threading.main_thread():
        return False  # Python runs signal handlers only in the main thread
    return isinstance(error, KeyboardInterrupt) or _was_raised_by_a_signal(error.__traceback__)


def _was_raised_by_a_signal(trace: TracebackType | None) -> bool:
    """Whether the traceback contains the code of an installed signal handler."""
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()} - {None}
    while trace is not None:
        frame: FrameType = trace.tb_frame
        if frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False
