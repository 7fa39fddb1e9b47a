"""Asks one broker which brokers of its cluster take part: those that have caught up and are no longer fenced."""

from __future__ import annotations

from ottla.cluster.ports import is_open
from ottla.config import PLAINTEXT, Address, Retry, Security
from ottla.errors import OttlaError
from ottla.net import Cluster, Deadline

_QUICK = Retry(initial=0.05, maximum=0.2)


def known_brokers(address: Address, *, security: Security = PLAINTEXT, timeout: float) -> frozenset[int]:
    """The ids that the broker at this address names, none while it does not answer."""
    if not is_open(address.port):
        return frozenset()  # cheaper than a client's own attempts, while the JVMs need every cycle
    # A new client each time: one that has learnt of the other brokers would ask those as well.
    with Cluster([address], security=security, client_id="ottla-cluster", retry=_QUICK) as client:
        try:
            return frozenset(client.metadata(deadline=Deadline.after(timeout)).brokers)
        except OttlaError:
            return frozenset()
