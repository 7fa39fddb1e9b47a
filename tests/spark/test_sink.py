"""Writing with a real Spark: the rows arrive as the connector would write them, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from tests.cli.commands import read_back
from tests.transactions.reading import Log

from ottla.admin import Admin
from ottla.cluster import LocalCluster

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def log(kafka: LocalCluster) -> Iterator[Log]:
    with Log(kafka.bootstrap) as written:
        yield written


def _topic(kafka: LocalCluster, name: str) -> str:
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic(name, partitions=3)
    return name


def _write(rows: DataFrame, kafka: LocalCluster, form: str = "ottla", **options: str) -> None:
    given = {"kafka.bootstrap.servers": kafka.bootstrap, **options}
    rows.write.format(form).options(**given).mode("append").save()


def _rows(spark: SparkSession) -> DataFrame:
    """Rows with keys, tombstones and headers."""
    header = "named_struct('key', 'site', 'value', cast(id as string))"
    return spark.range(0, 300, 1, 3).selectExpr(
        "case when id % 5 = 0 then null else cast(id as string) end key",
        "case when id % 7 = 0 then null else concat('value ', id) end value",
        f"case when id % 3 = 0 then array({header.replace('cast(id as string)', 'cast(cast(id as string) as binary)')})"
        " else null end headers",
        "case when id % 5 = 0 then cast(id % 3 as int) else null end partition",
    )


def _found(kafka: LocalCluster, topic: str, count: int) -> list[tuple[Any, ...]]:
    records = read_back(kafka.bootstrap, topic, count)
    return sorted((_what(message) for message in records), key=repr)


def _what(message: confluent_kafka.Message) -> tuple[Any, ...]:
    return message.partition(), message.key(), message.value(), tuple(message.headers() or ())


def test_records_arrive_as_the_connector_writes_them(spark: SparkSession, kafka: LocalCluster) -> None:
    ours, theirs = _topic(kafka, "sink-ours"), _topic(kafka, "sink-theirs")
    rows = _rows(spark)
    _write(rows, kafka, topic=ours)
    _write(rows, kafka, "kafka", topic=theirs)
    written = _found(kafka, ours, 300)
    assert written == _found(kafka, theirs, 300)
    assert {message[0] for message in written} == {0, 1, 2}


def test_a_column_names_the_topic_and_the_time(spark: SparkSession, kafka: LocalCluster) -> None:
    first, second = _topic(kafka, "sink-first"), _topic(kafka, "sink-second")
    rows = spark.createDataFrame(
        [(b"a", first, datetime(2026, 1, 1, tzinfo=UTC)), (b"b", second, datetime(2026, 1, 2, tzinfo=UTC))],
        "value binary, topic string, timestamp timestamp",
    )
    _write(rows, kafka)
    for topic, value, day in ((first, b"a", 1), (second, b"b", 2)):
        (record,) = read_back(kafka.bootstrap, topic, 1)
        assert record.value() == value
        assert record.timestamp()[1] == int(datetime(2026, 1, day, tzinfo=UTC).timestamp() * 1000)


def test_a_write_that_fails_in_one_task_leaves_nothing_visible(
    spark: SparkSession, kafka: LocalCluster, log: Log
) -> None:
    topic = _topic(kafka, "sink-failing")
    broken = F.when(F.col("id") == 299, F.raise_error(F.lit("this row is bad"))).otherwise(F.col("id").cast("string"))
    rows = spark.range(0, 300, 1, 3).select(broken.alias("value"))
    with pytest.raises(PySparkException, match="this row is bad"):
        _write(rows, kafka, topic=topic)
    assert log.committed(topic) == []
    _write(spark.range(3).selectExpr("cast(id as string) value"), kafka, topic=topic)
    assert log.committed(topic) == [b"0", b"1", b"2"]


def test_a_row_without_a_topic_fails_the_write(spark: SparkSession, kafka: LocalCluster, log: Log) -> None:
    topic = _topic(kafka, "sink-null-topic")
    rows = spark.createDataFrame([("a", topic), ("b", None)], "value string, topic string").coalesce(1)
    with pytest.raises(PySparkException, match=r"1 rows have no topic \(column topic is null\): set the option topic"):
        _write(rows, kafka)
    assert log.committed(topic) == []


def test_what_is_wrong_is_said_before_anything_is_written(spark: SparkSession, kafka: LocalCluster, log: Log) -> None:
    topic = _topic(kafka, "sink-refused")
    rows = spark.range(3).selectExpr("cast(id as string) value", "id key")
    with pytest.raises(PySparkException, match="column key has type bigint; it must be string or binary"):
        _write(rows, kafka, topic=topic)
    with pytest.raises(PySparkException, match="topic sink-nowhere does not exist: create it first"):
        _write(rows.select("value"), kafka, topic="sink-nowhere")
    given = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": topic}
    writer = rows.select("value").write.format("ottla").options(**given).mode("overwrite")
    with pytest.raises(PySparkException, match="a topic cannot be overwritten"):
        writer.save()
    assert log.everything(topic) == []


def test_an_at_least_once_write_needs_no_transaction(spark: SparkSession, kafka: LocalCluster, log: Log) -> None:
    topic = _topic(kafka, "sink-plain")
    rows = spark.range(0, 100, 1, 2).selectExpr("cast(id as string) value")
    _write(rows, kafka, topic=topic, delivery="at-least-once", **{"kafka.acks": "1", "kafka.compression.type": "lz4"})
    assert log.everything(topic) == sorted(str(number).encode() for number in range(100))


def test_a_query_that_is_started_again_goes_on(
    spark: SparkSession, kafka: LocalCluster, log: Log, tmp_path: Path
) -> None:
    source, target = _topic(kafka, "sink-stream-from"), _topic(kafka, "sink-stream-to")
    for part in range(2):
        rows = spark.range(part * 50, part * 50 + 50).selectExpr("cast(id as string) value")
        _write(rows, kafka, topic=source)
        query = (
            spark.readStream.format("ottla")
            .option("kafka.bootstrap.servers", kafka.bootstrap)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .option("kafka.isolation.level", "read_committed")
            .load()
            .select("value")
            .writeStream.format("ottla")
            .option("kafka.bootstrap.servers", kafka.bootstrap)
            .option("topic", target)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    assert log.committed(target) == sorted(str(number).encode() for number in range(100))


def test_a_batch_that_foreach_batch_repeats_is_written_once(
    spark: SparkSession, kafka: LocalCluster, log: Log, tmp_path: Path
) -> None:
    source, target = _topic(kafka, "sink-foreach-from"), _topic(kafka, "sink-foreach-to")
    _write(spark.range(10).selectExpr("cast(id as string) value"), kafka, topic=source)

    def put(batch: DataFrame, number: int) -> None:
        _write(batch, kafka, topic=target, commitLog=str(tmp_path / "log"))
        if not (tmp_path / "again").exists():
            (tmp_path / "again").touch()
            raise RuntimeError("something else failed after the write")

    def run() -> None:
        rows = (
            spark.readStream.format("ottla")
            .option("kafka.bootstrap.servers", kafka.bootstrap)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .load()
        )
        query = rows.select("value").writeStream.foreachBatch(put)
        query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
            availableNow=True
        ).start().awaitTermination()

    with pytest.raises(PySparkException, match="something else failed"):
        run()
    run()
    assert log.committed(target) == log.everything(target) == [str(number).encode() for number in range(10)]


def test_a_commit_log_outside_of_foreach_batch_is_refused(
    spark: SparkSession, kafka: LocalCluster, tmp_path: Path
) -> None:
    topic = _topic(kafka, "sink-no-query")
    with pytest.raises(PySparkException, match="commitLog of a batch write is for writes within foreachBatch"):
        _write(spark.range(1).selectExpr("cast(id as string) value"), kafka, topic=topic, commitLog=str(tmp_path))


def test_a_session_wide_checkpoint_location_is_enough(
    spark: SparkSession, kafka: LocalCluster, log: Log, tmp_path: Path
) -> None:
    """As with the connector; a repeated batch is written once here, too."""
    source, topic = _topic(kafka, "sink-session-source"), _topic(kafka, "sink-session")
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "checkpoints"))
    try:
        for number in range(3):
            _write(
                spark.range(number * 10, number * 10 + 10).selectExpr("cast(id as string) value"), kafka, topic=source
            )
            if number == 2:  # as if the driver had died before Spark's own commit
                (tmp_path / "checkpoints" / "wide" / "commits" / "1").unlink()
            options = {"kafka.bootstrap.servers": kafka.bootstrap, "kafka.isolation.level": "read_committed"}
            stream = spark.readStream.format("ottla").options(**options, subscribe=source, startingOffsets="earliest")
            query = (
                stream.load()
                .writeStream.format("ottla")
                .queryName("wide")
                .options(**options, topic=topic)
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(120)
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    assert (tmp_path / "checkpoints" / "ottla-sink" / str(query.id)).is_dir()
    assert sorted(map(int, log.committed(topic))) == list(range(30))
