"""A store in the memory of this process, for tests and notebooks: `Rules` behind a lock.

All stores with the same group name share one group. Other processes, including forked children, do not see it, and it
ends with the process.
"""

from __future__ import annotations

import _thread
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from ottla.engines.fleet.rules import Rules
from ottla.engines.fleet.stored_text import not_founded
from ottla.engines.fleet.units import Charter, Failure, Grant, Lease, Move, Pulse, Seen, Snapshot
from ottla.errors import ConfigError
from ottla.model import OffsetRange, TopicPartition

_ADDRESS = "memory://"
T = TypeVar("T")
_lock = threading.RLock()  # reentrant: a `__del__` that runs in the middle of a step may do a step itself
_groups: dict[str, Rules] = {}
_POLL_SECONDS = 0.0005
"""Time between two looks whether a step is complete, after an interrupt."""


def _reset_after_fork() -> None:
    """Drop the parent's groups in a forked child, and the lock, which a thread of the parent may have held."""
    global _lock
    _lock = threading.RLock()
    _groups.clear()


os.register_at_fork(after_in_child=_reset_after_fork)


def _atomically(step: Callable[[], T]) -> T:
    """Run a step completely or not at all, even if a signal arrives."""
    if threading.get_ident() != threading.main_thread().ident:
        with _lock:
            return step()
    # Python runs signal handlers in the main thread, between any two instructions. So another thread does the step.
    done = threading.Lock()
    done.acquire()
    outcome = _Outcome[T]()

    def work() -> None:
        try:
            with _lock:
                outcome.result = step()
        except BaseException as error:
            outcome.error = error
        finally:
            outcome.is_over = True
            done.release()

    _thread.start_new_thread(work, ())
    try:
        done.acquire()
    except BaseException:
        while not outcome.is_over:  # a step is short, and the caller must not continue before it is complete
            time.sleep(_POLL_SECONDS)
        raise
    if outcome.error is not None:
        raise outcome.error
    return outcome.result


class _Outcome(Generic[T]):
    """The result or the error of a step."""

    result: T
    error: BaseException | None = None
    is_over = False


class MemoryStore:
    """One group of this process. Methods without a docstring do what `Rules` says."""

    def __init__(self, group: str) -> None:
        self._group = group

    @classmethod
    def from_url(cls, url: str, group: str) -> MemoryStore:
        """Return the store of a group at `memory://`. Raises `ConfigError` if anything follows in the address."""
        if url != _ADDRESS:
            raise ConfigError(f"a store in memory has the address {_ADDRESS} and nothing after it")
        return cls(group)

    def __repr__(self) -> str:
        return f"MemoryStore({self._group!r})"

    @property
    def address(self) -> str:
        """The address for messages."""
        return _ADDRESS

    def found(self, charter: Charter) -> Charter:
        """Create the group with this charter unless it exists, and return the charter that it has."""
        return _atomically(lambda: _groups.setdefault(self._group, Rules(charter)).charter)

    def exists(self) -> bool:
        """Return whether the group was created."""
        return _atomically(lambda: self._group in _groups)

    def forget(self) -> None:
        """Delete the group and everything in it."""
        _atomically(lambda: _groups.pop(self._group, None))

    def close(self) -> None:
        """Do nothing: no connection is open, and the group stays."""

    def add_topics(self, topics: Mapping[str, str]) -> None:
        _atomically(lambda: self._rules.add_topics(topics))

    def remove_topics(self, names: Iterable[str]) -> None:
        _atomically(lambda: self._rules_or_empty.remove_topics(names))

    def lead(self, holder: str, over: Seen | None = None) -> Lease | None:
        return _atomically(lambda: self._rules.lead(holder, over))

    def stay(self, lease: Lease) -> bool:
        return _atomically(lambda: self._rules_or_empty.stay(lease))

    def resign(self, lease: Lease) -> bool:
        return _atomically(lambda: self._rules_or_empty.resign(lease))

    def plan(self, lease: Lease, moves: Sequence[Move]) -> bool:
        return _atomically(lambda: self._rules_or_empty.plan(lease, moves))

    def raise_number(self, least: int) -> None:
        _atomically(lambda: self._rules.raise_number(least))

    def take(self, holder: str, most: int = 1) -> list[Grant]:
        return _atomically(lambda: self._rules_or_empty.take(holder, most))

    def renew(self, held: Sequence[tuple[OffsetRange, Lease]]) -> list[bool]:
        return _atomically(lambda: self._rules_or_empty.renew(held))

    def finish(self, unit: OffsetRange, lease: Lease, reached: int) -> bool:
        return _atomically(lambda: self._rules_or_empty.finish(unit, lease, reached))

    def fail(self, unit: OffsetRange, lease: Lease, failure: Failure) -> bool:
        return _atomically(lambda: self._rules_or_empty.fail(unit, lease, failure))

    def reclaim(self, unit: OffsetRange, seen: Seen, failure: Failure) -> bool:
        return _atomically(lambda: self._rules_or_empty.reclaim(unit, seen, failure))

    def retry(self, unit: OffsetRange) -> bool:
        return _atomically(lambda: self._rules_or_empty.retry(unit))

    def drop(self, unit: OffsetRange) -> bool:
        return _atomically(lambda: self._rules_or_empty.drop(unit))

    def reset(self, partition: TopicPartition, offset: int | None) -> None:
        _atomically(lambda: self._rules.reset(partition, offset))

    def hello(self, name: str, report: Mapping[str, Any]) -> None:
        _atomically(lambda: self._rules.hello(name, report))

    def goodbye(self, name: str, beat: int | None = None) -> bool:
        return _atomically(lambda: self._rules_or_empty.goodbye(name, beat))

    def note(self, key: str, value: bytes | None) -> None:
        _atomically(lambda: self._rules.note(key, value))

    def failures(self) -> list[Failure]:
        return _atomically(lambda: self._rules_or_empty.failures())

    def pulse(self) -> Pulse:
        return _atomically(lambda: self._rules_or_empty.pulse())

    def look(self) -> Snapshot:
        return _atomically(lambda: self._rules_or_empty.look())

    def waiting(self, partition: TopicPartition | None = None, most: int = 1000) -> list[OffsetRange]:
        return _atomically(lambda: self._rules_or_empty.waiting(partition, most))

    def notes(self, prefix: str = "") -> dict[str, bytes]:
        return _atomically(lambda: self._rules_or_empty.notes(prefix))

    @property
    def _rules(self) -> Rules:
        """The group, for steps that add something. Raises `StoreUnavailable` if it does not exist."""
        if (rules := _groups.get(self._group)) is None:
            raise not_founded(self._group, _ADDRESS)
        return rules

    @property
    def _rules_or_empty(self) -> Rules:
        """The group, for steps that add nothing: one that does not exist counts as empty."""
        return _groups.get(self._group) or Rules(Charter())
