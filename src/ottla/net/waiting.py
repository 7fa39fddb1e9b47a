"""Waiting and counting between threads without a lock that an interrupt could leave in a wrong state.

`threading.Event` and `Condition` share one lock between those who wait and the one who wakes them. A Ctrl-C in the
middle of a wait can leave it acquired, or released in the hands of the other side: then the thread that wakes dies of a
RuntimeError, or waits for ever. And a signal handler runs in the middle of whatever its thread does: it waits for ever
for a lock that the interrupted code holds. So nothing here holds a lock over more than one step of the interpreter:
each waiter has a lock of its own, which the other side only releases, and lists and deques are changed by single calls
of their methods, which the interpreter does not interrupt.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable

from ottla.config import LONGEST


class Waiters:
    """Threads that wait for a change. The change comes first, then `notify_all`."""

    __slots__ = ("_locks",)

    def __init__(self) -> None:
        self._locks: list[threading.Lock] = []

    def __len__(self) -> int:
        return len(self._locks)

    def wait(self, seconds: float | None, *, unless: Callable[[], bool]) -> None:
        """Waits for the next `notify_all`, at most for so long; not at all if `unless` is true by now."""
        lock = threading.Lock()
        lock.acquire()
        self._locks.append(lock)
        try:
            # First listed, then looked: a change before the look is seen, one after it finds the lock.
            if not unless():
                lock.acquire(timeout=LONGEST if seconds is None else min(max(0.0, seconds), LONGEST))
        finally:
            self._forget(lock)

    def notify_all(self) -> None:
        """Those who wait look again."""
        for lock in tuple(self._locks):
            try:
                lock.release()
            except RuntimeError:
                pass  # another thread has released it
            self._forget(lock)

    def _forget(self, lock: threading.Lock) -> None:
        try:
            self._locks.remove(lock)
        except ValueError:
            pass  # the other side has


class Flag:
    """Like `threading.Event`, but for `clear`: once set, it stays so."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters = Waiters()

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._is_set

    def set(self) -> None:
        """Whoever waits goes on."""
        self._is_set = True
        self._waiters.notify_all()

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until it is set, at most for so long; whether it is."""
        if not self._is_set:
            self._waiters.wait(seconds, unless=self.is_set)
        return self._is_set


class Total:
    """A sum that any thread adds to, also a signal handler in the middle of another addition.

    `total += amount` is three steps, between which another addition can get lost. Here an amount is put into a queue,
    and taking it out and adding it is one call: of an iterator that runs without the interpreter.
    """

    __slots__ = ("_amounts", "_sums")

    def __init__(self) -> None:
        self._amounts: deque[int] = deque()
        self._sums = itertools.accumulate(iter(self._amounts.popleft, None))

    def add(self, amount: int) -> int:
        """Adds, and tells the sum."""
        self._amounts.append(amount)
        while True:
            try:
                return next(self._sums)
            except IndexError:  # another thread has added it
                self._amounts.append(0)

    @property
    def value(self) -> int:
        """The sum."""
        total = self.add(0)
        while self._amounts:  # those of threads that were interrupted before they could add them
            try:
                total = next(self._sums)
            except IndexError:
                pass
        return total
