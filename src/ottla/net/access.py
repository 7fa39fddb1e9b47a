"""`ClusterAccess`: how to reach a cluster, as a value that travels with jobs and tasks.

It can be pickled and never connects. Clients take it in place of bootstrap addresses, where the work runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from ottla.config import PLAINTEXT, Retry, Security, Timeouts

if TYPE_CHECKING:
    from ottla.net.cluster import Cluster

A = TypeVar("A", bound="ClusterAccess")


@runtime_checkable
class SecuritySource(Protocol):
    """Makes security settings on the machine that uses them, for example from files in memory."""

    def security(self) -> Security:
        """Return settings for clients in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAccess:
    """How to reach a cluster."""

    bootstrap: str
    security: Security | SecuritySource = PLAINTEXT
    client_id: str = "ottla"
    timeouts: Timeouts = field(default_factory=Timeouts)
    retry: Retry = field(default_factory=Retry)

    def with_timeout(self: A, seconds: float) -> A:
        """Return a copy whose calls retry for up to `seconds` before they raise."""
        return replace(self, timeouts=replace(self.timeouts, total=seconds))

    def resolved_security(self) -> Security:
        """Return security settings for clients in this process."""
        return self.security.security() if isinstance(self.security, SecuritySource) else self.security

    def cluster(self) -> Cluster:
        """Return a new client for metadata and offsets. It connects at its first call; the caller closes it."""
        # Planning processes import this module and may never connect.
        from ottla.net.cluster import Cluster

        return Cluster(
            self.bootstrap,
            security=self.resolved_security(),
            client_id=self.client_id,
            timeouts=self.timeouts,
            retry=self.retry,
        )
