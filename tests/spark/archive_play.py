"""A program of streaming queries, to be killed: `python -m tests.spark.archive_play SETTINGS`.

It archives a topic, and copies it into another one with the exactly-once sink. SETTINGS is JSON: bootstrap, topic,
master, archives (a path for each format), copy (a topic) and checkpoint, conf. It ends when everything is copied.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import ottla.spark
from ottla.jobs.archive_plan import Cutting
from ottla.jobs.archive_range import Archived, ArchiveRange, Brokers
from ottla.jobs.archiving import ArchiveRequest
from ottla.lake import writer
from ottla.lake.lake import Lake
from ottla.lake.layout import Format, LakeSettings
from ottla.lake.writer import FileOptions
from ottla.model import OffsetRange
from ottla.spark.archiving import start_query

FILE_BYTES = 1 << 18
COPIED_AT_ONCE = 4_000
_LINGER = 0.3
"""Seconds that a task takes to finish a file: long enough to be killed in the middle."""


class SlowRange(ArchiveRange):
    """The job, with a slow disk."""

    __slots__ = ()

    def __call__(self, offset_range: OffsetRange) -> Archived:
        setattr(writer, "sync", _sync_slowly)  # noqa: B010 - the module imports it
        return super().__call__(offset_range)


def _sync_slowly(path: Path) -> None:
    with path.open("rb") as file:
        time.sleep(_LINGER)
        os.fsync(file.fileno())


def play(settings: dict[str, Any]) -> None:
    """Run a query per archive and one for the copy, all at the same time."""
    spark = ottla.spark.session("archive", master=settings["master"], conf=settings["conf"])
    queries = []
    for form, path in settings["archives"].items():
        lake = Lake.create(path, LakeSettings(format=Format(form)))
        job = SlowRange(
            brokers=Brokers(bootstrap=settings["bootstrap"]),
            path=path,
            settings=lake.settings,
            options=FileOptions(file_bytes=FILE_BYTES, row_group_bytes=1 << 16),
        )
        cutting = Cutting(file_bytes=FILE_BYTES, workers=4, batch_bytes=4 * FILE_BYTES)
        queries.append(start_query(spark, lake, job, ArchiveRequest(topics=(settings["topic"],)), cutting=cutting))
    copy_query = _copy(spark, settings) if settings.get("copy") else None
    for query in queries:
        while not query.wait(1.0):
            pass
    if copy_query is not None:
        copy_query.awaitTermination()
    spark.stop()


def _copy(spark: SparkSession, settings: dict[str, Any]) -> StreamingQuery:
    topic = spark.readStream.format("ottla").option("kafka.bootstrap.servers", settings["bootstrap"])
    rows = topic.option("subscribe", settings["topic"]).option("startingOffsets", "earliest")
    written = rows.option("maxOffsetsPerTrigger", COPIED_AT_ONCE).load().select("key", "value").writeStream
    sink = written.format("ottla").option("kafka.bootstrap.servers", settings["bootstrap"])
    located = sink.option("topic", settings["copy"]).option("checkpointLocation", settings["checkpoint"])
    return located.trigger(availableNow=True).start()


if __name__ == "__main__":
    from tests.spark.archive_play import play  # under the name that workers import

    play(json.loads(sys.argv[1]))
