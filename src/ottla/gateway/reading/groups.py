"""Groups whose reads are acknowledged by a second call: units of a fleet, leased to clients of the gateway.

A group and a topic come in; a unit with its lease and records goes out, and what the client says of it goes to the
store. A lease is the store's, so it outlives the gateway, and every gateway with that store can end it. What is never
acknowledged is handed out again once the lease has expired: the fleet's steward sees to that. All of it blocks.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from ottla.admin import Admin
from ottla.engines.fleet import kafka_memory
from ottla.engines.fleet.fleet import Fleet
from ottla.engines.fleet.planning import Units
from ottla.engines.fleet.store import Store, open_store
from ottla.engines.fleet.units import Charter, Failure, Grant, Snapshot
from ottla.errors import BrokerError, ErrorCode, FleetConflict, OttlaError
from ottla.gateway.access.rules import ANONYMOUS
from ottla.gateway.http.problems import Problem, check_share, unavailable
from ottla.gateway.reading.log_reader import LogReader, Place, Size, Taken
from ottla.gateway.reading.tokens import Token
from ottla.model import Isolation, OffsetRange
from ottla.net.deadline import Deadline

READ_SECONDS = 10.0
_IDLE_SECONDS = 600.0
"""How long a group may be unused before its threads end. Its leases stay."""


class Unit(NamedTuple):
    """A unit that was handed out."""

    token: Token
    attempt: int
    taken: Taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the first request of a group decides; None is the default, or what was decided."""

    start: str | datetime = "earliest"
    lease_seconds: float | None = None
    max_attempts: int | None = None
    is_ordered: bool | None = None


