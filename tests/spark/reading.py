"""Helpers for tests of the source: topics, queries to wait for, and deliberate loss of records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import confluent_kafka
from confluent_kafka import admin as confluent_admin
from tests.waiting import eventually

import ottla
from ottla.admin import Admin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def new_topic(bootstrap: str, partitions: int = 1, **settings: str) -> str:
    name = f"source-{uuid4().hex[:12]}"
    with Admin(bootstrap) as admin:
        admin.create_topic(name, partitions=partitions, settings={k.replace("_", "."): v for k, v in settings.items()})
    return name


def write(bootstrap: str, topic: str, numbers: range, partition: int | None = None) -> None:
    """Send the numbers as values, in order within each partition."""
    with ottla.Producer(bootstrap) as producer:
        for number in numbers:
            producer.send(topic, b"%d" % number, partition=partition)


def cut_off(bootstrap: str, topic: str, offset: int, partition: int = 0) -> None:
    """Delete the records before an offset."""
    admin = confluent_admin.AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.delete_records([confluent_kafka.TopicPartition(topic, partition, offset)]).values():
        done.result(30)


def read(spark: SparkSession, bootstrap: str, topic: str, **options: str) -> DataFrame:
    """A batch query."""
    base = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    return spark.read.format("ottla").options(**{**base, **options}).load()


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row[0]) for row in frame.select("value").collect())


class Play:
    """A streaming query whose values are collected as numbers, batch by batch."""

    def __init__(self, spark: SparkSession, bootstrap: str, topic: str, folder: Path, **options: str) -> None:
        self.batches: dict[int, list[int]] = {}
        self._spark = spark
        self._folder = folder
        self._options: Mapping[str, str] = {
            "kafka.bootstrap.servers": bootstrap,
            "subscribe": topic,
            "startingOffsets": "earliest",
            **options,
        }

    @property
    def values(self) -> list[int]:
        return [value for _, batch in sorted(self.batches.items()) for value in batch]

    def _writer(self) -> Any:
        frame = self._spark.readStream.format("ottla").options(**self._options).load()

        def keep(batch: DataFrame, number: int) -> None:
            self.batches[number] = [int(row[0]) for row in batch.select("value").collect()]

        return frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(self._folder))

    def until_now(self) -> StreamingQuery:
        """Run until all existing records are read."""
        query: StreamingQuery = self._writer().trigger(availableNow=True).start()
        assert query.awaitTermination(120), "the query did not end"
        return query

    @contextmanager
    def running(self, trigger: str = "0 seconds") -> Iterator[StreamingQuery]:
        query: StreamingQuery = self._writer().trigger(processingTime=trigger).start()
        try:
            yield query
        finally:
            query.stop()

    def await_values(self, query: StreamingQuery, expected: list[int], seconds: float = 90.0) -> None:
        def arrived() -> bool:
            assert query.isActive, f"the query ended: {query.exception()}"
            return len(self.values) >= len(expected)

        eventually(arrived, lambda: f"{len(expected)} values expected, {len(self.values)} arrived", seconds=seconds)
        assert sorted(self.values) == expected
