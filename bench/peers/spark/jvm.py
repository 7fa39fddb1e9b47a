"""Spark's own Kafka connector, in a session as its users have it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache

from pyspark.sql import DataFrame, SparkSession
from tests.spark.connector import connector_jars

from bench.peers.spark import MASTER_AND_MEMORY, SMALL_BATCH_RECORDS, Job, batch_seconds, rows, timed, without_first

_LOCAL_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


@cache
def _session() -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("bench-jvm")
    for name, value in MASTER_AND_MEMORY.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.config("spark.jars", ",".join(map(str, connector_jars()))).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _topic(job: Job) -> DataFrame:
    return (
        _session()
        .read.format("kafka")
        .option("kafka.bootstrap.servers", job.bootstrap)
        .option("subscribe", job.topic)
        .load()
    )


def _read_noop(job: Job) -> Callable[[], None]:
    return lambda: _topic(job).write.format("noop").mode("overwrite").save()


def _archive(codec: str) -> Callable[[Job], Callable[[], None]]:
    def prepare(job: Job) -> Callable[[], None]:
        return lambda: _topic(job).write.option("compression", codec).parquet(f"{job.folder}/archive-{codec}")

    return prepare


def _write(job: Job) -> Callable[[], None]:
    values = rows(_session(), job)

    def write() -> None:
        writer = values.write.format("kafka").option("kafka.bootstrap.servers", job.bootstrap)
        writer.option("topic", job.topic).save()
        values.unpersist()

    return write


def _small_batches(manager: str | None) -> Callable[[Job], list[float]]:
    def run(job: Job) -> list[float]:
        session = _session()
        session.conf.unset("spark.sql.streaming.checkpointFileManagerClass")
        if manager is not None:
            session.conf.set("spark.sql.streaming.checkpointFileManagerClass", manager)
        query = (
            session.readStream.format("kafka")
            .option("kafka.bootstrap.servers", job.bootstrap)
            .option("subscribe", job.topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", SMALL_BATCH_RECORDS)
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", f"{job.folder}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return without_first(batch_seconds(query))

    return run


VARIANTS = {
    "read to noop": timed(_read_noop),
    "archive": timed(_archive("zstd")),
    "archive, snappy": timed(_archive("snappy")),
    "write": timed(_write),
}
PACED = {
    "micro-batches": _small_batches(None),
    "micro-batches, simple checkpoint files": _small_batches(_LOCAL_CHECKPOINTS),
}
