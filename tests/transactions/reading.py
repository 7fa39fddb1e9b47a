"""What readers of another client see of a topic: the committed records, and all of them."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import closing
from types import TracebackType
from typing import Literal

import confluent_kafka

SECONDS = 30.0

Isolation = Literal["read_committed", "read_uncommitted"]


class Log:
    """The brokers, read by confluent-kafka."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._readers: dict[Isolation, confluent_kafka.Consumer] = {
            isolation: _consumer(bootstrap, isolation) for isolation in ("read_committed", "read_uncommitted")
        }

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for reader in self._readers.values():
            reader.close()

    def committed(self, topic: str) -> list[bytes]:
        """Every committed value, sorted, once no transaction is open in the topic. Fails if readers are stuck."""
        ends = self._ends(topic)
        values, reached = _read(self._readers["read_committed"], topic, ends)
        stuck = {partition: (reached.get(partition), end) for partition, end in ends.items()}
        assert all(reached.get(p, -1) >= end for p, end in ends.items()), f"readers wait at (offset, end): {stuck}"
        return sorted(values)

    def visible(self, topic: str) -> list[bytes]:
        """Every committed value that a reader sees now, sorted."""
        return sorted(_read(self._readers["read_committed"], topic, dict.fromkeys(self._ends(topic), 0))[0])

    def everything(self, topic: str) -> list[bytes]:
        """Every value in the log, committed or not, sorted."""
        return sorted(_read(self._readers["read_uncommitted"], topic, self._ends(topic))[0])

    def group_offsets(self, group: str, topic: str, partitions: Collection[int]) -> list[int]:
        """The next offsets that a group would read; -1001 if it has none. Waits for open transactions to end."""
        with closing(_consumer(self._bootstrap, "read_committed", group=group)) as consumer:
            tps = [confluent_kafka.TopicPartition(topic, partition) for partition in partitions]
            return [tp.offset for tp in consumer.committed(tps, timeout=SECONDS)]

    def _ends(self, topic: str) -> dict[int, int]:
        """The high watermark of each partition, which includes what is not committed."""
        reader = self._readers["read_uncommitted"]
        numbers = reader.list_topics(topic, timeout=SECONDS).topics[topic].partitions
        partitions = {number: confluent_kafka.TopicPartition(topic, number) for number in numbers}
        return {
            number: reader.get_watermark_offsets(partition, timeout=SECONDS)[1]
            for number, partition in partitions.items()
        }


def _consumer(bootstrap: str, isolation: Isolation, *, group: str = "unused") -> confluent_kafka.Consumer:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "isolation.level": isolation,
        "enable.partition.eof": True,
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 20,
    }
    return confluent_kafka.Consumer(settings)


def _read(reader: confluent_kafka.Consumer, topic: str, ends: dict[int, int]) -> tuple[list[bytes], dict[int, int]]:
    """Read until every partition has reached its end. Returns the values, and where each partition ended."""
    reader.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in ends])
    values: list[bytes] = []
    reached: dict[int, int] = {}
    deadline = time.monotonic() + SECONDS
    while any(reached.get(p, -1) < end for p, end in ends.items()) and time.monotonic() < deadline:
        message = reader.poll(0.5)
        if message is None:
            continue
        error = message.error()
        if error is None:
            values.append(message.value() or b"")
        elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
            reached[message.partition() or 0] = message.offset() or 0
    reader.unassign()
    return values, reached
