"""How a job reaches a cluster: a value that travels with the job and creates clients where it runs.

The value itself never connects. The modules that decode records are imported when a reader is created: a process that
only plans does not need them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ottla.config import PLAINTEXT, Security, Timeouts
from ottla.fetch.options import Fetching, parse_isolation
from ottla.model import Isolation
from ottla.net import Cluster

if TYPE_CHECKING:
    from ottla.fetch.reader import Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class Brokers:
    """How to reach a cluster, and which isolation to read with."""

    bootstrap: str
    security: Security = PLAINTEXT
    client_id: str = "ottla-archive"
    timeouts: Timeouts = field(default_factory=Timeouts)
    isolation: Isolation = Isolation.READ_COMMITTED
    fetching: Fetching = field(default_factory=Fetching)

    def __post_init__(self) -> None:
        object.__setattr__(self, "isolation", parse_isolation(self.isolation))

    def cluster(self) -> Cluster:
        """Return a client for metadata and offsets."""
        return Cluster(self.bootstrap, security=self.security, client_id=self.client_id, timeouts=self.timeouts)

    def reader(self) -> Reader:
        """Return a client that reads records."""
        from ottla.fetch.reader import Reader

        return Reader(
            self.bootstrap,
            security=self.security,
            client_id=self.client_id,
            timeouts=self.timeouts,
            isolation=self.isolation,
            fetching=self.fetching,
        )
