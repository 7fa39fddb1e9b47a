"""The cluster client: finds the right broker for a request, sends it, and retries.

A target, a function that builds the request and one that checks the response come in. The checked response goes
out, or a single error that names everything that was tried. Each call has one deadline; the table of error codes
decides what is retried, with jittered backoff. It knows no particular API.
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
    """Whether cached metadata will do."""

    NOW = "now"
    IF_STALE = "if stale"


class Cluster:
    """A client of one Kafka cluster. Constructing it does not connect. Threads may share it."""

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
        """Check the settings; `chance` shortens backoffs at random. Raises `ConfigError` if one of them is invalid."""
        self.bootstrap = parse_bootstrap(bootstrap)
        self.security = accepted(security)
        check_name("client_id", client_id)
        self.client_id = client_id
        self.timeouts = timeouts or Timeouts()
        self.retry = retry or Retry()
        self._chance = chance or random.Random()
        self._closing = Flag()
        self._pid = os.getpid()
        # Absolute paths, because files are read at each connect and the program may change its directory.
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
        """The cached metadata, stale or not. Never sends a request."""
        return self._directory.known

    def deadline(self, timeout: float | None = None) -> Deadline:
        """Return the deadline of a call that starts now: `timeout` seconds, or `Timeouts.total` without it."""
        return Deadline.after(self.timeouts.total if timeout is None else timeout)

    def metadata(
        self,
        topics: Collection[str] | None = (),
        *,
        deadline: Deadline | None = None,
        refresh: Refresh = Refresh.NOW,
        unknown: OnUnknownTopic = OnUnknownTopic.REFUSE,
    ) -> Metadata:
        """Return brokers, controller and the named topics (None: all; empty: none). Unknown topics carry their error.

        `refresh` says whether cached metadata will do, `unknown` whether unknown topics are created.
        Raises `NoBrokerReachable` or `DeadlineExceeded` if no broker answers in time.
        """
        names = None if topics is None else frozenset([topics] if isinstance(topics, str) else topics)
        if refresh is Refresh.IF_STALE:
            remembered = self.remembered(names)
            if remembered is not None:
                return remembered
        query = MetadataQuery(names, unknown)
        return self._retry_until("Metadata", deadline, lambda limit: self._discovery.look(query, limit, since_now=True))

    def remembered(self, names: frozenset[str] | None) -> Metadata | None:
        """Return cached metadata of these topics without a request.

        None if any of it is unknown or older than `Timeouts(metadata_age=...)`.
        """
        if names is None or not self._directory.brokers_are_fresh():
            return None
        fresh = {name: topic for name in names if (topic := self._directory.fresh_topic(name)) is not None}
        return replace(self._directory.known, topics=MappingProxyType(fresh)) if len(fresh) == len(names) else None

    def forget(self, topics: Collection[str]) -> None:
        """Drop everything that is cached about these topics."""
        self._directory.forget_topics(topics)

    def topic(self, name: str, *, deadline: Deadline | None = None) -> Topic:
        """Return the topic `name`, from the cache unless that is stale.

        Raises `BrokerError` if it stays unknown, and `NoBrokerReachable` or `DeadlineExceeded` when time runs out.
        """
        return self._retry_until(f"looking up topic {name}", deadline, lambda limit: self._resolver.topic(name, limit))

    def topics(self, names: Collection[str], *, deadline: Deadline | None = None) -> dict[str, Topic]:
        """Return the topics as the brokers have them now, not from the cache. Raises as `topic` does."""
        limit = deadline or self.deadline()
        if names:
            self.metadata(names, deadline=limit)
        return {name: self.topic(name, deadline=limit) for name in names}

    def leader(self, topic: str, partition: int, *, deadline: Deadline | None = None) -> Broker:
        """Return the leader of a partition, waiting for a running election. Raises as `topic` does."""
        target = LeaderOf(topic, partition)
        return self._retry_until(f"looking up {target}", deadline, lambda limit: self._resolver.leader(target, limit))

    def coordinator(self, key: str, kind: CoordinatorKind, *, deadline: Deadline | None = None) -> Broker:
        """Return the coordinator of `key`: a group or transactional id, as `kind` says. Raises as `topic` does."""
        target = CoordinatorOf(kind, key)
        return self._retry_until(
            f"looking up {target}", deadline, lambda limit: self._resolver.coordinator(target, limit)
        )

    def connection(self, broker: Broker, *, channel: str = CONTROL, deadline: Deadline | None = None) -> Connection:
        """Return the connection to `broker` that all users of `channel` share, opening it if necessary.

        Raises `NetworkError` if the broker cannot be reached.
        """
        self.check_usable()
        limit = deadline or self.deadline()
        try:
            return self._pool.get((broker.id, channel), broker.address, deadline=limit.sooner(self.timeouts.connect))
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
        """Build a request for the broker that `target` currently means, send it and check the response.

        `what` names the call in errors. `build` gets a function that returns the version of an API to use with that
        broker. `check` returns the result or raises `BrokerError`. Lost connections, and errors that the table of codes
        calls retriable, are retried until the deadline. `retrying` is called with each failure before the next attempt:
        after a lost connection the broker may or may not have carried out the request. Raises the `BrokerError` of
        `check` if a retry is pointless, and `NoBrokerReachable` or `DeadlineExceeded` when time runs out.
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

        return self._retry_until(what, deadline, attempt, failed)

    def attempts(self, what: str, deadline: Deadline | None = None) -> Attempts:
        """Return a retry loop for a caller's own requests, with the backoff of `call`. Its last error names `what`."""
        self.check_usable()
        limit = deadline or self.deadline()
        rounds = None if self.known.brokers else self.retry.first_contact
        return Attempts(what, deadline=limit, retry=self.retry, chance=self._chance, pause=self._closing, rounds=rounds)

    def doubt(self, target: Target) -> None:
        """Mark what led to the broker of `target` as stale: it is looked up again before the next use."""
        match target:
            case LeaderOf(topic, _):
                self._directory.doubt_topics([topic])
            case CoordinatorOf(kind, key):
                self._directory.coordinates(kind, key, broker=None)
            case AnyBroker() | Controller() | Node():
                self._directory.doubt_brokers()

    def invalidate(self, *topics: str) -> None:
        """Mark the leaders of these topics (none named: of all topics) as stale."""
        self._directory.doubt_topics(topics or tuple(self._directory.known.topics))

    def leader_moved(self, topic: str, partition: int, *, leader: int, epoch: int) -> bool:
        """Record the leader that a broker named in a response (KIP-951).

        It replaces an older leader `epoch` if the broker with the id `leader` is known. Returns False if the leader
        must still be looked up: then call `doubt`.
        """
        return self._directory.leader_moved(topic, partition, leader=leader, epoch=epoch)

    def leave(self, channel: str) -> None:
        """Close the connections of `channel`. The caller must be its last user."""
        self._pool.release(lambda key: isinstance(key, tuple) and key[1:] == (channel,))

    def close(self) -> None:
        """Close every connection, including those that are being opened, and end every wait."""
        self._closing.set()
        self._pool.close()

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked child, in which threads and connections are the parent's."""
        return os.getpid() != self._pid

    def check_usable(self) -> None:
        """Raises `UsedAfterFork` in a child process, and `ConnectionLost` if the client is closed."""
        if self.is_inherited:
            raise UsedAfterFork(
                f"this client was created in process {self._pid} before fork(); create a new one in the child process"
            )
        if self._closing.is_set():
            raise client_closed()

    def _retry_until(
        self,
        what: str,
        deadline: Deadline | None,
        attempt: Callable[[Deadline], T],
        failed: Callable[[OttlaError], None] | None = None,
    ) -> T:
        attempts = self.attempts(what, deadline)
        while True:
            try:
                return attempt(attempts.deadline)
            except OttlaError as exc:
                if failed is not None:
                    failed(exc)
                attempts.failed(exc)

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
            raise ConnectFailed(target, "not in the cluster's list of brokers: it is down or does not exist")
        return self.connection(broker, deadline=deadline)
