"""The cluster as a client sees it: it finds whom to ask, asks, and asks again when that is worth while.

A target, a function that builds the request and one that judges the answer come in; the judged answer goes out,
or one error that names what was tried. Everything under one deadline, retries with jittered backoff by the error
table. It knows no API itself.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from enum import Enum
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar

from ottla.config import PLAINTEXT, Address, Retry, Security, Timeouts, check_name, parse_bootstrap
from ottla.errors import BrokerError, ConnectFailed, NetworkError, OttlaError, UsedAfterFork
from ottla.net.attempts import Attempts
from ottla.net.connection import Connection, VersionOf
from ottla.net.deadline import Deadline
from ottla.net.directory import Directory
from ottla.net.discovery import CONTROL, Discovery, MetadataQuery, OnUnknownTopic
from ottla.net.exposure import accepted
from ottla.net.interrupt import client_closed
from ottla.net.metadata import Broker, Metadata, Topic
from ottla.net.pool import Pool
from ottla.net.resolver import Resolver
from ottla.net.targets import AnyBroker, Controller, CoordinatorKind, CoordinatorOf, LeaderOf, Node, Target
from ottla.net.waiting import Flag
from ottla.wire import messages

__all__ = ["Cluster", "Refresh", "VersionOf"]

T = TypeVar("T")


class Refresh(Enum):
    """Whether an answer may come from memory."""

    NOW = "now"
    IF_STALE = "if stale"


class Cluster:
    """A client of one Kafka cluster. Constructing it connects nothing; threads may share it; `close` ends it."""

    def __init__(
        self,
        bootstrap: str | Iterable[str | Address],
        *,
        security: Security = PLAINTEXT,
        client_id: str = "ottla",
        timeouts: Timeouts | None = None,
        retry: Retry | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self.bootstrap = parse_bootstrap(bootstrap)
        self.security = accepted(security)
        check_name("client_id", client_id)
        self.client_id = client_id
        self.timeouts = timeouts or Timeouts()
        self.retry = retry or Retry()
        self._chance = chance or random.Random()
        self._closing = Flag()
        self._pid = os.getpid()
        # Files are read at each connect: the program may be in another directory by then.
        tls = None if security.tls is None else security.tls.absolute()
        self._pool = Pool(security=replace(security, tls=tls), client_id=client_id)
        self._directory = Directory(age=self.timeouts.metadata_age)
        self._discovery = Discovery(
            self.bootstrap,
            pool=self._pool,
            directory=self._directory,
            timeouts=self.timeouts,
            chance=self._chance,
        )
        self._resolver = Resolver(
            directory=self._directory, discovery=self._discovery, request_seconds=self.timeouts.request
        )

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Cluster {','.join(map(str, self.bootstrap))} {self.security.protocol}>"

    @property
    def known(self) -> Metadata:
        """What is remembered of the cluster, stale or not, without asking anybody."""
        return self._directory.known

    def metadata(
        self,
        topics: Collection[str] | None = (),
        *,
        deadline: Deadline | None = None,
        refresh: Refresh = Refresh.NOW,
        unknown: OnUnknownTopic = OnUnknownTopic.REFUSE,
    ) -> Metadata:
        """Brokers, controller and the named topics (None: all; empty: none). Unknown topics carry their error."""
        names = None if topics is None else frozenset([topics] if isinstance(topics, str) else topics)
        if refresh is Refresh.IF_STALE:
            remembered = self.remembered(names)
            if remembered is not None:
                return remembered
        question = MetadataQuery(names, unknown)
        return self._persist("Metadata", deadline, lambda limit: self._discovery.look(question, limit, since_now=True))

    def remembered(self, names: frozenset[str] | None) -> Metadata | None:
        """The same, unless something of it is unknown or older than `Timeouts(metadata_age=...)`; asks nobody."""
        if names is None or not self._directory.brokers_are_fresh():
            return None
        topics = {name: self._directory.fresh_topic(name) for name in names}
        found = {name: topic for name, topic in topics.items() if topic is not None}
        return replace(self._directory.known, topics=MappingProxyType(found)) if len(found) == len(names) else None

    def forget(self, topics: Collection[str]) -> None:
        """Remembers nothing of these topics."""
        self._directory.forget_topics(topics)

    def topic(self, name: str, *, deadline: Deadline | None = None) -> Topic:
        """One topic, from memory unless that is stale; BrokerError when it stays unknown."""
        return self._persist(f"looking up topic {name}", deadline, lambda limit: self._resolver.topic(name, limit))

    def topics(self, names: Collection[str], *, deadline: Deadline | None = None) -> dict[str, Topic]:
        """Topics as the brokers have them now, not from memory; BrokerError when one stays unknown."""
        limit = deadline or Deadline.after(self.timeouts.total)
        if names:
            self.metadata(names, deadline=limit)
        return {name: self.topic(name, deadline=limit) for name in names}

    def leader(self, topic: str, partition: int, *, deadline: Deadline | None = None) -> Broker:
        """The leader of a partition, after waiting for an election if there is one."""
        target = LeaderOf(topic, partition)
        return self._persist(f"looking up {target}", deadline, lambda limit: self._resolver.leader(target, limit))

    def coordinator(self, key: str, kind: CoordinatorKind, *, deadline: Deadline | None = None) -> Broker:
        """The coordinator of a group or transactional id."""
        target = CoordinatorOf(kind, key)
        return self._persist(f"looking up {target}", deadline, lambda limit: self._resolver.coordinator(target, limit))

    def connection(self, broker: Broker, *, lane: str = CONTROL, deadline: Deadline | None = None) -> Connection:
        """The connection to a broker that everybody shares who uses the same lane; opened if need be."""
        self._check_usable()
        limit = deadline or Deadline.after(self.timeouts.total)
        try:
            return self._pool.get((broker.id, lane), broker.address, deadline=limit.sooner(self.timeouts.connect))
        except NetworkError:
            self._discovery.failed(broker.address)
            self._directory.doubt_led_by(broker.id)
            raise

    def call(
        self,
        target: Target,
        build: Callable[[VersionOf], messages.Message],
        *,
        check: Callable[[Any], T],
        what: str,
        deadline: Deadline | None = None,
        retrying: Callable[[OttlaError], None] | None = None,
    ) -> T:
        """Builds a request for the broker that `target` means now, sends it and judges the answer.

        `build` gets a function that tells the version of an API on that broker; `check` returns what the caller
        wants or raises BrokerError. What the error table calls retriable, and lost connections, are tried again
        until the deadline; `retrying` hears of each failure before the next try (a lost connection leaves open
        whether the request was carried out).
        """

        def attempt(limit: Deadline) -> T:
            connection = self._connection_to(target, limit)
            try:
                message = build(connection.version)
                response = connection.request(message, deadline=limit.sooner(self.timeouts.request))
            except NetworkError:
                self._discovery.failed(connection.address)
                raise
            return check(response)

        def failed(error: OttlaError) -> None:
            if not isinstance(error, BrokerError) or error.row.refresh:
                self.doubt(target)
            if retrying is not None:
                retrying(error)

        return self._persist(what, deadline, attempt, failed)

    def effort(self, what: str, deadline: Deadline | None = None) -> Attempts:
        """For loops of the caller's own: the same patience, backoff and final error as `call`."""
        self._check_usable()
        limit = deadline or Deadline.after(self.timeouts.total)
        rounds = None if self.known.brokers else self.retry.first_contact
        return Attempts(what, deadline=limit, retry=self.retry, chance=self._chance, pause=self._closing, rounds=rounds)

    def doubt(self, target: Target) -> None:
        """What led to `target`'s broker is looked up again before the next use."""
        match target:
            case LeaderOf(topic, _):
                self._directory.doubt_topics([topic])
            case CoordinatorOf(kind, key):
                self._directory.coordinates(kind, key, broker=None)
            case AnyBroker() | Controller() | Node():
                self._directory.doubt_brokers()

    def invalidate(self, *topics: str) -> None:
        """The leaders of these topics (none named: of all) are looked up again before their next use."""
        self._directory.doubt_topics(topics or tuple(self._directory.known.topics))

    def leader_moved(self, topic: str, partition: int, *, leader: int, epoch: int) -> bool:
        """A broker named another leader (KIP-951) with its epoch. False when it must still be looked up: `doubt` it.

        It replaces an older leader epoch if the broker with the id `leader` is known.
        """
        return self._directory.leader_moved(topic, partition, leader=leader, epoch=epoch)

    def leave(self, lane: str) -> None:
        """Closes the connections of a lane that nobody uses any more."""
        self._pool.release(lambda key: isinstance(key, tuple) and key[1:] == (lane,))

    def close(self) -> None:
        """Closes every connection, also those that are just being opened, and ends every wait."""
        self._closing.set()
        self._pool.close()

    def _persist(
        self,
        what: str,
        deadline: Deadline | None,
        attempt: Callable[[Deadline], T],
        failed: Callable[[OttlaError], None] | None = None,
    ) -> T:
        effort = self.effort(what, deadline)
        while True:
            try:
                return attempt(effort.deadline)
            except OttlaError as exc:
                if failed is not None:
                    failed(exc)
                effort.failed(exc)

    def _connection_to(self, target: Target, deadline: Deadline) -> Connection:
        match target:
            case AnyBroker():
                return self._discovery.any_connection(deadline)
            case Controller():
                broker = self._resolver.node(None, deadline)
                if broker is None:
                    return self._discovery.any_connection(deadline)
            case Node(node_id):
                broker = self._resolver.node(node_id, deadline)
            case LeaderOf():
                broker = self._resolver.leader(target, deadline)
            case CoordinatorOf():
                broker = self._resolver.coordinator(target, deadline)
        if broker is None:
            raise ConnectFailed(target, "not among the brokers that the cluster names: it is down, or never was")
        return self.connection(broker, deadline=deadline)

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise UsedAfterFork(
                f"this client was made in process {self._pid} before fork(); make one of its own in the child"
            )
        if self._closing.is_set():
            raise client_closed()
