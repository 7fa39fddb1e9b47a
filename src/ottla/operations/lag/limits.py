"""How topics forget, and how large their partitions are: asked rarely, for topics that groups lag in.

Comes in: topics. Goes out: their `Retention`, and sizes of partitions where a limit of size applies. Users who may not
ask for settings or sizes get neither, and lag is shown without them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ottla.admin import settings
from ottla.admin.sizes import find_sizes
from ottla.admin.topics import describe
from ottla.errors import ErrorCode, OttlaError
from ottla.model import TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.deadline import Deadline
from ottla.net.metadata import Metadata
from ottla.net.targets import AnyBroker
from ottla.operations.lag.values import Retention

_AGE = 300.0
"""Seconds for which answers are used again."""
_SETTINGS = ("cleanup.policy", "retention.ms", "retention.bytes")
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Limits:
    """Remembers what brokers said. Not thread-safe."""

    cluster: Cluster
    _retention: dict[str, tuple[float, Retention]] = field(default_factory=dict)
    _sizes: dict[TopicPartition, int] = field(default_factory=dict)
    _sized_at: float = float("-inf")

    def refresh(
        self, topics: Collection[str], *, now: float, deadline: Deadline
    ) -> tuple[Mapping[str, Retention], Mapping[TopicPartition, int]]:
        """Return the retention of these topics, and the sizes of their partitions, as far as brokers tell."""
        stale = {name for name in topics if now - self._retention.get(name, (-_AGE, None))[0] >= _AGE}
        try:
            if stale:
                found = self.cluster.call(
                    AnyBroker(),
                    partial(settings.build_describe, topics=sorted(stale), only=_SETTINGS),
                    check=_read,
                    what="describing topics",
                    deadline=deadline,
                )
                self._retention = {name: entry for name, entry in self._retention.items() if name in topics}
                self._retention |= {name: (now, retention) for name, retention in found.items()}
            bounded = {name for name in topics if self._size_limit(name) is not None}
            if bounded and now - self._sized_at >= _AGE:
                self._sized_at = now
                self._sizes = self._measure(bounded, deadline)
        except OttlaError as exc:
            _log.debug("cannot read the retention of topics: %s", exc)
        return {name: self._retention[name][1] for name in topics if name in self._retention}, self._sizes

    def _size_limit(self, name: str) -> int | None:
        return self._retention[name][1].size_bytes if name in self._retention else None

    def _measure(self, topics: Collection[str], deadline: Deadline) -> dict[TopicPartition, int]:
        known = self.cluster.known
        metadata = Metadata(topics={name: known.topics[name] for name in topics if name in known.topics})
        sizes = find_sizes(self.cluster, describe(metadata), deadline=deadline)
        return {tp: size for tp in sizes.copies if (size := sizes.largest(tp)) is not None}


def _read(response: Any) -> dict[str, Retention]:
    """Return the retention of each topic that the user may describe."""
    return {
        result.resource_name: _retention({row.name: row.value for row in result.configs})
        for result in response.results
        if result.error_code is ErrorCode.none
    }


def _retention(values: Mapping[str, str | None]) -> Retention:
    if "delete" not in (values.get("cleanup.policy") or "delete"):
        return Retention()  # compaction keeps the newest record of each key
    milliseconds, size = int(values.get("retention.ms") or -1), int(values.get("retention.bytes") or -1)
    return Retention(milliseconds / 1000 if milliseconds >= 0 else None, size if size >= 0 else None)
