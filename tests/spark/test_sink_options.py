"""Options and columns of a write: what is accepted, and a clear error for everything else."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ottla.errors import ConfigError, InputError
from ottla.spark.rows import fingerprint, row_format
from ottla.spark.sink import batch_writer, stream_writer
from ottla.spark.sink_options import Guarantee, batch_settings, session_commit_log, stream_settings
from ottla.wire.batch import Codec

BROKERS = {"kafka.bootstrap.servers": "localhost:9092"}
TEXT, BYTES, INT, LONG = StringType(), BinaryType(), IntegerType(), LongType()


def _headers(value: DataType) -> ArrayType:
    return ArrayType(StructType([StructField("key", TEXT), StructField("value", value)]))


def _schema(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


def test_the_producers_settings_are_taken_under_their_java_names() -> None:
    given = {
        "kafka.Compression.type": "zstd",
        "kafka.compression.zstd.level": "3",
        "kafka.linger.ms": "20",
        "kafka.batch.size": "65536",
        "kafka.max.request.size": "2000000",
        "kafka.delivery.timeout.ms": "30000",
        "kafka.buffer.memory": "4194304",
        "kafka.max.block.ms": "5000",
        "kafka.transaction.timeout.ms": "60000",
        "kafka.client.id": "writer",
    }
    settings = batch_settings({**BROKERS, **given})
    assert (settings.producer.compression, settings.producer.level) == (Codec.ZSTD, 3)
    assert (settings.producer.batching.linger, settings.producer.batching.bytes) == (0.02, 65536)
    assert (settings.producer.max_record_bytes, settings.producer.delivery_timeout) == (2_000_000, 30.0)
    assert (settings.buffering.bytes, settings.buffering.wait) == (4 << 20, 5.0)
    assert (settings.transaction_timeout, settings.access.client_id) == (60.0, "writer")
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_a_write_is_exactly_once_by_default() -> None:
    assert batch_settings(BROKERS).guarantee is Guarantee.EXACTLY_ONCE
    given = {**BROKERS, "delivery": "At-Least-Once", "kafka.acks": "1", "kafka.enable.idempotence": "false"}
    settings = batch_settings(given)
    assert settings.guarantee is Guarantee.AT_LEAST_ONCE
    assert (settings.producer.acks, settings.producer.idempotent) == (1, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "kafka.bootstrap.servers is missing"),
        ({**BROKERS, "topik": "t"}, "topik is unknown for writing: did you mean topic?"),
        ({**BROKERS, "compression.type": "lz4"}, "it is written kafka.compression.type"),
        ({**BROKERS, "kafka.value.serializer": "x"}, "kafka.value.serializer is not supported"),
        ({**BROKERS, "kafka.partitioner.class": "com.example.Mine"}, "put the partition into the column partition"),
        ({**BROKERS, "kafka.partitioner.ignore.keys": "true"}, "put the partition into the column partition"),
        ({**BROKERS, "path": "t"}, "set the topic with the option topic"),
        ({**BROKERS, "kafka.acks": "2"}, "kafka.acks is '2'; accepted are all, -1, 1 and 0"),
        ({**BROKERS, "kafka.acks": "1"}, "exactly-once needs kafka.acks=all"),
        ({**BROKERS, "delivery": "twice"}, "delivery is 'twice'; accepted are exactly-once and at-least-once"),
        ({**BROKERS, "kafka.linger.ms": "soon"}, "kafka.linger.ms is 'soon'; accepted is a whole number"),
        ({**BROKERS, "kafka.compression.type": "rar"}, "rar"),
        ({**BROKERS, "kafka.compression.type": "gzip", "kafka.compression.gzip.level": "77"}, "77"),
        ({**BROKERS, "commitLog": "hdfs://x/y"}, "commitLog is hdfs://x/y, which the sink cannot write to"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        batch_settings(options)
    assert message in str(caught.value)


def test_a_topic_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(InputError, match="'a b' is not a topic name"):
        batch_settings({**BROKERS, "topic": "a b"})


def test_the_commit_log_is_beside_the_checkpoint_by_default() -> None:
    assert stream_settings({**BROKERS, "checkpointLocation": "/a/b"}).commit_log == Path("/a/b/ottla-sink")
    assert stream_settings({**BROKERS, "checkpointLocation": "file:/a%20b"}).commit_log == Path("/a b/ottla-sink")
    both = {**BROKERS, "checkpointLocation": "s3a://bucket/x", "commitLog": "/shared"}
    assert stream_settings(both).commit_log == Path("/shared")
    assert stream_settings({**BROKERS, "delivery": "at-least-once"}).commit_log is None


def test_without_a_place_of_its_own_the_commit_log_is_beside_the_checkpoints_of_the_session() -> None:
    assert stream_settings(BROKERS).commit_log is None
    assert session_commit_log("file:/checkpoints") == Path("/checkpoints/ottla-sink")
    with pytest.raises(ConfigError, match=r"checkpointLocation or commitLog on this query, or spark\.sql"):
        session_commit_log(None)


def test_what_says_the_usual_is_taken() -> None:
    usual = {
        "kafka.partitioner.class": "org.apache.kafka.clients.producer.internals.DefaultPartitioner",
        "kafka.partitioner.ignore.keys": "false",
    }
    assert batch_settings({**BROKERS, **usual}) == batch_settings(BROKERS)


def test_a_record_may_be_as_large_as_in_java() -> None:
    assert batch_settings(BROKERS).producer.max_record_bytes == 1_048_576
    assert batch_settings({**BROKERS, "kafka.max.request.size": "5000000"}).producer.max_record_bytes == 5_000_000


def test_a_commit_log_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"s3a://bucket/x, which the sink cannot write to: set commitLog"):
        stream_settings({**BROKERS, "checkpointLocation": "s3a://bucket/x"})


def test_overwriting_is_refused() -> None:
    with pytest.raises(ConfigError, match="a topic cannot be overwritten"):
        batch_writer({**BROKERS, "topic": "t"}, _schema(value=TEXT), overwrite=True)
    with pytest.raises(ConfigError, match="use append, or foreachBatch"):
        stream_writer({**BROKERS, "topic": "t"}, _schema(value=TEXT), overwrite=True)


@pytest.mark.parametrize(
    ("types", "topic", "message"),
    [
        ({"key": TEXT}, "t", "there is no column value, which every record needs; the columns are key"),
        ({"value": TEXT}, None, "Set the option topic, or add a column topic"),
        ({"value": INT}, "t", "column value has type int; it must be string or binary"),
        ({"value": TEXT, "key": LONG}, "t", "column key has type bigint"),
        ({"value": TEXT, "topic": INT}, None, "column topic has type int; it must be string"),
        ({"value": TEXT, "partition": LONG}, "t", "column partition has type bigint; it must be int"),
        ({"value": TEXT, "timestamp": TEXT}, "t", "column timestamp has type string; it must be timestamp"),
        ({"value": TEXT, "headers": MapType(TEXT, BYTES)}, "t", "column headers has type map<string,binary>"),
        ({"value": TEXT, "headers": _headers(TEXT)}, "t", "it must be array<struct<key:string,value:binary>>"),
    ],
)
def test_wrong_columns_are_refused_by_name(types: dict[str, DataType], topic: str | None, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        row_format(_schema(**types), topic)
    assert message in str(caught.value)


def test_columns_that_a_record_does_not_have_are_left_out() -> None:
    read = {"key": BYTES, "value": BYTES, "topic": TEXT, "partition": INT, "offset": LONG, "headers": _headers(BYTES)}
    assert row_format(_schema(**read), "t").columns == ("key", "value", "headers", "partition")
    assert row_format(_schema(**read), None).columns == ("key", "value", "headers", "topic", "partition")
    timed = _schema(value=TEXT, timestamp=TimestampType(), timestampType=INT)
    assert row_format(timed, "t").columns == ("value", "timestamp")


def test_the_option_wins_over_the_column_even_of_a_wrong_type() -> None:
    assert row_format(_schema(value=TEXT, topic=INT), "t").columns == ("value",)


def test_rows_without_a_topic_are_refused() -> None:
    shape = row_format(_schema(value=TEXT, topic=TEXT), None)
    rows = pa.RecordBatch.from_pydict({"value": ["a", "b"], "topic": ["t", None]})
    with pytest.raises(InputError, match="1 rows have no topic"):
        shape.table(rows)


def test_rows_without_a_time_get_that_of_now() -> None:
    then, before = datetime(2026, 1, 1, tzinfo=UTC), datetime.now(UTC)
    times = pa.array([then, None], pa.timestamp("us", tz="Etc/UTC"))
    rows = pa.RecordBatch.from_pydict({"value": ["a", "b"], "timestamp": times})
    settings = (
        row_format(_schema(value=TEXT, timestamp=TimestampType()), "t").table(rows).column("timestamp").to_pylist()
    )
    assert settings[0] == then
    assert before <= settings[1] <= datetime.now(UTC)


def test_a_fingerprint_does_not_depend_on_order_or_topic() -> None:
    rows = pa.table({"value": ["a", "b", "c"], "topic": ["x", "y", "x"]})
    turned = pa.table({"value": ["c", "b", "a"]})
    assert fingerprint(rows, None) == fingerprint(turned, "t")
    assert fingerprint(turned.slice(1), "t") != fingerprint(turned, "t")
