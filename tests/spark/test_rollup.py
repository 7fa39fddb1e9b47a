"""Roll-ups: windows by the time in the payload, late and unreadable records reported, restarts that lose nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from tests.transactions.reading import Log

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.errors import ConfigError
from ottla.produce.producer import Producer
from ottla.spark.rollup_fields import Kind, field, measure, time_field
from ottla.spark.rollups import Counts, Rollup, counts_of, interval, rollup

MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
CLICKS = Rollup.of(
    window="1m",
    event_time="json:ts",
    watermark="10s",
    by=["json:user.id"],
    measures=["count", "sum(json:amount)", "min(json:amount)", "max(json:amount)", "distinct(json:page)"],
)


def _click(second: float, user: str, amount: object = 1, page: str = "home") -> bytes:
    return json.dumps({"ts": MIDNIGHT + second, "user": {"id": user}, "amount": amount, "page": page}).encode()


def _rows(spark: SparkSession, values: Sequence[bytes | str]) -> DataFrame:
    encoded = [value if isinstance(value, bytes) else value.encode() for value in values]
    return spark.createDataFrame([(value,) for value in encoded], "value binary")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-01-01T00:00:10Z", 10),
        ("2026-01-01T02:00:10+02:00", 10),
        ("2026-01-01 00:00:10.5", 10.5),
        ("2026-01-02", 86400),
        (str(int(MIDNIGHT) + 10), 10),
        (str(MIDNIGHT + 10.25), 10.25),
        (str(int(MIDNIGHT * 1000) + 10_250), 10.25),
        (str(int(MIDNIGHT * 10**6) + 10_250_001), 10.250001),
        (str(int(MIDNIGHT) * 10**9 + 10 * 10**9), 10),
        ("soon", None),
        ("-5", None),
        ("", None),
    ],
)
def test_times_are_read_as_everywhere_in_ottla(spark: SparkSession, text: str, seconds: float | None) -> None:
    rows = spark.createDataFrame([(text,)], "at string")
    (micros,) = rows.select(F.unix_micros(time_field("column:at").moment(None))).first() or (None,)
    assert micros == (None if seconds is None else round((MIDNIGHT + seconds) * 1e6))


def test_records_are_added_up_by_window_and_group(spark: SparkSession) -> None:
    values = [_click(1, "a", 2, "home"), _click(59.9, "a", "3.5", "cart"), _click(60, "a", 1), _click(5, "b", None)]
    results = {
        (row.window_start.second, row.window_start.minute, row.user_id): row
        for row in CLICKS.over(_rows(spark, values)).collect()
    }
    first = results[0, 0, "a"]
    assert (first["count"], first.sum_amount, first.min_amount, first.max_amount, first.distinct_page) == (
        2,
        5.5,
        2,
        3.5,
        2,
    )
    assert results[0, 1, "a"]["count"] == 1
    assert (results[0, 0, "b"]["count"], results[0, 0, "b"].sum_amount) == (1, None)


def test_windows_may_overlap(spark: SparkSession) -> None:
    sliding = Rollup.of(window="1m", slide="20s", event_time="json:ts")
    windows = sliding.over(_rows(spark, [_click(30, "a")])).orderBy("window_start").collect()
    assert [(row.window_end - row.window_start).seconds for row in windows] == [60, 60, 60]
    assert [row["count"] for row in windows] == [1, 1, 1]


def test_groups_come_from_headers_and_keys_as_well(spark: SparkSession) -> None:
    what = Rollup.of(window="1h", by=["header:site", "key", "partition"])
    rows = spark.sql(
        "select cast('k' as binary) key, 2 partition, timestamp'2026-01-01 00:00:00Z' timestamp,"
        " array(named_struct('key','site','value',cast('old' as binary)),"
        " named_struct('key','site','value',cast('new' as binary))) headers"
    )
    (row,) = what.over(rows).collect()
    assert (row.site, row.key, row.partition, row["count"]) == ("new", "k", "2", 1)


def test_other_formats_are_decoded_by_a_function(spark: SparkSession) -> None:
    what = Rollup.of(window="1m", event_time="column:at", by=["column:who"], measures=["sum(column:n)"])
    rows = _rows(spark, ["10;a;1", "20;a;2"])
    parts = F.split(F.col("value").cast("string"), ";")
    decoded = rows.select(parts[0].alias("at"), parts[1].alias("who"), parts[2].alias("n"))
    (row,) = what.over(decoded).collect()
    assert (row.who, row.sum_n) == ("a", 3.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"window": "soon"}, "window is 'soon'; accepted is a time such as"),
        ({"window": "0s"}, "window is '0s'"),
        ({"window": "1m", "by": ["user"]}, "'user' is not a field of a record; accepted are json:FIELD"),
        ({"window": "1m", "event_time": "json:"}, "'json:' is not a field of a record"),
        ({"window": "1m", "measures": ["avg(json:x)"]}, "'avg(json:x)' is not a measure"),
        ({"window": "1m", "measures": ["count(json:x)"]}, "is not a measure"),
        ({"window": "1m", "measures": ["sum"]}, "is not a measure"),
        ({"window": "1m", "measures": []}, "no measures: give"),
        ({"window": "1m", "by": ["json:a", "json:a"]}, "would have a twice"),
    ],
)
def test_wrong_rollups_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Rollup.of(**given)
    assert message in str(caught.value)


def test_names_and_places_are_parsed() -> None:
    assert measure("sum( json:a.b )").name == "sum_a_b"
    assert measure("count").kind is Kind.COUNT
    assert field("header:x-site").name == "x_site"
    assert interval("window", "90s") == "90 seconds"
    assert interval("window", "2 hours") == "2 hours"
    assert CLICKS.source_schema == "value binary"
    with pytest.raises(ConfigError, match="accepted are append and update"):
        rollup(None, "t", what=CLICKS, to="x", checkpoint="c", mode="complete")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="mode update is for topics"):
        rollup(None, "t", what=CLICKS, to="/x", checkpoint="c", mode="update")  # type: ignore[arg-type]


class _Site:
    """A topic of clicks and the results of a roll-up over it."""

    def __init__(self, spark: SparkSession, kafka: LocalCluster, folder: Path, name: str) -> None:
        self.spark, self.kafka, self.folder = spark, kafka, folder
        self.source, self.target = f"rollup-{name}", f"rollup-{name}-minutes"
        with Admin(kafka.bootstrap) as admin:
            admin.create_topic(self.source, partitions=2)
            admin.create_topic(self.target, partitions=2)

    def send(self, *values: bytes) -> None:
        with Producer(self.kafka.bootstrap) as producer:
            producer.send_many(self.source, values)

    def run(self, to: str | None = None, mode: str = "append") -> Counts:
        query = rollup(
            self.spark,
            self.source,
            what=CLICKS,
            to=to or self.target,
            checkpoint=str(self.folder / "checkpoint"),
            options={"kafka.bootstrap.servers": self.kafka.bootstrap},
            mode=mode,
        )
        query.awaitTermination()
        return sum((counts_of(progress) for progress in query.recentProgress), Counts())

    def results(self, log: Log) -> dict[tuple[str, str], dict[str, Any]]:
        records = [json.loads(value) for value in log.committed(self.target)]
        keyed = {(row["window_start"], row["user_id"]): row for row in records}
        assert len(keyed) == len(records), "a window was emitted twice"
        return keyed


@pytest.mark.broker
def test_each_window_is_written_once_over_restarts_and_late_data_is_counted(
    spark: SparkSession, kafka: LocalCluster, tmp_path: Path
) -> None:
    site = _Site(spark, kafka, tmp_path, "restarts")
    site.send(*(_click(second, f"u{second % 2}") for second in range(50)), b"no json", b'{"user": {"id": "x"}}')
    assert site.run() == Counts(records=52, unreadable=2)
    site.send(_click(55, "u0"), _click(200, "u0"))  # the first is late, but not for the watermark
    assert site.run() == Counts(records=2, results=2)
    site.send(_click(3, "u1"), _click(500, "u0", "a lot"))
    assert site.run() == Counts(records=2, unreadable=1, late=1)
    with Log(kafka.bootstrap) as log:
        results = site.results(log)
    start = "2026-01-01T00:00:00.000Z"
    assert {key: row["count"] for key, row in results.items()} == {(start, "u0"): 26, (start, "u1"): 25}
    assert results[start, "u0"]["window_end"] == "2026-01-01T00:01:00.000Z"


@pytest.mark.broker
def test_results_go_to_files_that_any_reader_understands(
    spark: SparkSession, kafka: LocalCluster, tmp_path: Path
) -> None:
    site = _Site(spark, kafka, tmp_path, "files")
    site.send(*(_click(second, "u") for second in range(120)))
    assert site.run(str(tmp_path / "out/minutes")).results == 1
    table = ds.dataset(tmp_path / "out/minutes", partitioning="hive").to_table()
    (row,) = table.to_pylist()
    assert (row["user_id"], row["count"], row["sum_amount"]) == ("u", 60, 60.0)
    assert row["window_start"].timestamp() == MIDNIGHT


@pytest.mark.broker
def test_in_update_mode_a_window_is_written_whenever_it_changes(
    spark: SparkSession, kafka: LocalCluster, tmp_path: Path
) -> None:
    site = _Site(spark, kafka, tmp_path, "update")
    site.send(_click(1, "u"))
    site.run(mode="update")
    site.send(_click(2, "u"))
    site.run(mode="update")
    with Log(kafka.bootstrap) as log:
        assert sorted(json.loads(value)["count"] for value in log.committed(site.target)) == [1, 2]
