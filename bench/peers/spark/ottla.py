"""The source and sink `ottla` and the archive job, in the session that `ottla.spark.session` makes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from bench.peers.spark import (
    MASTER_AND_MEMORY,
    SMALL_BATCH_RECORDS,
    Job,
    batch_seconds,
    nothing,
    rows,
    timed,
    without_first,
)
from ottla.engines import local
from ottla.engines import spark as on_spark
from ottla.jobs.archive_plan import Cutting
from ottla.jobs.archive_range import ArchiveRange, Brokers
from ottla.jobs.archiving import ArchiveRequest, Archiving
from ottla.lake.lake import Lake
from ottla.lake.layout import LakeSettings
from ottla.model import Isolation
from ottla.spark import session

_FILE_BYTES = 128 << 20


@cache
def _session() -> SparkSession:
    found = session("bench-ottla", conf=MASTER_AND_MEMORY)
    found.sparkContext.setLogLevel("ERROR")
    return found


def _topic(job: Job) -> DataFrame:
    return (
        _session()
        .read.format("ottla")
        .option("kafka.bootstrap.servers", job.bootstrap)
        .option("subscribe", job.topic)
        .load()
    )


def _read_noop(job: Job) -> Callable[[], None]:
    return lambda: _topic(job).write.format("noop").mode("overwrite").save()


def _read_nothing(job: Job) -> Callable[[], None]:
    """The same without Kafka: what Spark and its Python workers cost by themselves."""
    # The workers do not know where this program has its modules.
    cloudpickle.register_pickle_by_value(nothing)  # type: ignore[no-untyped-call]
    _session().dataSource.register(nothing.Nothing)
    options = {"records": job.records, "bytes": job.record_bytes}
    return lambda: (
        _session().read.format("nothing").options(**options).load().write.format("noop").mode("overwrite").save()
    )


def _archive(engine: Callable[[], Any]) -> Callable[[Job], Callable[[], int]]:
    """All of it: creating the archive, planning, tasks, ledger, publishing."""

    def prepare(job: Job) -> Callable[[], int]:
        run = engine()

        def work() -> int:
            lake = Lake.create(f"{job.folder}/archive", LakeSettings(partition_by=()))
            task = ArchiveRange(
                brokers=Brokers(bootstrap=job.bootstrap, isolation=Isolation.READ_UNCOMMITTED),
                path=str(lake.path),
                settings=lake.settings,
            )
            cutting = Cutting(file_bytes=_FILE_BYTES, workers=2)
            archiving = Archiving(lake, task, ArchiveRequest(topics=(job.topic,)), engine=run, cutting=cutting)
            return sum(receipt.count for entry in archiving.until_now() for receipt in entry.receipts)

        return work

    return prepare


def _write(delivery: str) -> Callable[[Job], Callable[[], None]]:
    def prepare(job: Job) -> Callable[[], None]:
        values = rows(_session(), job)

        def write() -> None:
            writer = values.write.format("ottla").mode("append").option("kafka.bootstrap.servers", job.bootstrap)
            writer.option("topic", job.topic).option("delivery", delivery).save()
            values.unpersist()

        return write

    return prepare


def _small_batches(job: Job) -> list[float]:
    query = (
        _session()
        .readStream.format("ottla")
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


VARIANTS = {
    "read to noop": timed(_read_noop),
    "read nothing to noop": timed(_read_nothing),
    "archive": timed(_archive(lambda: partial(on_spark.run, spark=_session()))),
    "archive, without Spark": timed(_archive(lambda: partial(local.run, workers=2))),
    "write": timed(_write("at-least-once")),
    "write, exactly once": timed(_write("exactly-once")),
}
PACED = {"micro-batches": _small_batches}
