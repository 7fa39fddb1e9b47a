"""Topics of these tests, and what is in them, read by another client."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

from tests.interop.clients import confluent_read

from ottla import Batching, Producer, TopicPartition
from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.gateway.intake import Intake


class Logged(NamedTuple):
    """A record as it is in the log."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    time_ms: int
    partition: int


def new_topic(kafka: LocalCluster, name: str, *, partitions: int = 2) -> str:
    """Create a topic with a name of its own."""
    topic = f"gateway-{name}-{os.getpid()}"
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic(topic, partitions=partitions, replicas=1)
    return topic


def logged(kafka: LocalCluster, topic: str) -> list[Logged]:
    """Return everything in a topic, partition by partition."""
    records = []
    for number, stop in _stops(kafka, topic).items():
        for key, value, headers, time_ms in confluent_read(kafka.bootstrap, TopicPartition(topic, number), stop):
            records.append(Logged(key, value, tuple(headers), time_ms, number))
    return records


def count(kafka: LocalCluster, topic: str) -> int:
    """Return how many records a topic has."""
    return sum(_stops(kafka, topic).values())


def _stops(kafka: LocalCluster, topic: str) -> dict[int, int]:
    with Admin(kafka.bootstrap) as admin:
        return {found.partition: found.stop for found in admin.log_ranges(topic).values()}


@contextmanager
def intake(kafka: LocalCluster, **settings: Any) -> Iterator[Intake]:
    """A producer behind an intake."""
    settings.setdefault("batching", Batching(linger=0.02))
    with (
        Producer(kafka.bootstrap, **settings) as producer,
        closing(Intake(producer, has_spool="spool" in settings)) as made,
    ):
        yield made
