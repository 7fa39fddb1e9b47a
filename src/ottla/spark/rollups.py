"""Roll-ups: counts, sums, extremes and distinct estimates in windows of time, by Spark's stateful operators.

A topic (or a streaming DataFrame with the same columns) comes in; one small record for each window and group goes out,
to a topic through the exactly-once sink or to Parquet files. Records that cannot be read and data that comes too late
are counted and told, never just left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery

from ottla.errors import ConfigError
from ottla.spark.names import CONNECTION
from ottla.spark.rollup_fields import FieldOf, Measure, field, is_corrupt, measure, parsed_json, time_field
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
"""For formats other than JSON: adds columns to the source's rows, which are then named as `column:NAME`."""


@dataclass(frozen=True, slots=True)
class Rollup:
    """What is added up, checked: `Rollup.of(...)` makes one from texts."""

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
        """From texts such as `window="1m"`, `by=["json:user"]`, `measures=["count", "sum(json:amount)"]`."""
        found = cls(
            window=interval("window", window),
            slide=None if slide is None else interval("slide", slide),
            event_time=time_field(event_time),
            watermark=interval("watermark", watermark),
            by=tuple(field(one) for one in by),
            measures=tuple(measure(one) for one in measures),
        )
        names = ["window_start", "window_end", *found.names]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"the results would have {', '.join(twice)} twice")
        if not found.measures:
            raise ConfigError("nothing is added up: give at least count")
        return found

    @property
    def names(self) -> list[str]:
        """The columns of the results, after the window's."""
        return [*(one.name for one in self.by), *(one.name for one in self.measures)]

    @property
    def fields(self) -> list[FieldOf]:
        """Every place in a record that is looked at."""
        return [self.event_time, *self.by, *(one.field for one in self.measures if one.field is not None)]

    @property
    def source_schema(self) -> str:
        """The columns of the source that are needed; the others are not decoded."""
        needed = {name for one in self.fields for name in one.columns} or {"timestamp"}
        return ", ".join(f"{name} {kind}" for name, kind in _COLUMN_TYPES.items() if name in needed)

    def over(self, records: DataFrame) -> DataFrame:
        """The results, for a stream or for rows at rest: window_start, window_end, groups, measures."""
        rows = self._rows(records)
        readable = rows.where(~F.col("_unreadable")).withWatermark("_time", self.watermark)
        slide = (self.slide,) if self.slide is not None else ()
        groups = [F.col(f"_by{number}").alias(one.name) for number, one in enumerate(self.by)]
        sums = [one.over(f"_of{number}").alias(one.name) for number, one in enumerate(self.measures)]
        made = readable.groupBy(F.window("_time", self.window, *slide).alias("_window"), *groups).agg(*sums)
        start, end = F.col("_window.start").alias("window_start"), F.col("_window.end").alias("window_end")
        return made.select(start, end, *(F.col(f"`{name}`") for name in self.names))

    def _rows(self, records: DataFrame) -> DataFrame:
        """One row for each record, with what of it counts, under names of our own."""
        parsed = parsed_json(self.fields)
        staged = records if parsed is None else records.withColumn("_json", parsed)
        json = None if parsed is None else F.col("_json")
        columns = [self.event_time.moment(json).alias("_time")]
        columns += [one.text(json).alias(f"_by{number}") for number, one in enumerate(self.by)]
        bad: list[Column] = [F.col("_time").isNull()]
        texts: list[Column] = []
        for number, one in enumerate(self.measures):
            if one.field is None:
                continue
            text = one.field.text(json)
            texts.append((text.try_cast("double") if one.is_number else text).alias(f"_of{number}"))
            if one.is_number:
                bad.append(F.col(f"_given{number}") & F.col(f"_of{number}").isNull())
                texts.append(text.isNotNull().alias(f"_given{number}"))
        if json is not None:
            columns.append(is_corrupt(json).alias("_corrupt"))
            bad.append(F.col("_corrupt"))
        rows = staged.select(*columns, *texts).withColumn("_unreadable", reduce(or_, bad))
        if not records.isStreaming:
            return rows
        return rows.observe(
            _READ,
            F.count(F.lit(1)).alias("records"),
            F.coalesce(F.sum(F.col("_unreadable").cast("long")), F.lit(0)).alias("unreadable"),
        )


