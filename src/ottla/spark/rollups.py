"""Roll-ups: counts, sums, minima, maxima and distinct estimates in time windows, by Spark's stateful operators.

A topic (or a streaming DataFrame with the same columns) comes in; one small record per window and group goes out, to a
topic through the exactly-once sink or to Parquet files. Unreadable and late records are counted and reported, never
dropped silently.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the customary name
from pyspark.sql.streaming.query import StreamingQuery

from ottla.errors import ConfigError
from ottla.spark import rollup_fields
from ottla.spark.option_names import CONNECTION
from ottla.spark.rollup_fields import FieldOf, Measure, is_corrupt, parsed_json, time_field
from ottla.spark.sink_options import SINK_OPTIONS

_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_DURATION = re.compile(r"\s*(\d+)\s*(ms|s|m|h|d)\s*")
_WORDS = re.compile(r"\s*\d+\s+[a-z]+\s*", re.I)
_MODES = ("append", "update")
_ISO = "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"
_READ, _MADE = "ottla_rollup_read", "ottla_rollup_made"
_COLUMN_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "timestamp": "timestamp",
    "headers": "array<struct<key:string,value:binary>>",
}
_FOR_SINK = {name.lower() for name in SINK_OPTIONS}
_FOR_BOTH = {name.lower() for name in CONNECTION}
Decode = Callable[[DataFrame], DataFrame]
"""For formats other than JSON: a function that adds columns, which fields then name as `column:NAME`."""


@dataclass(frozen=True, slots=True)
class Rollup:
    """What to aggregate, checked. `Rollup.of(...)` makes one from texts."""

    window: str
    slide: str | None
    event_time: FieldOf
    watermark: str
    by: tuple[FieldOf, ...]
    measures: tuple[Measure, ...]

    @classmethod
    def of(
        cls,
        *,
        window: str,
        slide: str | None = None,
        event_time: str = "record",
        watermark: str = "10m",
        by: Sequence[str] = (),
        measures: Sequence[str] = ("count",),
    ) -> Rollup:
        """From texts such as `window="1m"`, `by=["json:user"]`, `measures=["count", "sum(json:amount)"]`.

        Raises `ConfigError` for a text that is not accepted, or if two results would have the same name.
        """
        made = cls(
            window=interval("window", window),
            slide=None if slide is None else interval("slide", slide),
            event_time=time_field(event_time),
            watermark=interval("watermark", watermark),
            by=tuple(map(rollup_fields.field, by)),
            measures=tuple(map(rollup_fields.measure, measures)),
        )
        names = ["window_start", "window_end", *made.names]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ConfigError(f"the results would have {', '.join(repeated)} twice")
        if not made.measures:
            raise ConfigError("no measures: give at least count")
        return made

    @property
    def names(self) -> list[str]:
        """The columns of the results, without those of the window."""
        return [*(group.name for group in self.by), *(measure.name for measure in self.measures)]

    @property
    def fields(self) -> list[FieldOf]:
        """Every field of a record that is read."""
        measured = (measure.field for measure in self.measures if measure.field is not None)
        return [self.event_time, *self.by, *measured]

    @property
    def source_schema(self) -> str:
        """The columns that the source has to read; others are not decoded."""
        needed = {name for field in self.fields for name in field.columns} or {"timestamp"}
        return ", ".join(f"{name} {kind}" for name, kind in _COLUMN_TYPES.items() if name in needed)

    def over(self, records: DataFrame) -> DataFrame:
        """The results: window_start, window_end, groups, measures. `records` may be a stream or a static DataFrame."""
        rows = self._rows(records)
        readable = rows.where(~F.col("_unreadable")).withWatermark("_time", self.watermark)
        slide = (self.slide,) if self.slide is not None else ()
        groups = [F.col(f"_by{number}").alias(group.name) for number, group in enumerate(self.by)]
        sums = [measure.over(f"_of{number}").alias(measure.name) for number, measure in enumerate(self.measures)]
        aggregated = readable.groupBy(F.window("_time", self.window, *slide).alias("_window"), *groups).agg(*sums)
        start, end = F.col("_window.start").alias("window_start"), F.col("_window.end").alias("window_end")
        return aggregated.select(start, end, *(F.col(f"`{name}`") for name in self.names))

    def _rows(self, records: DataFrame) -> DataFrame:
        """One row per record with the columns that matter, under our own names."""
        parsed = parsed_json(self.fields)
        staged = records if parsed is None else records.withColumn("_json", parsed)
        json = None if parsed is None else F.col("_json")
        columns = [self.event_time.moment(json).alias("_time")]
        columns += [group.text(json).alias(f"_by{number}") for number, group in enumerate(self.by)]
        unreadable: list[Column] = [F.col("_time").isNull()]
        texts: list[Column] = []
        for number, measure in enumerate(self.measures):
            if measure.field is None:
                continue
            text = measure.field.text(json)
            texts.append((text.try_cast("double") if measure.is_number else text).alias(f"_of{number}"))
            if measure.is_number:
                unreadable.append(F.col(f"_given{number}") & F.col(f"_of{number}").isNull())
                texts.append(text.isNotNull().alias(f"_given{number}"))
        if json is not None:
            columns.append(is_corrupt(json).alias("_corrupt"))
            unreadable.append(F.col("_corrupt"))
        rows = staged.select(*columns, *texts).withColumn("_unreadable", reduce(or_, unreadable))
        if not records.isStreaming:
            return rows
        return rows.observe(
            _READ,
            F.count(F.lit(1)).alias("records"),
            F.coalesce(F.sum(F.col("_unreadable").cast("long")), F.lit(0)).alias("unreadable"),
        )


@dataclass(frozen=True, slots=True)
class Counts:
    """How many records were read, and what became of them."""

    records: int = 0
    unreadable: int = 0
    """Records without a JSON object, a time, or a number that a measure needs."""
    late: int = 0
    """Older than the watermark. Spark counts one per task, window and group, however many records it drops."""
    results: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.records + other.records,
            self.unreadable + other.unreadable,
            self.late + other.late,
            self.results + other.results,
        )


def counts_of(progress: Mapping[str, Any]) -> Counts:
    """The counts of one batch, from its progress report."""
    observed = progress.get("observedMetrics") or {}
    read, made = observed.get(_READ), observed.get(_MADE)
    operators = progress.get("stateOperators") or []
    return Counts(
        records=0 if read is None else read["records"] or 0,
        unreadable=0 if read is None else read["unreadable"] or 0,
        late=sum(operator["numRowsDroppedByWatermark"] for operator in operators),
        results=0 if made is None else made["results"] or 0,
    )


def rollup(
    spark: SparkSession,
    source: str | Sequence[str] | DataFrame,
    *,
    what: Rollup,
    to: str,
    checkpoint: str,
    options: Mapping[str, str] | None = None,
    mode: str = "append",
    decode: Decode | None = None,
    follow: str | None = None,
) -> StreamingQuery:
    """Start the query of `what`. Raises `ConfigError` for a wrong mode, interval or option.

    `source` is one or more topics, with `options` for source and sink (`kafka.*` and the like), or a streaming
    DataFrame. `checkpoint` is a folder of its own, `decode` makes columns of records. `to` is a topic, or a folder if
    it has a slash. The query ends where the topics end now; with `follow` ("10s") it continues and looks for more that
    often.

    In mode `append` it emits each window once, when the watermark has passed its end. In mode `update`, for topics
    only, it emits a window after every batch that changed it.
    """
    if mode not in _MODES:
        raise ConfigError(f"mode is {mode!r}; accepted are {' and '.join(_MODES)}")
    if is_folder(to) and mode == "update":
        raise ConfigError("files cannot be updated: mode update is for topics")
    given = dict(options or {})
    # A user's function may look at any column, so it gets all of them.
    schema = (
        what.source_schema if decode is None else ", ".join(f"{name} {kind}" for name, kind in _COLUMN_TYPES.items())
    )
    records = source if isinstance(source, DataFrame) else _topics(spark, source, given, schema)
    results = what.over(records if decode is None else decode(records))
    counted = results.observe(_MADE, F.count(F.lit(1)).alias("results"))
    if is_folder(to):
        writer = _to_files(counted, to)
    elif mode == "append":
        writer = _to_topic(counted, what, to, given)
    else:
        writer = _to_topic_by_batches(counted, what, to, given, checkpoint)
    writer = writer.option("checkpointLocation", checkpoint).outputMode(mode)
    trigger = {"availableNow": True} if follow is None else {"processingTime": interval("follow", follow)}
    query: StreamingQuery = writer.trigger(**trigger).start()
    return query


def is_folder(to: str) -> bool:
    """Whether results go to files: topic names have no slash."""
    return "/" in to


def interval(name: str, text: str) -> str:
    """Turn `90s`, `1m`, `2h`, `1d` into Spark's form, which is accepted as well. Raises `ConfigError` otherwise."""
    match = _DURATION.fullmatch(text)
    if match is not None and int(match[1]):
        return f"{int(match[1])} {_UNITS[match[2]]}"
    if _WORDS.fullmatch(text):
        return text.strip()
    raise ConfigError(f"{name} is {text!r}; accepted is a time such as 500ms, 90s, 1m, 2h or 1d")


