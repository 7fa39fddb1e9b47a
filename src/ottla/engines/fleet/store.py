"""Where a group is kept so that all nodes see the same: what every store can do, and the store at an address.

A store applies the steps of `rules.Rules` atomically and gives the same answers; what it says is in that module. A
store that does not answer raises `StoreUnavailable`: the step may then have happened or not, and every step bears to
be repeated, since a lease that is used up is refused.

A store may come back empty. A group that is not founded, or not any more, has nothing: there is nothing to take, and
leases are lost. What would begin something there raises `StoreUnavailable` until the group was founded anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from ottla.engines.fleet.units import Charter, Failure, Grant, Lease, Move, Pulse, Seen, Snapshot
from ottla.errors import ConfigError
from ottla.model import OffsetRange, TopicPartition


class Store(Protocol):
    """One group in a store. Threads may share it. The methods are those of `rules.Rules`."""

    @property
    def address(self) -> str:
        """For messages: without the password."""

    def found(self, charter: Charter) -> Charter:
        """The group's charter: this one if the group is new. Its version and whatever else is checked here."""

    def add_topics(self, topics: Mapping[str, str]) -> None: ...
    def remove_topics(self, names: Iterable[str]) -> None: ...
    def lead(self, holder: str, over: Seen | None = None) -> Lease | None: ...
    def stay(self, lease: Lease) -> bool: ...
    def resign(self, lease: Lease) -> bool: ...
    def plan(self, lease: Lease, moves: Sequence[Move]) -> bool: ...
    def raise_number(self, least: int) -> None: ...
    def take(self, holder: str, most: int = 1) -> list[Grant]: ...
    def renew(self, held: Sequence[tuple[OffsetRange, Lease]]) -> list[bool]: ...
    def finish(self, unit: OffsetRange, lease: Lease, reached: int) -> bool: ...
    def fail(self, unit: OffsetRange, lease: Lease, failure: Failure) -> bool: ...
    def reclaim(self, unit: OffsetRange, seen: Seen, failure: Failure) -> bool: ...
    def failures(self) -> list[Failure]: ...
    def retry(self, unit: OffsetRange) -> bool: ...
    def drop(self, unit: OffsetRange) -> bool: ...
    def reset(self, at: TopicPartition, offset: int | None) -> None: ...
    def hello(self, name: str, report: Mapping[str, Any]) -> None: ...
    def goodbye(self, name: str, beat: int | None = None) -> bool: ...
    def pulse(self) -> Pulse: ...
    def look(self) -> Snapshot: ...
    def waiting(self, at: TopicPartition | None = None, most: int = 1000) -> list[OffsetRange]: ...
    def note(self, key: str, value: bytes | None) -> None: ...
    def notes(self, prefix: str = "") -> dict[str, bytes]: ...

    def forget(self) -> None:
        """Delete everything of the group."""

    def close(self) -> None:
        """Connections end; the group stays."""


def open_store(url: str, group: str) -> Store:
    """The store of a group at `redis://`, `rediss://`, `redis+sentinel://`, `redis+cluster://` or `sqlite:///`.

    `memory://` is for nodes of one process, tests and notebooks for example. Nothing connects before the first step.
    """
    if not group or len(group) > _LONGEST_GROUP or any(not one.isprintable() or one in "{}" for one in group):
        raise ConfigError(
            f"a group's name has 1 to {_LONGEST_GROUP} printable characters without braces, got {group!r}"
        )
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        from ottla.engines.fleet.sqlite_store import SqliteStore

        return SqliteStore.at(url, group)
    if scheme == "memory":
        from ottla.engines.fleet.memory_store import MemoryStore

        return MemoryStore.at(url, group)
    if scheme in _REDIS:
        try:
            from ottla.engines.fleet.redis_store import RedisStore
        except ImportError as error:
            raise ConfigError("a store in Redis needs an extra package: pip install 'ottla[fleet]'") from error
        return RedisStore.at(url, group)
    # Of what is no address, nobody knows where in it a password is.
    shown = f"store {scheme}://..." if "://" in url and _SCHEME.fullmatch(scheme) else "the store's address"
    raise ConfigError(f"{shown} is none that a fleet knows; accepted are {', '.join(_ACCEPTED)}")


_LONGEST_GROUP = 200
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,30}", re.ASCII)
_REDIS = ("redis", "rediss", "redis+sentinel", "redis+cluster")
_ACCEPTED = (
    "redis://HOST:PORT/DB (with ?password_file=FILE)",
    "rediss://HOST:PORT (TLS)",
    "redis+sentinel://HOST:PORT,HOST:PORT/MASTER/DB",
    "redis+cluster://HOST:PORT,HOST:PORT",
    "sqlite:///PATH",
    "memory://",
)
