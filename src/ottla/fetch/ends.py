"""Where the log of a partition begins and ends at this moment."""

from __future__ import annotations

from typing import NamedTuple

from ottla.admin.lookup import find_offsets
from ottla.admin.offsets import OffsetSpec
from ottla.model import Isolation, TopicPartition
from ottla.net import Cluster
from ottla.net.deadline import Deadline


class Ends(NamedTuple):
    """The first offset that can be read, and the one after the last."""

    first: int
    last: int


def find_ends(cluster: Cluster, at: TopicPartition, *, isolation: Isolation) -> Ends:
    """Asks the leader."""
    deadline = Deadline.after(cluster.timeouts.request)
    first, last = (
        find_offsets(cluster, [at], at=spec, isolation=isolation, deadline=deadline)[at].offset
        for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
    )
    return Ends(first, last)