def as_records(results: DataFrame, what: Rollup) -> DataFrame:
    """The results as rows for the sink: groups as the key, everything as a JSON object in the value."""
    groups = [group.name for group in what.by]
    fields = [_utc("window_start"), _utc("window_end"), *(F.col(f"`{name}`") for name in what.names)]
    value = F.to_json(F.struct(*fields), {"ignoreNullFields": "false"}).alias("value")
    if not groups:
        return results.select(value)
    if len(groups) == 1:
        key = F.col(f"`{groups[0]}`").cast("string")
    else:
        key = F.to_json(F.array(*(F.col(f"`{name}`").cast("string") for name in groups)))
    return results.select(key.alias("key"), value)


def _topics(spark: SparkSession, source: str | Sequence[str], options: Mapping[str, str], schema: str) -> DataFrame:
    names = [source] if isinstance(source, str) else list(source)
    reading = {"startingOffsets": "earliest", "subscribe": ",".join(names), **options}
    if "headers" in schema:
        reading["includeHeaders"] = "true"
    source_options = {name: value for name, value in reading.items() if name.lower() not in _FOR_SINK}
    return spark.readStream.format("ottla").options(**source_options).schema(schema).load()


def _to_topic(results: DataFrame, what: Rollup, topic: str, options: Mapping[str, str]) -> Any:
    return (
        as_records(results, what).writeStream.format("ottla").options(**_sink_options(options)).option("topic", topic)
    )


