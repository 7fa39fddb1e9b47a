"""Fetches metadata from whichever address answers.

A query comes in; metadata goes out and into the directory. One lookup tries every address once: brokers with an open
connection first, then the other known brokers, then the bootstrap addresses. It does not retry (the caller's `Attempts`
does). Threads with the same query share one lookup.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeVar

from ottla.config import Address, Timeouts
from ottla.errors import Attempt, BrokerError, ErrorCode, NetworkError, NoBrokerReachable, OttlaError, copied
from ottla.net import metadata
from ottla.net.attempts import all_final
from ottla.net.connection import Connection, VersionOf
from ottla.net.deadline import Deadline
from ottla.net.directory import Directory
from ottla.net.metadata import Broker, Metadata
from ottla.net.pool import Pool
from ottla.net.waiting import Flag
from ottla.wire import messages

METADATA = 3
CONTROL = "control"
"""The channel of everything that is not bulk data."""

T = TypeVar("T")


class OnUnknownTopic(Enum):
    """What a broker should do when a metadata request names a topic that does not exist."""

    REFUSE = "refuse"
    """Answer that the topic is unknown."""
    CREATE = "create"
    """Create the topic, if the brokers run with auto.create.topics.enable."""


class MetadataQuery(NamedTuple):
    """The topics to ask for: None for all, empty for brokers only."""

    topics: frozenset[str] | None = frozenset()
    unknown: OnUnknownTopic = OnUnknownTopic.REFUSE


@dataclass(slots=True)
class _SharedLookup:
    """A lookup that other threads may wait for."""

    deadline: Deadline
    thread: int = field(default_factory=threading.get_ident)
    done: Flag = field(default_factory=Flag)
    metadata: Metadata | None = None
    error: OttlaError | None = None

    def is_abandoned(self) -> bool:
        """Whether waiting is pointless: it was interrupted, or this thread runs it and we are in a signal handler."""
        return self.thread == threading.get_ident() or self.deadline.expired()


class Discovery:
    """Fetches the metadata of one cluster."""

    def __init__(
        self,
        bootstrap: tuple[Address, ...],
        *,
        pool: Pool,
        directory: Directory,
        timeouts: Timeouts,
        chance: random.Random,
    ) -> None:
        self._bootstrap = bootstrap
        self._pool = pool
        self._directory = directory
        self._timeouts = timeouts
        self._chance = chance
        self._lock = threading.RLock()  # reentrant: a signal handler may interrupt a call of its own thread
        self._lookups: dict[MetadataQuery, _SharedLookup] = {}
        self._failed_at: dict[Address, float] = {}

    def look(self, query: MetadataQuery, deadline: Deadline, *, since_now: bool = False) -> Metadata:
        """Fetch metadata, or share the result of another thread that runs the same query.

        With `since_now`, the result is of a request sent after this call: a lookup that was running before may have
        been answered before the change that the caller reacts to. Raises `NoBrokerReachable` if no address answers.
        """
        may_share = not since_now
        while True:
            with self._lock:
                lookup = self._lookups.get(query)
                if lookup is None or lookup.is_abandoned():
                    own = self._lookups[query] = _SharedLookup(deadline)
                    break
            if not lookup.done.wait(lookup.deadline.sooner(deadline.remaining()).remaining()):
                if not deadline.expired():
                    continue
                raise NoBrokerReachable((), deadline.elapsed(), "another thread is still fetching the metadata")
            if may_share and lookup.metadata is not None:
                return lookup.metadata
            if may_share and lookup.error is not None:
                raise copied(lookup.error)
            may_share = True  # the next lookup starts after this call
        try:
            own.metadata = self._ask_any(query, deadline)
            return own.metadata
        except OttlaError as exc:
            own.error = exc
            raise
        finally:
            with self._lock:
                if self._lookups.get(query) is own:
                    del self._lookups[query]
            own.done.set()

    def any_connection(self, deadline: Deadline) -> Connection:
        """Return an open connection to any broker. Raises `NoBrokerReachable` if there is none."""
        if not self._directory.brokers_are_fresh():
            self.look(MetadataQuery(), deadline)
        brokers = self._known_brokers()
        try:
            return self._first_of(
                [(broker.address, self._pooled(broker)) for broker in brokers], deadline, lambda c, _: c
            )
        except NoBrokerReachable:
            self._directory.doubt_brokers()  # so that the next attempt asks the bootstrap addresses
            raise

    def failed(self, address: Address) -> None:
        """Record a failure of `address`: later lookups try the others first."""
        with self._lock:
            self._failed_at[address] = time.monotonic()

    def _ask_any(self, query: MetadataQuery, deadline: Deadline) -> Metadata:
        def ask(connection: Connection, share: Deadline) -> Metadata:
            response = connection.request(metadata_request(connection.version, query), deadline=share)
            if getattr(response, "error_code", ErrorCode.none) is not ErrorCode.none:
                raise BrokerError(response.error_code, f"Metadata from {connection.address}")
            answer = metadata.from_response(response)
            return self._directory.learn(answer, asked=query.topics, source=connection.address)

        brokers = self._known_brokers()
        routes = [(broker.address, self._pooled(broker)) for broker in brokers]
        known = {address for address, _ in routes}
        routes += [(address, self._bootstrapped(address)) for address in self._shuffled() if address not in known]
        return self._first_of(routes, deadline, ask)

    def _first_of(
        self,
        routes: list[tuple[Address, Callable[[Deadline], Connection]]],
        deadline: Deadline,
        action: Callable[[Connection, Deadline], T],
    ) -> T:
        """Return the first success. Each address gets an equal share of the remaining time."""
        errors: list[NetworkError] = []
        attempts: list[Attempt] = []
        for position, (address, connect) in enumerate(routes):
            if attempts and deadline.expired():
                break
            share = deadline.sooner(deadline.remaining() / (len(routes) - position))
            try:
                connection = connect(share.sooner(self._timeouts.connect))
                outcome = action(connection, share.sooner(self._timeouts.request))
            except NetworkError as exc:
                self.failed(address)
                errors.append(exc)
                attempts.append(Attempt(str(address), exc.reason, share.elapsed()))
            else:
                self._settle(connection)
                return outcome
        if errors and all_final(errors):
            raise errors[0]
        cause = errors[-1] if errors else None
        raise NoBrokerReachable(tuple(attempts), deadline.elapsed(), _advice(attempts)) from cause

    def _pooled(self, broker: Broker) -> Callable[[Deadline], Connection]:
        return lambda deadline: self._pool.get((broker.id, CONTROL), broker.address, deadline=deadline)

    def _bootstrapped(self, address: Address) -> Callable[[Deadline], Connection]:
        return lambda deadline: self._pool.get(address, address, deadline=deadline)

    def _settle(self, connection: Connection) -> None:
        """Keep a bootstrap connection only if its address is that of a broker."""
        if not self._pool.drop(connection.address, connection):
            return
        for broker in self._directory.known.brokers.values():
            if broker.address == connection.address:
                self._pool.adopt((broker.id, CONTROL), connection)
                return
        self._pool.retire(connection)

    def _known_brokers(self) -> list[Broker]:
        brokers = list(self._directory.known.brokers.values())
        self._chance.shuffle(brokers)
        return sorted(brokers, key=self._priority)

    def _priority(self, broker: Broker) -> tuple[bool, float]:
        return not self._pool.alive((broker.id, CONTROL)), self._failed_at.get(broker.address, 0.0)

    def _shuffled(self) -> Iterator[Address]:
        addresses = list(self._bootstrap)
        self._chance.shuffle(addresses)
        return iter(sorted(addresses, key=lambda address: self._failed_at.get(address, 0.0)))


def metadata_request(version_of: VersionOf, query: MetadataQuery) -> messages.Message:
    """Build the Metadata request for a query."""
    names = None if query.topics is None else sorted(query.topics)
    fields = {
        "topics": None if names is None else [{"name": name, "topic_id": None} for name in names],
        "allow_auto_topic_creation": query.unknown is OnUnknownTopic.CREATE,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    message: messages.Message = messages.compose(messages.request_type(METADATA, version_of(METADATA)), fields)
    return message


def _advice(attempts: list[Attempt]) -> str:
    if attempts and all("refused" in attempt.reason for attempt in attempts):
        return "nothing listens there: check the addresses and that the brokers are up"
    return ""
