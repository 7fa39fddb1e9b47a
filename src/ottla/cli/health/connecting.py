"""The cluster that the commands of `ottla health` look at: no call of theirs waits for long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cli.options.connection import few_retries

if TYPE_CHECKING:
    from ottla.config import Security
    from ottla.net.cluster import Cluster

_CONNECT_SECONDS = 5.0
_REQUEST_SECONDS = 10.0


def cluster_of(bootstrap: str, security: Security, *, timeout: float) -> Cluster:
    """Return a client of the cluster. It connects when it is used."""
    from ottla.config import Timeouts
    from ottla.net.cluster import Cluster

    limits = Timeouts(total=timeout, connect=min(_CONNECT_SECONDS, timeout), request=min(_REQUEST_SECONDS, timeout))
    return Cluster(bootstrap, security=security, client_id="ottla-health", timeouts=limits, retry=few_retries())
