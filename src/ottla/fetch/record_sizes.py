"""Estimates the average size of a record on the brokers' disks, for each partition, for planning.

A cluster and the extents of logs come in, bytes per record go out. Brokers are asked once a minute, and when a
partition gets its first records. If they do not answer, it is a guess.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping

from ottla.admin import Admin
from ottla.errors import OttlaError
from ottla.model import TopicPartition
from ottla.net import Cluster
from ottla.plan import RecordBytes

_log = logging.getLogger(__name__)
_GOOD_SECONDS = 60.0
"""How long an estimate is good enough."""
_ASK_SECONDS = 10.0
GUESS_BYTES = 200.0
"""The size of a record if no broker answers."""


class RecordSizes:
    """Estimates sizes, and remembers the last answer of the brokers."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._sizes: dict[TopicPartition, float] = {}
        self._measured_at = float("-inf")
        self._measured: frozenset[TopicPartition] = frozenset()

    def of(
        self, topics: Collection[str], begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> RecordBytes:
        """Return the estimate for these partitions. Never raises for brokers that do not answer."""
        filled = frozenset(partition for partition, end in ends.items() if end > begins.get(partition, end))
        if filled - self._measured or time.monotonic() - self._measured_at > _GOOD_SECONDS:
            self._measured_at, self._measured = time.monotonic(), filled
            self._sizes = self._measure(topics, begins, ends) if filled else {}
        return self._sizes or GUESS_BYTES

    def _measure(
        self, topics: Collection[str], begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, float]:
        """Divide the sizes of the logs by their records: right on average, however much single records differ."""
        try:
            log_sizes = Admin(self._cluster).replica_sizes(topics, timeout=_ASK_SECONDS)
        except OttlaError as error:  # the user may lack the permission to describe log directories
            _log.info("log sizes are unknown, assuming %.0f bytes per record: %s", GUESS_BYTES, error)
            return {}
        sizes: dict[TopicPartition, float] = {}
        for partition, end in ends.items():
            log_size = log_sizes.largest(partition)
            if log_size and end > begins.get(partition, end):
                sizes[partition] = log_size / (end - begins[partition])
        return sizes