@dataclass(slots=True)
class Group:
    """A group on one topic, with the threads that plan and watch it."""

    name: str
    topic: str
    store: Store
    fleet: Fleet
    charter: Charter
    holder: str
    used_at: float
    identity: str = ""
    """Who opened it here."""
    topic_id: UUID | None = None
    numbers: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Of the client that waits for a unit."""


class Groups:
    """The groups of one gateway. Threads may share it."""

    def __init__(self, log: LogReader, store: str | None, *, most: int, units: Units) -> None:
        self._log = log
        self._address = store
        self._most = most
        self._units = units
        self._groups: dict[str, Group] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._groups)

    def find(self, group: str, topic: str) -> Group | None:
        """Return a group that exists in the store, None for any other."""
        name = full_name(group, topic)
        if name not in self._groups:
            store = self._open_store(name)
            try:
                if not store.exists():
                    return None
            finally:
                store.close()
        return self.open(group, topic, Terms(), ANONYMOUS)

    def open(self, group: str, topic: str, terms: Terms, identity: str) -> Group:
        """Return a group, and create it if it is new.

        Raises `Problem` if it was created on other terms, or if there are too many, of `identity` or altogether.
        """
        name = full_name(group, topic)
        with self._lock:
            found = self._groups.get(name)
            if found is None:
                self._end_idle()
                if len(self._groups) >= self._most:
                    raise unavailable(f"{self._most} groups are in use", limit="groups")
                check_share([each.identity for each in self._groups.values()], identity, self._most, "groups")
                found = self._groups[name] = self._begin(name, topic, terms)
                found.identity = identity
            found.used_at = time.monotonic()
        _check_terms(found.charter, terms, group)
        return found

    def take(self, group: Group, size: Size, isolation: Isolation) -> Unit | None:
        """Take a unit and read it; None if there is none. Raises `Problem` and `OttlaError`."""
        while True:
            grants = group.store.take(self._holder(group))
            if not grants:
                return None
            (grant,) = grants
            if group.topic_id is None:
                known = group.store.look().topics.get(group.topic)
                group.topic_id = UUID(known) if known else None
            try:
                taken = self._read(grant, group, size, isolation)
            except Problem as problem:
                self._fail(group, grant, problem.text)
                raise
            except OttlaError:
                group.store.finish(grant.range, grant.lease, grant.range.start)  # not an attempt: brokers are away
                raise
            if taken.rows:
                return Unit(Token(grant.range, taken.next_offset, grant.lease), grant.attempt, taken)
            # Compaction or aborted transactions have left nothing of it, or of its first part.
            group.store.finish(grant.range, grant.lease, max(taken.next_offset, grant.range.start))
            if taken.next_offset <= grant.range.start:
                return None

    def _read(self, grant: Grant, group: Group, size: Size, isolation: Isolation) -> Taken:
        unit = grant.range
        place = Place(unit.topic_partition, unit.start, group.topic_id, unit.stop)
        taken = self._log.take(place, size, isolation=isolation, deadline=Deadline.after(READ_SECONDS))
        while not taken.rows and unit.start < taken.next_offset < unit.stop:
            place = place._replace(offset=taken.next_offset)
            taken = self._log.take(place, size, isolation=isolation, deadline=Deadline.after(READ_SECONDS))
        return taken

    def acknowledge(self, group: Group, token: Token, upto: int | None) -> bool:
        """End a unit: its records, or those below an offset, are done. Returns whether the lease was still held."""
        return group.store.finish(token.unit, token.lease, token.reached if upto is None else upto)

    def release(self, group: Group, token: Token, reason: str | None) -> bool:
        """Give a unit back at once. With a reason the attempt counts as failed."""
        if reason is None:
            return group.store.finish(token.unit, token.lease, token.unit.start)
        return group.store.fail(token.unit, token.lease, _failure(token.unit, reason))

    def extend(self, group: Group, token: Token) -> bool:
        """Begin the time of the lease again."""
        return group.store.renew([(token.unit, token.lease)])[0]

    def look(self, group: Group) -> tuple[Snapshot, list[Failure]]:
        """Return the state of a group, and its error list."""
        return group.store.look(), group.store.failures()

    def halted(self, group: Group) -> str:
        """Return why nothing is planned, empty if there is no reason."""
        return "; ".join(f"{name}: {reason}" for name, reason in sorted(group.store.look().halted.items()))

    def forget(self, group: str, topic: str) -> None:
        """Delete a group with its positions."""
        name = full_name(group, topic)
        with self._lock:
            found = self._groups.pop(name, None)
        if found is not None:
            found.fleet.close()
        store = self._open_store(name)
        try:
            store.forget()
        finally:
            store.close()
        try:
            Admin(self._log.cluster).groups.delete(kafka_memory.memory_group(name))
        except BrokerError as error:
            if error.code is not ErrorCode.group_id_not_found:
                raise

    def close(self) -> None:
        """End all threads. Leases stay."""
        with self._lock:
            groups, self._groups = list(self._groups.values()), {}
        for group in groups:
            group.fleet.close()

    def _begin(self, name: str, topic: str, terms: Terms) -> Group:
        store = self._open_store(name)
        default = Charter(lease_seconds=30.0)
        wanted = Charter(
            ordered=default.ordered if terms.is_ordered is None else terms.is_ordered,
            max_attempts=terms.max_attempts or default.max_attempts,
            lease_seconds=terms.lease_seconds or default.lease_seconds,
        )
        try:
            charter = store.found(wanted)
            fleet = Fleet(
                self._log.cluster,
                group=name,
                topics=topic,
                store=store,
                start=terms.start,
                units=self._units,
                charter=charter,
            )
            fleet.start()
        except FleetConflict as error:
            store.close()
            raise Problem(409, str(error), code=40905) from error
        except BaseException:
            store.close()
            raise
        return Group(name, topic, store, fleet, charter, f"http-{uuid.uuid4().hex}", time.monotonic())

    def _open_store(self, name: str) -> Store:
        if self._address is None:
            raise Problem(501, "this gateway has no store for groups: it needs the setting for one")
        return open_store(self._address, name)

    def _end_idle(self) -> None:
        until = time.monotonic() - _IDLE_SECONDS
        for name in [name for name, group in self._groups.items() if group.used_at < until]:
            fleet = self._groups.pop(name).fleet
            threading.Thread(target=fleet.close, name="ottla-gateway-group-end", daemon=True).start()

    def _holder(self, group: Group) -> str:
        with group.lock:
            group.numbers += 1
            return f"{group.holder}/{group.numbers}"

    def _fail(self, group: Group, grant: Grant, reason: str) -> None:
        group.store.fail(grant.range, grant.lease, _failure(grant.range, reason))


def full_name(group: str, topic: str) -> str:
    """Return the name of a group on a topic in the store. Neither part can have the separator."""
    return f"gateway/{group}/{topic}"


def _failure(unit: OffsetRange, reason: str) -> Failure:
    return Failure(unit, 0, reason[:1000], host="gateway", at=time.time())


def _check_terms(charter: Charter, terms: Terms, group: str) -> None:
    for what, wanted, known in (
        ("lease_seconds", terms.lease_seconds, charter.lease_seconds),
        ("max_attempts", terms.max_attempts, charter.max_attempts),
        ("ordered", terms.is_ordered, charter.ordered),
    ):
        if wanted is not None and wanted != known:
            raise Problem(409, f"group {group!r} was begun with {what}={known}, not {wanted}", code=40905)


def partitions_of(snapshot: Snapshot) -> list[dict[str, object]]:
    """Return the state of each partition as plain values."""
    return [
        {
            "partition": state.partition.partition,
            "planned": state.planned,
            "done": state.done,
            "waiting": state.waiting,
            "out": state.out,
            "failed": state.failed,
        }
        for state in snapshot.partitions
    ]
