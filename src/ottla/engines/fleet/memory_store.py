"""A store in the memory of this process: the rules themselves behind a lock, for tests and notebooks.

All stores of one group name share one group. Other processes, forked ones too, do not see it, and it ends with the
process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ottla.engines.fleet.kept import not_founded
from ottla.engines.fleet.rules import Rules
from ottla.engines.fleet.units import Charter, Failure, Grant, Lease, Move, Pulse, Seen, Snapshot
from ottla.errors import ConfigError
from ottla.model import OffsetRange, TopicPartition

_ADDRESS = "memory://"
_lock = threading.Lock()
_groups: dict[str, Rules] = {}


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
        with _lock:
            return _groups.setdefault(self._group, Rules(charter)).charter

    def forget(self) -> None:
        """Delete everything of the group."""
        with _lock:
            _groups.pop(self._group, None)

    def close(self) -> None:
        """Nothing is open; the group stays."""

    def add_topics(self, topics: Mapping[str, str]) -> None:
        """As in `Rules`."""
        with _lock:
            self._rules.add_topics(topics)

    def remove_topics(self, names: Iterable[str]) -> None:
        """As in `Rules`."""
        with _lock:
            self._seen.remove_topics(names)

    def lead(self, holder: str, over: Seen | None = None) -> Lease | None:
        """As in `Rules`."""
        with _lock:
            return self._rules.lead(holder, over)

    def stay(self, lease: Lease) -> bool:
        """As in `Rules`."""
        with _lock:
            return self._seen.stay(lease)

    def resign(self, lease: Lease) -> bool:
        """As in `Rules`."""
        with _lock:
            return self._seen.resign(lease)

    def plan(self, lease: Lease, moves: Sequence[Move]) -> bool:
        """As in `Rules`."""
        with _lock:
            return self._seen.plan(lease, moves)

    def raise_number(self, least: int) -> None:
        """As in `Rules`."""
        with _lock:
            self._rules.raise_number(least)

    def take(self, holder: str, most: int = 1) -> list[Grant]:
        """As in `Rules`."""
        with _lock:
            return self._seen.take(holder, most)

    def renew(self, held: Sequence[tuple[OffsetRange, Lease]]) -> list[bool]:
        """As in `Rules`."""
        with _lock:
            return self._seen.renew(held)

    def finish(self, unit: OffsetRange, lease: Lease, reached: int) -> bool:
        """As in `Rules`."""
        with _lock:
            return self._seen.finish(unit, lease, reached)

    def fail(self, unit: OffsetRange, lease: Lease, failure: Failure) -> bool:
        """As in `Rules`."""
        with _lock:
            return self._seen.fail(unit, lease, failure)

    def reclaim(self, unit: OffsetRange, seen: Seen, failure: Failure) -> bool:
        """As in `Rules`."""
        with _lock:
            return self._seen.reclaim(unit, seen, failure)

    def retry(self, unit: OffsetRange) -> bool:
        """As in `Rules`."""
        with _lock:
            return self._seen.retry(unit)

    def drop(self, unit: OffsetRange) -> bool:
        """As in `Rules`."""
        with _lock:
            return self._seen.drop(unit)

    def reset(self, at: TopicPartition, offset: int | None) -> None:
        """As in `Rules`."""
        with _lock:
            self._rules.reset(at, offset)

    def hello(self, name: str, report: Mapping[str, Any]) -> None:
        """As in `Rules`."""
        with _lock:
            self._rules.hello(name, report)

    def goodbye(self, name: str, beat: int | None = None) -> bool:
        """As in `Rules`."""
        with _lock:
            return self._seen.goodbye(name, beat)

    def note(self, key: str, value: bytes | None) -> None:
        """As in `Rules`."""
        with _lock:
            self._rules.note(key, value)

    def failures(self) -> list[Failure]:
        """As in `Rules`."""
        with _lock:
            return self._seen.failures()

    def pulse(self) -> Pulse:
        """As in `Rules`."""
        with _lock:
            return self._seen.pulse()

    def look(self) -> Snapshot:
        """As in `Rules`."""
        with _lock:
            return self._seen.look()

    def waiting(self, at: TopicPartition | None = None, most: int = 1000) -> list[OffsetRange]:
        """As in `Rules`."""
        with _lock:
            return self._seen.waiting(at, most)

    def notes(self, prefix: str = "") -> dict[str, bytes]:
        """As in `Rules`."""
        with _lock:
            return self._seen.notes(prefix)

    @property
    def _rules(self) -> Rules:
        if (rules := _groups.get(self._group)) is None:
            raise not_founded(self._group, _ADDRESS)
        return rules

    @property
    def _seen(self) -> Rules:
        """For what begins nothing: a group that is not there is empty."""
        return _groups.get(self._group) or Rules(Charter())
