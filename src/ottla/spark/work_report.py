"""A report of a fleet's work, from the event files that its nodes wrote (`RotatingFiles`), aggregated by Spark.

A session and paths come in; a `WorkReport` goes out: units, records and bytes per host and hour, the slowest units,
wasted reads, retries and failures. Damaged lines are counted and left out.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the customary name

from ottla.errors import InputError

SCHEMA = (
    "time double, event string, topic string, partition int, start bigint, stop bigint, reached bigint, status string,"
    " attempt int, records bigint, payload_bytes bigint, wasted_records bigint, seconds double, broker_id int,"
    " host string, reason string, node string"
)
"""The fields of the events that a report uses: `UnitEnded` and `UnitReclaimed`."""
_DAMAGED = "damaged_"
_ENDED, _RECLAIMED = "unit_ended", "unit_reclaimed"
_DONE = ("done", "part")
_HOUR = 3600
_NAMES = ("events-*.jsonl", "events-*.jsonl.gz")
_REASON_CHARACTERS = 120
_MOST_REASONS = 50


@dataclass(frozen=True, slots=True)
class HostHour:
    """The work of a host in an hour, by the time at which units ended."""

    host: str
    hour: int
    """Start of the hour, in seconds since 1970."""
    units: int
    """Units that were done, completely or in part."""
    records: int
    size_bytes: int
    seconds: float
    """Total time of all units, however they ended."""
    wasted_records: int
    not_done: int
    """Units that failed, were given back or were lost."""


@dataclass(frozen=True, slots=True)
class SlowUnit:
    """A unit that took long."""

    topic: str
    partition: int
    start: int
    stop: int
    attempt: int
    status: str
    host: str
    records: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Trouble:
    """Attempts that did not complete their unit: how they ended, why, and how many there were."""

    status: str
    reason: str
    units: int


@dataclass(frozen=True, slots=True)
class WorkReport:
    """The work of a fleet."""

    files: int
    lines: int
    damaged: int
    """Lines that could not be parsed."""
    units: int
    records: int
    size_bytes: int
    wasted_records: int
    """Records that were read and discarded: batches on a broker do not end where units do."""
    repeated_records: int
    """Records that were read by attempts that did not complete their unit."""
    retries: int
    """Attempts after the first."""
    hours: tuple[HostHour, ...]
    slowest: tuple[SlowUnit, ...]
    troubles: tuple[Trouble, ...]

    @property
    def waste(self) -> float:
        """The fraction of the records read that was discarded."""
        read = self.records + self.repeated_records + self.wasted_records
        return self.wasted_records / read if read else 0.0

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "waste": round(self.waste, 6)}


def find_files(path: str) -> list[str]:
    """The event files at a path: a folder, a file, or a pattern such as `/logs/*/events-*`.

    If a file exists both plain and compressed, the plain one was about to be deleted, and only the other counts. Raises
    `InputError` if there are no event files.
    """
    if "://" in path:  # a remote file system: Spark lists it
        return [path] if path.endswith((".jsonl", ".gz")) else [f"{path.rstrip('/')}/{name}" for name in _NAMES]
    patterns = [os.path.join(glob.escape(path), name) for name in _NAMES] if os.path.isdir(path) else [path]
    files = {file for pattern in patterns for file in glob.glob(pattern) if file.endswith((".jsonl", ".jsonl.gz"))}
    if not files:
        raise InputError(f"no event files at {path}: their names are events-*.jsonl or events-*.jsonl.gz")
    return [os.path.abspath(file) for file in sorted(files) if f"{file}.gz" not in files]


def work_report(spark: SparkSession, files: Sequence[str], *, slowest: int = 10) -> WorkReport:
    """Make the report of these files, with the `slowest` units."""
    lines = _lines(spark, files).persist()
    try:
        ended = lines.where(F.col("event") == _ENDED)
        total = _total(lines)
        hours = _hours(ended)
        return WorkReport(
            files=len(files),
            lines=total["lines"],
            damaged=total["damaged"],
            units=sum(row.units for row in hours),
            records=sum(row.records for row in hours),
            size_bytes=sum(row.size_bytes for row in hours),
            wasted_records=sum(row.wasted_records for row in hours),
            repeated_records=total["repeated"],
            retries=total["retries"],
            hours=hours,
            slowest=_slowest(ended, slowest),
            troubles=_troubles(lines),
        )
    finally:
        lines.unpersist()


def _lines(spark: SparkSession, files: Sequence[str]) -> DataFrame:
    """All lines as rows. A damaged line has only the mark that it is damaged."""
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _DAMAGED}
    text = spark.read.text(list(files)).where(F.trim("value") != "")
    rows = text.select(F.from_json("value", f"{SCHEMA}, {_DAMAGED} string", options).alias("row")).select("row.*")
    is_damaged = F.col(_DAMAGED).isNotNull() | F.col("event").isNull() | F.col("time").isNull()
    return rows.withColumn(_DAMAGED, is_damaged).withColumn("event", F.when(~F.col(_DAMAGED), F.col("event")))


def _total(lines: DataFrame) -> dict[str, int]:
    is_ended = F.col("event") == _ENDED
    totals = lines.select(
        F.count("*").alias("lines"),
        F.count_if(F.col(_DAMAGED)).alias("damaged"),
        F.count_if(is_ended & (F.col("attempt") > 1)).alias("retries"),
        F.sum(F.when(is_ended & ~F.col("status").isin(*_DONE), F.col("records"))).alias("repeated"),
    ).collect()[0]
    return {name: int(value or 0) for name, value in totals.asDict().items()}


def _hours(ended: DataFrame) -> tuple[HostHour, ...]:
    is_done = F.col("status").isin(*_DONE)
    grouped = ended.groupBy("host", (F.floor(F.col("time") / _HOUR) * _HOUR).cast("bigint").alias("hour")).agg(
        F.count_if(is_done).alias("units"),
        F.sum(F.when(is_done, F.col("records"))).alias("records"),
        F.sum(F.when(is_done, F.col("payload_bytes"))).alias("size_bytes"),
        F.sum("seconds").alias("seconds"),
        F.sum("wasted_records").alias("wasted_records"),
        F.count_if(~is_done).alias("not_done"),
    )
    return tuple(
        HostHour(
            host=row.host or "",
            hour=row.hour,
            units=row.units,
            records=row.records or 0,
            size_bytes=row.size_bytes or 0,
            seconds=round(row.seconds or 0.0, 3),
            wasted_records=row.wasted_records or 0,
            not_done=row.not_done,
        )
        for row in grouped.orderBy("hour", "host").collect()
    )


def _slowest(ended: DataFrame, count: int) -> tuple[SlowUnit, ...]:
    order = [F.col("seconds").desc_nulls_last(), F.col("topic"), F.col("partition"), F.col("start"), F.col("attempt")]
    names = ("topic", "partition", "start", "stop", "attempt", "status", "host", "records", "seconds")
    return tuple(SlowUnit(*row) for row in ended.orderBy(*order).limit(count).select(*names).collect())


def _troubles(lines: DataFrame) -> tuple[Trouble, ...]:
    """Group by the beginning of the reason: error texts often end with details that differ each time."""
    is_failed = (F.col("event") == _ENDED) & ~F.col("status").isin(*_DONE)
    status = F.when(F.col("event") == _RECLAIMED, F.lit("reclaimed")).otherwise(F.col("status"))
    reclaimed = F.concat(F.lit("the lease of "), F.regexp_extract("node", "^[^/]*", 0), F.lit(" stood still"))
    reason = F.when(F.col("event") == _RECLAIMED, reclaimed).otherwise(F.substring("reason", 1, _REASON_CHARACTERS))
    unfinished = lines.where(is_failed | (F.col("event") == _RECLAIMED))
    grouped = unfinished.groupBy(status.alias("status"), F.coalesce(reason, F.lit("")).alias("reason")).count()
    rows = grouped.orderBy(F.col("count").desc(), "status", "reason").limit(_MOST_REASONS).collect()
    return tuple(Trouble(row["status"], row["reason"], row["count"]) for row in rows)
