"""A store in the memory of this process: the rules themselves behind a lock, for tests and notebooks.

All stores of one group name share one group. Other processes, forked ones too, do not see it, and it ends with the
process.
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
_lock = threading.RLock()  # a `__del__` that comes in the middle of a step may do another one
_groups: dict[str, Rules] = {}
_MOMENT = 0.0005


def _begin_anew() -> None:
    """In a forked child: the groups are the parent's, and a thread that is not here may have had the lock."""
    global _lock
    _lock = threading.RLock()
    _groups.clear()


os.register_at_fork(after_in_child=_begin_anew)


def _whole(step: Callable[[], T]) -> T:
    """Carries out a step as a whole or not at all. Signals are handled in the main thread, in the middle of anything:
    for that one, another thread does it."""
    if threading.get_ident() != threading.main_thread().ident:
        with _lock:
            return step()
    done = threading.Lock()
    done.acquire()
    came = _Came[T]()

    def work() -> None:
        try:
            with _lock:
                came.result = step()
        except BaseException as error:
            came.error = error
        finally:
            came.is_over = True
            done.release()

    _thread.start_new_thread(work, ())
    try:
        done.acquire()
    except BaseException:
        while not came.is_over:  # a step takes no time, and what follows must not come before it
            time.sleep(_MOMENT)
        raise
    if came.error is not None:
        raise came.error
    return came.result


class _Came(Generic[T]):
    """What came of a step."""

    result: T
    error: BaseException | None = None
    is_over = False


class MemoryStore:
    """One group of this process."""

    def __init__(self, group: str) -> None:
        self._group = group

    @classmethod
    def at(cls, url: str, group: str) -> MemoryStore:
        """The store at `memory://`."""
        if url != _ADDRESS:
            raise ConfigError(
                f"the store's address has something after {_ADDRESS}: groups in memory are known by their name"
            )
        return cls(group)

    def __repr__(self) -> str:
        return f"MemoryStore({self._group!r})"

    @property
    def address(self) -> str:
        """For messages."""
        return _ADDRESS

    def found(self, charter: Charter) -> Charter:
        """The group's charter: this one if the group is new."""
        return _whole(lambda: _groups.setdefault(self._group, Rules(charter)).charter)

    def forget(self) -> None:
        """Delete everything of the group."""
        _whole(lambda: _groups.pop(self._group, None))

    def close(self) -> None:
        """Nothing is open; the group stays."""

    def add_topics(self, topics: Mapping[str, str]) -> None:
        """As in `Rules`."""
        _whole(lambda: self._rules.add_topics(topics))

    def remove_topics(self, names: Iterable[str]) -> None:
        """As in `Rules`."""
        _whole(lambda: self._seen.remove_topics(names))

    def lead(self, holder: str, over: Seen | None = None) -> Lease | None:
        """As in `Rules`."""
        return _whole(lambda: self._rules.lead(holder, over))

    def stay(self, lease: Lease) -> bool:
        """As in `Rules`."""
        return _whole(lambda: self._seen.stay(lease))

    def resign(self, lease: Lease) -> bool:
        """As in `Rules`."""
        return _whole(lambda: self._seen.resign(lease))

    def plan(self, lease: Lease, moves: Sequence[Move]) -> bool:
        """As in `Rules`."""
        return _whole(lambda: self._seen.plan(lease, moves))

    def raise_number(self, least: int) -> None:
        """As in `Rules`."""
        _whole(lambda: self._rules.raise_number(least))

    def take(self, holder: str, most: int = 1) -> list[Grant]:
        """As in `Rules`."""
        return _whole(lambda: self._seen.take(holder, most))

    def renew(self, held: Sequence[tuple[OffsetRange, Lease]]) -> list[bool]:
        """As in `Rules`."""
        return _whole(lambda: self._seen.renew(held))

    def finish(self, unit: OffsetRange, lease: Lease, reached: int) -> bool:
        """As in `Rules`."""
        return _whole(lambda: self._seen.finish(unit, lease, reached))

    def fail(self, unit: OffsetRange, lease: Lease, failure: Failure) -> bool:
        """As in `Rules`."""
        return _whole(lambda: self._seen.fail(unit, lease, failure))

    def reclaim(self, unit: OffsetRange, seen: Seen, failure: Failure) -> bool:
        """As in `Rules`."""
        return _whole(lambda: self._seen.reclaim(unit, seen, failure))

    def retry(self, unit: OffsetRange) -> bool:
        """As in `Rules`."""
        return _whole(lambda: self._seen.retry(unit))

    def drop(self, unit: OffsetRange) -> bool:
        """As in `Rules`."""
        return _whole(lambda: self._seen.drop(unit))

    def reset(self, at: TopicPartition, offset: int | None) -> None:
        """As in `Rules`."""
        _whole(lambda: self._rules.reset(at, offset))

    def hello(self, name: str, report: Mapping[str, Any]) -> None:
        """As in `Rules`."""
        _whole(lambda: self._rules.hello(name, report))

    def goodbye(self, name: str, beat: int | None = None) -> bool:
        """As in `Rules`."""
        return _whole(lambda: self._seen.goodbye(name, beat))

    def note(self, key: str, value: bytes | None) -> None:
        """As in `Rules`."""
        _whole(lambda: self._rules.note(key, value))

    def failures(self) -> list[Failure]:
        """As in `Rules`."""
        return _whole(lambda: self._seen.failures())

    def pulse(self) -> Pulse:
        """As in `Rules`."""
        return _whole(lambda: self._seen.pulse())

    def look(self) -> Snapshot:
        """As in `Rules`."""
        return _whole(lambda: self._seen.look())

    def waiting(self, at: TopicPartition | None = None, most: int = 1000) -> list[OffsetRange]:
        """As in `Rules`."""
        return _whole(lambda: self._seen.waiting(at, most))

    def notes(self, prefix: str = "") -> dict[str, bytes]:
        """As in `Rules`."""
        return _whole(lambda: self._seen.notes(prefix))

    @property
    def _rules(self) -> Rules:
        if (rules := _groups.get(self._group)) is None:
            raise not_founded(self._group, _ADDRESS)
        return rules

    @property
    def _seen(self) -> Rules:
        """For what begins nothing: a group that is not there is empty."""
        return _groups.get(self._group) or Rules(Charter())
