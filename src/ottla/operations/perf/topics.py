"""The topics of a performance test: those that do not exist are created, and removed at the end.

Names come in; `Prepared` says which of them were created here. Records of existing topics are never touched: who writes
into one has to say so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ottla.admin.admin import Admin
from ottla.admin.topics import NewTopic
from ottla.errors import ConfigError
from ottla.operations.perf.workload import Workload


@dataclass(frozen=True, slots=True)
class Prepared:
    """The topics of a run."""

    created: tuple[str, ...]
    partitions: int
    """Of all topics together."""


def existing(admin: Admin, names: Collection[str]) -> list[str]:
    """Return which of the topics exist."""
    known = {topic.name for topic in admin.describe_topics()}
    return [name for name in names if name in known]


@contextmanager
def prepared(admin: Admin, workload: Workload, *, writes: bool, existing_too: bool = False) -> Iterator[Prepared]:
    """Create what is missing; remove it at the end of the block, however that comes.

    Raises `ConfigError` if the test `writes`, a topic exists, and `existing_too` is not set.
    """
    there = existing(admin, workload.topics)
    if there and writes and not existing_too:
        raise ConfigError(f"topic {there[0]} exists: a performance test would add records to it")
    missing = [name for name in workload.topics if name not in there]
    if missing:
        admin.create_topics(
            [NewTopic(name=name, partitions=workload.partitions, replicas=workload.replicas) for name in missing]
        )
    try:
        described = admin.describe_topics(workload.topics)
        yield Prepared(tuple(missing), sum(len(topic.partitions) for topic in described))
    finally:
        if missing:
            remove(admin, missing)


def remove(admin: Admin, names: Collection[str]) -> None:
    """Delete those of the topics that exist."""
    there = existing(admin, names)
    if there:
        admin.delete_topics(there)
