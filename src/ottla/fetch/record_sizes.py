"""What a record takes on the disks of the brokers, on average, for each partition: an estimate for planning.

A cluster and where logs begin and end come in. The brokers are asked once a minute, and when a partition gets its first
records; where they do not tell, it is a guess.
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
"""What a record takes where no broker tells."""


class RecordSizes:
    """Remembers the last answer."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._sizes: dict[TopicPartition, float] = {}
        self._asked = float("-inf")
        self._asked_for: frozenset[TopicPartition] = frozenset()

    def of(
        self, topics: Collection[str], begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> RecordBytes:
        """For these partitions."""
        filled = frozenset(at for at, end in ends.items() if end > begins.get(at, end))
        if filled - self._asked_for or time.monotonic() - self._asked > _GOOD_SECONDS:
            self._asked, self._asked_for = time.monotonic(), filled
            self._sizes = self._measure(topics, begins, ends) if filled else {}
        return self._sizes or GUESS_BYTES

    def _measure(
        self, topics: Collection[str], begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, float]:
        """From the size of the logs: right on average, whatever single records are like."""
        try:
            sizes = Admin(self._cluster).replica_sizes(topics, timeout=_ASK_SECONDS)
        except OttlaError as error:  # brokers need not let everybody look at their disks
            _log.info("no broker tells how large the logs are, guessing %.0f bytes a record: %s", GUESS_BYTES, error)
            return {}
        found: dict[TopicPartition, float] = {}
        for at, end in ends.items():
            size = sizes.largest(at)
            if size and end > begins.get(at, end):
                found[at] = size / (end - begins[at])
        return found
