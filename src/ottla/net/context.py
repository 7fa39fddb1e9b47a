"""The cluster and the event hub of a client, each either its own or shared.

The options that all clients have in common come in and are checked here. `close` closes what the client created, never
what it was given.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.config import PLAINTEXT, Address, Retry, Security, Timeouts, check_kind, check_name
from ottla.default_address import default_bootstrap
from ottla.errors import ConfigError
from ottla.events import Events, Sink
from ottla.net.access import ClusterAccess
from ottla.net.cluster import Cluster

Bootstrap = ClusterAccess | str | Iterable[str | Address]
"""Bootstrap addresses, or a `ClusterAccess`, whose settings then replace those of the client."""
Addresses = Cluster | Bootstrap
"""The same, or a shared `Cluster`."""
Sinks = Events | Iterable[Sink]
"""Callables that receive events, or a shared `Events` hub."""


class ClientContext:
    """A cluster and an event hub. `close` leaves a cluster or hub open that was passed in."""

    def __init__(
        self,
        cluster: Addresses | None,
        *,
        client_id: str,
        security: Security = PLAINTEXT,
        timeouts: Timeouts | None = None,
        retry: Retry | None = None,
        events: Sinks = (),
    ) -> None:
        """`cluster` None is the default: OTTLA_BOOTSTRAP, or the local cluster. Raises `ConfigError` if an option is
        invalid, or if there is no such cluster."""
        _check(security=security, client_id=client_id, timeouts=timeouts, retry=retry, events=events)
        self._owns_cluster = not isinstance(cluster, Cluster)
        self._owns_events = not isinstance(events, Events)
        if isinstance(cluster, Cluster):
            self.cluster = cluster
        elif isinstance(cluster, ClusterAccess):
            self.cluster = cluster.cluster()
        else:
            cluster = default_bootstrap() if cluster is None else cluster
            self.cluster = Cluster(cluster, security=security, client_id=client_id, timeouts=timeouts, retry=retry)
        self.events = events if isinstance(events, Events) else Events(*events)

    def close(self) -> None:
        """Close the cluster and the hub, unless they were passed in."""
        if self._owns_cluster:
            self.cluster.close()
        if self._owns_events:
            self.events.close()


def _check(*, security: object, client_id: object, timeouts: object, retry: object, events: object) -> None:
    check_kind("security", security, Security)
    check_name("client_id", client_id)
    for name, value, kind in (("timeouts", timeouts, Timeouts), ("retry", retry, Retry)):
        if value is not None:
            check_kind(name, value, kind)
    if not isinstance(events, Events) and not (isinstance(events, Iterable) and all(map(callable, events))):
        raise ConfigError(f"events must be Events or a list of callables, for example [print], got {events!r}")