def _to_topic_by_batches(
    results: DataFrame, what: Rollup, topic: str, options: Mapping[str, str], checkpoint: str
) -> Any:
    """Write with foreachBatch: Spark takes no Python sink in mode update. A commit log makes it exactly once, too."""
    log = {"commitLog": f"{checkpoint.rstrip('/')}/ottla-sink"}
    sink_options = {**log, **_sink_options(options), "topic": topic}

    def write_batch(batch: DataFrame, number: int) -> None:
        as_records(batch, what).write.format("ottla").options(**sink_options).mode("append").save()

    return results.writeStream.foreachBatch(write_batch)


def _sink_options(options: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if name.lower() in _FOR_SINK | _FOR_BOTH}


def _to_files(results: DataFrame, path: str) -> Any:
    folder = path.rstrip("/")

    def write_batch(batch: DataFrame, number: int) -> None:
        # One folder per batch, replaced as a whole: a batch that Spark repeats leaves the same files.
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        rows = batch.persist()
        try:
            if not rows.isEmpty():
                rows.write.mode("overwrite").parquet(f"{folder}/batch={query}-{number}")
        finally:
            rows.unpersist()

    return results.writeStream.foreachBatch(write_batch)


def _utc(name: str) -> Column:
    """A time as text in UTC, whatever the session's time zone."""
    return F.date_format(F.to_utc_timestamp(name, F.current_timezone()), _ISO).alias(name)
