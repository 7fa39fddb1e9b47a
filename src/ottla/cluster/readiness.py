"""Asks a broker for the active brokers of its cluster: those that have caught up and are no longer fenced."""

from __future__ import annotations

from ottla.cluster.ports import is_open
from ottla.config import PLAINTEXT, Address, Retry, Security
from ottla.errors import OttlaError
from ottla.net import Cluster, Deadline

_QUICK = Retry(initial=0.05, maximum=0.2)


def known_brokers(address: Address, *, security: Security = PLAINTEXT, timeout: float) -> frozenset[int]:
    """Return the ids that the broker at this address lists; none if it does not answer."""
    if not is_open(address.port):
        return frozenset()  # Cheaper than the client's own attempts while the JVMs need every cycle.
    # A new client each time: one that knows the other brokers would ask them too.
    with Cluster([address], security=security, client_id="ottla-cluster", retry=_QUICK) as client:
        try:
            return frozenset(client.metadata(deadline=Deadline.after(timeout)).brokers)
        except OttlaError:
            return frozenset()
