"""Asks the cluster what it looks like, through whichever address answers.

A question comes in, metadata goes out and into the directory. One look goes once through every address: brokers
with an open connection first, then the other known brokers, then the bootstrap addresses; it does not repeat itself
(the caller's effort does). Threads with the same question share one look.
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
"""The lane of everything that is not bulk data."""

T = TypeVar("T")


class OnUnknownTopic(Enum):
    """What a broker does when asked for a topic that does not exist."""

    REFUSE = "refuse"
    """Say that it does not know it."""
    CREATE = "create"
    """Create it, if the brokers run with auto.create.topics.enable."""


class MetadataQuery(NamedTuple):
    """Which topics to ask for: None for all, empty for brokers only."""

    topics: frozenset[str] | None = frozenset()
    unknown: OnUnknownTopic = OnUnknownTopic.REFUSE


@dataclass(slots=True)
class _Flight:
    """One look that others may wait for."""

    deadline: Deadline
    thread: int = field(default_factory=threading.get_ident)
    done: Flag = field(default_factory=Flag)
    found: Metadata | None = None
    error: OttlaError | None = None

    def is_abandoned(self) -> bool:
        """Whether waiting for it is pointless: an interrupt ended it, or it is this thread that runs it, below us."""
        return self.thread == threading.get_ident() or self.deadline.expired()


class Discovery:
    """Looks at one cluster."""

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
        self._lock = threading.RLock()  # a signal handler may come in the middle of a call of its thread
        self._flights: dict[MetadataQuery, _Flight] = {}
        self._failed_at: dict[Address, float] = {}

    def look(self, question: MetadataQuery, deadline: Deadline, *, since_now: bool = False) -> Metadata:
        """What the cluster answers, to this thread or to another one that asks the same at the moment.

        With `since_now`, the answer is to a request that was sent after this call: what another thread asked before may
        have been answered before something changed that the caller has heard of.
        """
        counts = not since_now
        while True:
            with self._lock:
                flight = self._flights.get(question)
                if flight is None or flight.is_abandoned():
                    mine = self._flights[question] = _Flight(deadline)
                    break
            if not flight.done.wait(flight.deadline.sooner(deadline.remaining()).remaining()):
                if not deadline.expired():
                    continue
                raise NoBrokerReachable((), deadline.elapsed(), "another thread is still asking for the metadata")
            if counts and flight.found is not None:
                return flight.found
            if counts and flight.error is not None:
                raise copied(flight.error)
            counts = True  # the next one begins after this call
        try:
            mine.found = self._ask_somebody(question, deadline)
            return mine.found
        except OttlaError as exc:
            mine.error = exc
            raise
        finally:
            with self._lock:
                if self._flights.get(question) is mine:
                    del self._flights[question]
            mine.done.set()

    def any_connection(self, deadline: Deadline) -> Connection:
        """An open connection to some broker of the cluster."""
        if not self._directory.brokers_are_fresh():
            self.look(MetadataQuery(), deadline)
        brokers = self._known_brokers()
        try:
            return self._first_of([(b.address, self._pooled(b)) for b in brokers], deadline, lambda c, _: c)
        except NoBrokerReachable:
            self._directory.doubt_brokers()  # so that the next try asks the bootstrap addresses
            raise

    def failed(self, address: Address) -> None:
        """`address` was trouble: try the others first for a while."""
        with self._lock:
            self._failed_at[address] = time.monotonic()

    def _ask_somebody(self, question: MetadataQuery, deadline: Deadline) -> Metadata:
        def ask(connection: Connection, share: Deadline) -> Metadata:
            response = connection.request(metadata_request(connection.version, question), deadline=share)
            if getattr(response, "error_code", ErrorCode.none) is not ErrorCode.none:
                raise BrokerError(response.error_code, f"Metadata from {connection.address}")
            answer = metadata.from_response(response)
            return self._directory.learn(answer, asked=question.topics, source=connection.address)

        brokers = self._known_brokers()
        doors = [(broker.address, self._pooled(broker)) for broker in brokers]
        known = {address for address, _ in doors}
        doors += [(address, self._bootstrapped(address)) for address in self._shuffled() if address not in known]
        return self._first_of(doors, deadline, ask)

    def _first_of(
        self,
        doors: list[tuple[Address, Callable[[Deadline], Connection]]],
        deadline: Deadline,
        action: Callable[[Connection, Deadline], T],
    ) -> T:
        """The first success. Each address gets its share of the time that is left."""
        errors: list[NetworkError] = []
        attempts: list[Attempt] = []
        for position, (address, door) in enumerate(doors):
            if attempts and deadline.expired():
                break
            share = deadline.sooner(deadline.remaining() / (len(doors) - position))
            try:
                connection = door(share.sooner(self._timeouts.connect))
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
        """A bootstrap connection is kept only if it turned out to be the way to a broker."""
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
        return sorted(brokers, key=self._trouble)

    def _trouble(self, broker: Broker) -> tuple[bool, float]:
        return not self._pool.alive((broker.id, CONTROL)), self._failed_at.get(broker.address, 0.0)

    def _shuffled(self) -> Iterator[Address]:
        addresses = list(self._bootstrap)
        self._chance.shuffle(addresses)
        return iter(sorted(addresses, key=lambda address: self._failed_at.get(address, 0.0)))


def metadata_request(version_of: VersionOf, question: MetadataQuery) -> messages.Message:
    """The Metadata request that asks `question`."""
    names = None if question.topics is None else sorted(question.topics)
    fields = {
        "topics": None if names is None else [{"name": name, "topic_id": None} for name in names],
        "allow_auto_topic_creation": question.unknown is OnUnknownTopic.CREATE,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    message: messages.Message = messages.compose(messages.request_type(METADATA, version_of(METADATA)), fields)
    return message


def _advice(attempts: list[Attempt]) -> str:
    if attempts and all("refused" in attempt.reason for attempt in attempts):
        return "nothing listens there: check the addresses and that the brokers are up"
    return ""
