"""How a job reaches a cluster: a value that travels to where the job runs, and makes clients there.

Nothing connects here, and what decodes records is imported only when a reader is made: whoever plans needs none of it.
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
    """How to reach a cluster, and which records of transactions to see there."""

    bootstrap: str
    security: Security = PLAINTEXT
    client_id: str = "ottla-archive"
    timeouts: Timeouts = field(default_factory=Timeouts)
    isolation: Isolation = Isolation.READ_COMMITTED
    fetching: Fetching = field(default_factory=Fetching)

    def __post_init__(self) -> None:
        object.__setattr__(self, "isolation", parse_isolation(self.isolation))

    def cluster(self) -> Cluster:
        """A client for questions."""
        return Cluster(self.bootstrap, security=self.security, client_id=self.client_id, timeouts=self.timeouts)

    def reader(self) -> Reader:
        """A client for records."""
        from ottla.fetch.reader import Reader

        return Reader(
            self.bootstrap,
            security=self.security,
            client_id=self.client_id,
            timeouts=self.timeouts,
            isolation=self.isolation,
            fetching=self.fetching,
        )
