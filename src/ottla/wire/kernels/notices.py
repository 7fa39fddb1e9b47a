"""Says that a kernel is about to be compiled, which takes seconds, to who wants to know.

It imports nothing: a program can ask to be notified before it knows whether it needs a kernel.
"""

from __future__ import annotations

from collections.abc import Callable

_listeners: list[Callable[[], None]] = []


def notify_once(listener: Callable[[], None]) -> None:
    """Call this before the first kernel is compiled in this process; not if all are in the cache."""
    _listeners.append(listener)


def compiling() -> None:
    """Call all listeners, and forget them."""
    while _listeners:
        _listeners.pop()()
