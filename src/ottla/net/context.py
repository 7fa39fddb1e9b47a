"""What every client stands on: a cluster and events, each its own or somebody else's.

The options that all clients have come in and are checked in this one place; `close` closes what the client made itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.config import PLAINTEXT, Address, Retry, Security, Timeouts, check_kind, check_name
from ottla.errors import ConfigError
from ottla.events import Events, Sink
from ottla.net.cluster import Cluster

Addresses = Cluster | str | Iterable[str | Address]
"""Where the brokers are: bootstrap addresses, or a cluster that others use, too."""
Sinks = Events | Iterable[Sink]
"""Who hears what happens: callables, or a hub that others use, too."""


class ClientContext:
    """A cluster and a hub for events. A cluster or hub that was handed in is left open."""

    def __init__(
        self,
        cluster: Addresses,
        *,
        client_id: str,
        security: Security = PLAINTEXT,
        timeouts: Timeouts | None = None,
        retry: Retry | None = None,
        events: Sinks = (),
    ) -> None:
        _check(security=security, client_id=client_id, timeouts=timeouts, retry=retry, events=events)
        self._owns_cluster = not isinstance(cluster, Cluster)
        self._owns_events = not isinstance(events, Events)
        if isinstance(cluster, Cluster):
            self.cluster = cluster
        else:
            self.cluster = Cluster(cluster, security=security, client_id=client_id, timeouts=timeouts, retry=retry)
        self.events = events if isinstance(events, Events) else Events(*events)

    def close(self) -> None:
        """Closes what is its own."""
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
