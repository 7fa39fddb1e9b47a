"""Waiting and counting across threads, safe against Ctrl-C and signal handlers.

`threading.Event` and `Condition` share one lock between the waiting threads and the one that wakes them. Ctrl-C in the
middle of a wait can leave that lock acquired, or released while the other side holds it: then the waking thread dies of
a `RuntimeError`, or blocks forever. A signal handler, too, runs in the middle of whatever its thread does, and blocks
forever on a lock that the interrupted code holds. So nothing here holds a lock for more than one step of the
interpreter: each waiter has a lock of its own, which the other side only releases, and lists and deques are changed by
single method calls, which CPython does not interrupt.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable

from ottla.config import LONGEST


class Waiters:
    """Threads that wait for a change. Make the change first, then call `notify_all`."""

    __slots__ = ("_locks",)

    def __init__(self) -> None:
        self._locks: list[threading.Lock] = []

    def __len__(self) -> int:
        return len(self._locks)

    def wait(self, seconds: float | None, *, unless: Callable[[], bool]) -> None:
        """Wait for the next `notify_all`, at most `seconds` (None: no limit), unless `unless` is already true."""
        lock = threading.Lock()
        lock.acquire()
        self._locks.append(lock)
        try:
            # First register, then check: a change before the check is seen, one after it finds the lock.
            if not unless():
                lock.acquire(timeout=LONGEST if seconds is None else min(max(0.0, seconds), LONGEST))
        finally:
            self._forget(lock)

    def notify_all(self) -> None:
        """Wake all waiting threads."""
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
            pass  # the other side has removed it


class Flag:
    """Like `threading.Event`, but without `clear`."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters = Waiters()

    def is_set(self) -> bool:
        """Whether the flag is set."""
        return self._is_set

    def set(self) -> None:
        """Set the flag and wake all waiting threads."""
        self._is_set = True
        self._waiters.notify_all()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the flag is set, at most `seconds` (None: no limit). Returns whether it is set."""
        if not self._is_set:
            self._waiters.wait(seconds, unless=self.is_set)
        return self._is_set


class Total:
    """A sum that any thread may add to, even a signal handler in the middle of another addition.

    `total += amount` is three steps, between which another addition can get lost. Here an amount is put into a queue,
    and one call takes it out and adds it: `next` of an iterator that is implemented in C.
    """

    __slots__ = ("_amounts", "_sums")

    def __init__(self) -> None:
        self._amounts: deque[int] = deque()
        self._sums = itertools.accumulate(iter(self._amounts.popleft, None))

    def add(self, amount: int) -> int:
        """Add an amount and return the sum."""
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
        while self._amounts:  # from threads that were interrupted before they could add them
            try:
                total = next(self._sums)
            except IndexError:
                pass
        return total