@dataclass(frozen=True, slots=True)
class Counts:
    """What happened to records."""

    records: int = 0
    unreadable: int = 0
    """No JSON object, no time, or no number where one is needed."""
    late: int = 0
    """Older than the watermark. Spark counts a window and group of a task once, however many records it drops."""
    results: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.records + other.records,
            self.unreadable + other.unreadable,
            self.late + other.late,
            self.results + other.results,
        )


def counts_of(progress: Mapping[str, Any]) -> Counts:
    """Of one batch, from its progress."""
    observed = progress.get("observedMetrics") or {}
    read, made = observed.get(_READ), observed.get(_MADE)
    operators = progress.get("stateOperators") or []
    return Counts(
        records=0 if read is None else read["records"] or 0,
        unreadable=0 if read is None else read["unreadable"] or 0,
        late=sum(one["numRowsDroppedByWatermark"] for one in operators),
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
    """Starts the query. `source` is one or more topics, with `options` of the source and sink (`kafka.*` and such), or
    a streaming DataFrame; `to` is a topic, or a folder if it has a slash. It ends where the topics end now, unless
    `follow` says how often to look for more ("10s").

    In mode `append` a window is told once, when the watermark has passed its end; in `update` after every batch that
    changed it, for topics only.
    """
    if mode not in _MODES:
        raise ConfigError(f"mode is {mode!r}; accepted are {' and '.join(_MODES)}")
    if is_folder(to) and mode == "update":
        raise ConfigError("files cannot be changed afterwards: mode update is for topics")
    given = dict(options or {})
    # What a function of the user's looks at is not known: it gets every column.
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
    pace = {"availableNow": True} if follow is None else {"processingTime": interval("follow", follow)}
    query: StreamingQuery = writer.trigger(**pace).start()
    return query


def is_folder(to: str) -> bool:
    """Whether results go to files: no topic has a slash in its name."""
    return "/" in to


def interval(name: str, text: str) -> str:
    """`90s`, `1m`, `2h`, `1d`, or in Spark's words, as Spark has them."""
    match = _DURATION.fullmatch(text)
    if match is not None and int(match[1]):
        return f"{int(match[1])} {_UNITS[match[2]]}"
    if _WORDS.fullmatch(text):
        return text.strip()
    raise ConfigError(f"{name} is {text!r}; accepted is a time such as 500ms, 90s, 1m, 2h or 1d")


def as_records(results: DataFrame, what: Rollup) -> DataFrame:
    """Results as rows of the sink: the groups as the key, everything as a JSON object in the value."""
    groups = [one.name for one in what.by]
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
    mine = {name: value for name, value in reading.items() if name.lower() not in _FOR_SINK}
    return spark.readStream.format("ottla").options(**mine).schema(schema).load()


def _to_topic(results: DataFrame, what: Rollup, topic: str, options: Mapping[str, str]) -> Any:
    mine = {name: value for name, value in options.items() if name.lower() in _FOR_SINK | _FOR_BOTH}
    return as_records(results, what).writeStream.format("ottla").options(**mine).option("topic", topic)


def _to_topic_by_batches(
    results: DataFrame, what: Rollup, topic: str, options: Mapping[str, str], checkpoint: str
) -> Any:
    """Spark takes no Python sink in mode update, but foreachBatch; a commit log makes that exactly once as well."""
    mine = {name: value for name, value in options.items() if name.lower() in _FOR_SINK | _FOR_BOTH}
    log = {"commitLog": f"{checkpoint.rstrip('/')}/ottla-sink"}
    given = {**log, **mine, "topic": topic}

    def put(batch: DataFrame, number: int) -> None:
        as_records(batch, what).write.format("ottla").options(**given).mode("append").save()

    return results.writeStream.foreachBatch(put)


def _to_files(results: DataFrame, path: str) -> Any:
    folder = path.rstrip("/")

    def put(batch: DataFrame, number: int) -> None:
        # A folder for each batch, replaced as a whole: a batch that Spark runs again leaves the same files.
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        rows = batch.persist()
        try:
            if not rows.isEmpty():
                rows.write.mode("overwrite").parquet(f"{folder}/batch={query}-{number}")
        finally:
            rows.unpersist()

    return results.writeStream.foreachBatch(put)


def _utc(name: str) -> Column:
    """A time as text in UTC, whatever zone the session has."""
    return F.date_format(F.to_utc_timestamp(name, F.current_timezone()), _ISO).alias(name)
