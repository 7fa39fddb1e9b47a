"""Batch queries: columns, tasks, lost records, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.reading import cut_off, new_topic, numbers, read, write

import ottla
from ottla.cluster import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def topic(kafka: LocalCluster) -> str:
    """Numbers 0 to 99 in partition 0, 100 to 149 in partition 1; partition 2 is empty."""
    name = new_topic(kafka.bootstrap, 3)
    write(kafka.bootstrap, name, range(100), 0)
    write(kafka.bootstrap, name, range(100, 150), 1)
    return name


def tasks(frame: DataFrame) -> int:
    return frame.rdd.getNumPartitions()


def test_only_the_columns_asked_for_are_there_in_the_order_asked_for(
    spark: SparkSession, kafka: LocalCluster, topic: str
) -> None:
    reader = spark.read.format("ottla").option("kafka.bootstrap.servers", kafka.bootstrap).option("subscribe", topic)
    frame = reader.schema("value binary, offset bigint").load()
    assert frame.columns == ["value", "offset"]
    assert [tuple(row) for row in frame.orderBy("value").limit(2).collect()] == [(b"0", 0), (b"1", 1)]
    assert reader.schema("headers array<struct<key: string, value: binary>>").load().count() == 150


def test_sql_reads_a_topic(spark: SparkSession, kafka: LocalCluster, topic: str) -> None:
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW numbers USING ottla"
        f" OPTIONS (`kafka.bootstrap.servers` '{kafka.bootstrap}', subscribe '{topic}')"
    )
    rows = spark.sql("SELECT count(*), max(offset) FROM numbers WHERE partition = 1").collect()
    assert tuple(rows[0]) == (50, 49)


def test_a_partition_is_one_task_unless_more_are_asked_for(
    spark: SparkSession, kafka: LocalCluster, topic: str
) -> None:
    """Plus one per partition, up to four, for records that arrive later."""
    assert tasks(read(spark, kafka.bootstrap, topic)) == 2 + 3
    assert tasks(read(spark, kafka.bootstrap, topic, minPartitions="7")) == 7 + 3
    frame = read(spark, kafka.bootstrap, topic, maxRecordsPerPartition="10")
    assert tasks(frame) == 15 + 3
    assert numbers(frame) == list(range(150))


def test_large_partitions_are_cut_by_bytes(spark: SparkSession, kafka: LocalCluster) -> None:
    name = new_topic(kafka.bootstrap, 2)
    with ottla.Producer(kafka.bootstrap) as producer:
        for number in range(60_000):
            producer.send(name, b"%0100d" % number, partition=0 if number % 10 else 1)
    frame = read(spark, kafka.bootstrap, name, maxBytesPerPartition="1m")
    assert 6 <= tasks(frame) - 2 <= 9
    assert numbers(frame) == list(range(60_000))


def test_a_secure_cluster_is_read_with_the_options_of_java(spark: SparkSession, kafka: LocalCluster) -> None:
    name = new_topic(kafka.bootstrap)
    write(kafka.bootstrap, name, range(10))
    security: Any = kafka.security("alice")
    with open(security.tls.ca_file, encoding="utf-8") as file:
        authority = file.read()
    options = {
        "kafka.bootstrap.servers": kafka.secure_bootstrap or "",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": authority,
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required"
            f' username="alice" password="{security.sasl.password}";'
        ),
        "subscribe": name,
    }
    assert numbers(spark.read.format("ottla").options(**options).load()) == list(range(10))
    assert numbers(spark.read.format("kafka").options(**options).load()) == list(range(10))


def test_a_client_certificate_in_the_options(spark: SparkSession, kafka: LocalCluster, topic: str) -> None:
    tls: Any = kafka.mutual_tls().tls
    texts = []
    for path in (tls.ca_file, tls.cert_file, tls.key_file):
        with open(path, encoding="utf-8") as file:
            texts.append(file.read())
    frame = read(
        spark,
        kafka.ssl_bootstrap or "",
        topic,
        **{
            "kafka.security.protocol": "SSL",
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.certificates": texts[0],
            "kafka.ssl.keystore.type": "PEM",
            "kafka.ssl.keystore.certificate.chain": texts[1],
            "kafka.ssl.keystore.key": texts[2],
        },
    )
    assert frame.count() == 150


# Losses


@pytest.fixture(scope="module")
def cut_topic(kafka: LocalCluster) -> str:
    """Numbers 0 to 99, of which the first 60 are gone."""
    name = new_topic(kafka.bootstrap)
    write(kafka.bootstrap, name, range(100))
    cut_off(kafka.bootstrap, name, 60)
    return name


def offsets(topic: str, offset: int) -> str:
    return f'{{"{topic}":{{"0":{offset}}}}}'


def test_what_is_gone_is_an_error_before_anything_is_read(
    spark: SparkSession, kafka: LocalCluster, cut_topic: str
) -> None:
    with pytest.raises(Exception, match=r"offsets \[10, 60\) are lost.*failOnDataLoss=false"):
        read(spark, kafka.bootstrap, cut_topic, startingOffsets=offsets(cut_topic, 10)).count()
    with pytest.raises(Exception, match=r"offsets \[100, 500\) are lost: the log ends at 100"):
        read(spark, kafka.bootstrap, cut_topic, endingOffsets=offsets(cut_topic, 500)).count()


def test_what_is_gone_is_left_out_where_that_is_allowed(
    spark: SparkSession, kafka: LocalCluster, cut_topic: str
) -> None:
    options = {"startingOffsets": offsets(cut_topic, 10), "endingOffsets": offsets(cut_topic, 500)}
    frame = read(spark, kafka.bootstrap, cut_topic, failOnDataLoss="false", **options)
    assert numbers(frame) == list(range(60, 100))


# What is refused


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"subscribe": "source-no-such-topic"}, "source-no-such-topic.*UNKNOWN_TOPIC_OR_PARTITION"),
        ({"startingOfsets": "earliest"}, "did you mean startingOffsets"),
        ({"kafka.enable.auto.commit": "true"}, "set commitGroup to its name"),
        ({"assign": '{"t":[0]}'}, "subscribe and assign are mutually exclusive"),
        ({"kafka.bootstrap.servers": ""}, "option kafka.bootstrap.servers is missing"),
        ({"kafka.security.protocol": "SASL_SSL"}, "accepted are PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
    ],
)
def test_bad_options_get_one_clear_error(
    spark: SparkSession, kafka: LocalCluster, topic: str, options: Mapping[str, str], error: str
) -> None:
    with pytest.raises(Exception, match=error):
        read(spark, kafka.bootstrap, topic, **options).count()


def test_a_partition_that_does_not_exist_is_refused(spark: SparkSession, kafka: LocalCluster, topic: str) -> None:
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "assign": f'{{"{topic}":[0,9]}}'}
    with pytest.raises(Exception, match=f"option assign names {topic}-9, but topic {topic} has 3 partitions"):
        spark.read.format("ottla").options(**options).load().count()


@pytest.mark.parametrize(
    ("schema", "error"),
    [
        ("value string", "the schema has value as string; it is binary: read it as that, and cast it"),
        ("payload binary", "the schema has a column payload; the source has key, value, topic"),
    ],
)
def test_a_schema_that_is_not_of_the_source_is_refused(
    spark: SparkSession, kafka: LocalCluster, topic: str, schema: str, error: str
) -> None:
    reader = spark.read.format("ottla").option("kafka.bootstrap.servers", kafka.bootstrap).option("subscribe", topic)
    with pytest.raises(Exception, match=error):
        reader.schema(schema).load().count()


def test_brokers_that_are_not_there_are_named(spark: SparkSession) -> None:
    options = {"kafka.default.api.timeout.ms": "1500"}
    with pytest.raises(Exception, match=r"no broker reachable after 1\.\d s"):
        read(spark, "127.0.0.1:1", "clicks", **options).count()
