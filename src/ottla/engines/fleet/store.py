"""The interface of a store, which keeps a group where all nodes see it, and `open_store` for an address.

A store applies the steps of `rules.Rules` atomically and gives the same answers; see that class for what each step
does. Every step raises `StoreUnavailable` if the store does not answer. The step may then have happened or not, and the
caller may repeat it: a lease that is already used up is refused.

A store may come back empty. A group that does not exist has no units to take, and its leases are lost. Steps that would
add something to it raise `StoreUnavailable` until a node has called `found` again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from ottla.engines.fleet.units import Charter, Failure, Grant, Lease, Move, Pulse, Seen, Snapshot
from ottla.errors import ConfigError
from ottla.model import OffsetRange, TopicPartition

_MAX_GROUP_CHARS = 200
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


class Store(Protocol):
    """One group in a store. Threads may share it. Methods without a docstring do what `rules.Rules` says."""

    @property
    def address(self) -> str:
        """The address for messages, without user and password."""

    def found(self, charter: Charter) -> Charter:
        """Create the group with this charter unless it exists, and return the charter that it has.

        Raises `StoreIncompatible` if this version of Ottla cannot use the store or the group.
        """

    def exists(self) -> bool:
        """Return whether the group was created, even if nothing has happened in it yet."""

    # Topics: a mapping of names to ids, which may be empty.

    def add_topics(self, topics: Mapping[str, str]) -> None: ...
    def remove_topics(self, names: Iterable[str]) -> None: ...

    # Planning: a node needs the lease to plan, and keeps it alive with `stay`.

    def lead(self, holder: str, over: Seen | None = None) -> Lease | None: ...
    def stay(self, lease: Lease) -> bool: ...
    def resign(self, lease: Lease) -> bool: ...
    def plan(self, lease: Lease, moves: Sequence[Move]) -> bool: ...
    def raise_number(self, least: int) -> None: ...

    # Working: a node takes units, keeps their leases alive with `renew`, and ends each with `finish` or `fail`. Any
    # node may `reclaim` a unit whose lease it has seen expire.

    def take(self, holder: str, most: int = 1) -> list[Grant]: ...
    def renew(self, held: Sequence[tuple[OffsetRange, Lease]]) -> list[bool]: ...
    def finish(self, unit: OffsetRange, lease: Lease, reached: int) -> bool: ...
    def fail(self, unit: OffsetRange, lease: Lease, failure: Failure) -> bool: ...
    def reclaim(self, unit: OffsetRange, seen: Seen, failure: Failure) -> bool: ...

    # The error list, and resetting: calls of operators, without a lease.

    def failures(self) -> list[Failure]: ...
    def retry(self, unit: OffsetRange) -> bool: ...
    def drop(self, unit: OffsetRange) -> bool: ...
    def reset(self, partition: TopicPartition, offset: int | None) -> None: ...

    # Nodes and reports: nodes announce themselves, and anyone may look. Notes hold data of planners and jobs.

    def hello(self, name: str, report: Mapping[str, Any]) -> None: ...
    def goodbye(self, name: str, beat: int | None = None) -> bool: ...
    def pulse(self) -> Pulse: ...
    def look(self) -> Snapshot: ...
    def waiting(self, partition: TopicPartition | None = None, most: int = 1000) -> list[OffsetRange]: ...
    def note(self, key: str, value: bytes | None) -> None: ...
    def notes(self, prefix: str = "") -> dict[str, bytes]: ...

    def forget(self) -> None:
        """Delete the group and everything in it."""

    def close(self) -> None:
        """Close connections. The group stays, and a later step connects again."""


def open_store(url: str, group: str) -> Store:
    """Return the store of a group at `redis://`, `rediss://`, `redis+sentinel://`, `redis+cluster://` or `sqlite:///`.

    `memory://` is for nodes of one process, as in tests and notebooks. Nothing connects before the first step. Raises
    `ConfigError` if the address or the group name is invalid, or the redis package is not installed.
    """
    if not group or len(group) > _MAX_GROUP_CHARS or any(not char.isprintable() or char in "{}" for char in group):
        raise ConfigError(
            f"a group name must have 1 to {_MAX_GROUP_CHARS} printable characters without braces, got {group!r}"
        )
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        from ottla.engines.fleet.sqlite_store import SqliteStore

        return SqliteStore.from_url(url, group)
    if scheme == "memory":
        from ottla.engines.fleet.memory_store import MemoryStore

        return MemoryStore.from_url(url, group)
    if scheme in _REDIS:
        try:
            from ottla.engines.fleet.redis_store import RedisStore
        except ImportError as error:
            raise ConfigError("a store in Redis needs an extra package: pip install 'ottla[fleet]'") from error
        return RedisStore.from_url(url, group)
    # Do not quote an address that cannot be parsed: a password may be anywhere in it.
    shown = f"store {scheme}://..." if "://" in url and _SCHEME.fullmatch(scheme) else "the store's address"
    raise ConfigError(f"{shown} is not supported; accepted are {', '.join(_ACCEPTED)}")
