"""How a job reaches a cluster and reads it: a value that travels with the job and creates clients where it runs.

The value itself never connects. The modules that decode records are imported when a reader is created: a process that
only plans does not need them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ottla.fetch.options import Fetching, parse_isolation
from ottla.model import Isolation
from ottla.net.access import ClusterAccess

if TYPE_CHECKING:
    from ottla.fetch.reader import Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class Brokers(ClusterAccess):
    """How to reach a cluster, and which isolation to read with."""

    client_id: str = "ottla-archive"
    isolation: Isolation = Isolation.READ_COMMITTED
    fetching: Fetching = field(default_factory=Fetching)

    def __post_init__(self) -> None:
        object.__setattr__(self, "isolation", parse_isolation(self.isolation))

    def reader(self) -> Reader:
        """Return a client that reads records."""
        from ottla.fetch.reader import Reader

        return Reader(self, isolation=self.isolation, fetching=self.fetching)
