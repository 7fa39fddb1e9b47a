"""What the tests of mirrors share: links on one cluster, under other names, and comparisons by a foreign reader."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import confluent_kafka

from ottla.admin import Admin
from ottla.events import Sink
from ottla.jobs.mirror_link import Link
from ottla.jobs.mirror_runner import LinkRun, run_links
from ottla.mirror.rules import Policy
from ottla.model import TopicPartition

_SECONDS = 30.0
_numbers = itertools.count(1)

Seen = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]
"""Key, value, headers and timestamp."""


def new_topic(bootstrap: str, name: str, *, partitions: int = 1, settings: Mapping[str, str] | None = None) -> str:
    """Create a topic with a name of its own."""
    topic = f"mirror-{name}-{next(_numbers)}"
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=partitions, replicas=1, settings=settings)
    return topic


def link_of(bootstrap: str, *topics: str, name: str = "", **options: Any) -> Link:
    """A link from the cluster to itself, under other names."""
    rules = options.pop("rules", None) or Policy(patience=20.0)
    return Link(
        source=options.pop("source", bootstrap),
        target=options.pop("target", bootstrap),
        topics=topics,
        name=name or f"link-{topics[0]}",
        rename="copy.{topic}",
        rules=rules,
        replicas=1,
        journal="mirror-tests-journal",
        **options,
    )


def seen(bootstrap: str, topic: str, partition: int = 0, *, isolation: str = "read_committed") -> list[Seen]:
    """What confluent-kafka reads of a partition, from its beginning to its end."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "check.crcs": True,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    with closing(consumer):
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
        records: list[Seen] = []
        while True:
            messages = consumer.consume(100, 0.2) or consumer.consume(1, _SECONDS)
            assert messages, f"{topic}-{partition} does not end"
            for message in messages:
                error = message.error()
                if error is not None:
                    assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                    return records
                headers: Any = tuple(message.headers() or ())
                records.append((message.key(), message.value(), headers, message.timestamp()[1]))


def assert_equal(bootstrap: str, topic: str, *, partitions: int = 1, target: str | None = None) -> int:
    """Source and copy are the same for a foreign reader, whether it reads committed data or all. Returns how many."""
    count = 0
    for partition in range(partitions):
        source = seen(bootstrap, topic, partition)
        for isolation in ("read_committed", "read_uncommitted"):
            assert seen(bootstrap, target or f"copy.{topic}", partition, isolation=isolation) == source
        count += len(source)
    return count


def tp(topic: str, partition: int = 0) -> TopicPartition:
    """A partition."""
    return TopicPartition(topic, partition)


@contextmanager
def running(*links: Link, events: Sequence[Sink] = ()) -> Iterator[list[LinkRun]]:
    """Links that follow their topics until the block ends."""
    stopped, begun = threading.Event(), threading.Event()
    runs: list[LinkRun] = []

    def watch(started: Sequence[LinkRun]) -> None:
        runs.extend(started)
        begun.set()

    settings = {"follow": True, "is_stopped": stopped.is_set, "watch": watch, "status_seconds": 0.3, "events": events}
    thread = threading.Thread(target=lambda: run_links(links, **settings))  # type: ignore[arg-type]
    thread.start()
    try:
        assert begun.wait(30)
        yield runs
    finally:
        stopped.set()
        thread.join(30)
    assert not thread.is_alive()
    assert not any(run.is_running for run in runs), "nothing is left behind"
