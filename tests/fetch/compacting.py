"""Topics that a real broker has compacted, with holes where keys were overwritten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import confluent_kafka.admin
from tests.interop.clients import confluent_write
from tests.interop.samples import Sent
from tests.waiting import eventually

from ottla.cluster import LocalCluster
from ottla.model import TopicPartition

confluent_admin: Any = confluent_kafka.admin  # its names are not exported as mypy sees it
_SECONDS = 30.0

COMPACTION = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "100",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": "100",
    "delete.retention.ms": "100",
}
"""Settings of a topic that is compacted as soon as possible."""


def compact(kafka: LocalCluster, at: TopicPartition, count: int, *, is_there: Callable[[], int]) -> None:
    """Write `count` records, two thirds of them under seven keys, and wait until a third of all is gone.

    `is_there` returns how many are left.
    """
    clean_often(kafka)
    for first in range(0, count, 100):
        records = [Sent(b"%d" % (n % 7 if n % 3 else n), b"%d" % n, (), n + 1) for n in range(first, first + 100)]
        confluent_write(kafka.bootstrap, at, "zstd" if first % 200 else "none", records)

    def compacted() -> bool:
        confluent_write(kafka.bootstrap, at, "none", [Sent(b"tick", b"tock", (), 1)])  # a new segment begins
        return is_there() < count - count // 3

    eventually(compacted, "the log is compacted", seconds=60)


def clean_often(kafka: LocalCluster) -> None:
    """Make the brokers look for logs to compact all the time."""
    admin = confluent_admin.AdminClient({"bootstrap.servers": kafka.bootstrap})
    entry = confluent_admin.ConfigEntry(
        "log.cleaner.backoff.ms",
        "100",
        incremental_operation=confluent_admin.AlterConfigOpType.SET,
    )
    brokers = [
        confluent_admin.ConfigResource(confluent_admin.ResourceType.BROKER, str(broker), incremental_configs=[entry])
        for broker in admin.list_topics(timeout=_SECONDS).brokers
    ]
    for broker in brokers:  # it takes one at a time
        for done in admin.incremental_alter_configs([broker]).values():
            done.result(_SECONDS)
