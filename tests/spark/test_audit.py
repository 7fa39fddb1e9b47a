"""Topics are counted and tiers compared by tasks of Spark, with the results of the local engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.audit import pipeline
from tests.audit.pipeline import BEGIN, Item
from tests.cli.commands import run

from ottla.cluster import LocalCluster
from ottla.errors import ConfigError
from ottla.jobs import compare, tallies, tally
from ottla.produce.producer import Producer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.broker


def _items(count: int) -> list[Item]:
    return [Item(n % 4, b"k%d" % n, b"v%d" % n, (BEGIN + n * 3000 // count) * 1000) for n in range(count)]


def test_spark_counts_and_compares_as_threads_do(
    kafka: LocalCluster, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tallies, "CELL_RECORDS", 500)
    items = _items(4000)
    pipeline.write(kafka.bootstrap, "spark-audit-left", [items])
    pipeline.write(kafka.bootstrap, "spark-audit-right", [[*items[:2000], *items[2001:]]])
    for topic, tier in (("spark-audit-left", "left"), ("spark-audit-right", "right")):
        report = tally(
            topic,
            brokers=kafka.bootstrap,
            tier=tier,
            audit_topic="spark-audit",
            names={topic: "clicks"},
            spark=spark,
        )
        assert len(report.tallies) >= 8
    tiers = ["left", "right"]
    now = 2_000_000_000.0
    by_spark = compare(audit=kafka.bootstrap, audit_topic="spark-audit", tiers=tiers, spark=spark, now=now)
    by_threads = compare(audit=kafka.bootstrap, audit_topic="spark-audit", tiers=tiers, now=now)
    from_data = compare(
        topics=["clicks"],
        tiers=tiers,
        data=dict.fromkeys(tiers, kafka.bootstrap),
        names={tier: {"clicks": f"spark-audit-{tier}"} for tier in tiers},
        spark=spark,
        now=now,
    )
    shown = [[row.to_json() for row in found.rows] for found in (by_spark, by_threads, from_data)]
    assert shown[0] == shown[1]
    assert [row["verdict"] for row in shown[0]] == [row["verdict"] for row in shown[2]]


def test_spark_without_a_session_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs a session"):
        compare(audit="localhost:1", engine="spark")


def test_a_streaming_query_is_a_tier_by_its_checkpoint(
    kafka: LocalCluster, spark: SparkSession, tmp_path: Path
) -> None:
    pipeline.write(kafka.bootstrap, "spark-audit-query", [_items(400)])
    source = spark.readStream.format("ottla").options(subscribe="spark-audit-query", startingOffsets="earliest")
    rows = source.option("kafka.bootstrap.servers", kafka.bootstrap).load()
    writing = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "copies"))
    writing.trigger(availableNow=True).start().awaitTermination(120)
    with Producer(kafka.bootstrap) as producer:
        producer.send_many("spark-audit-query", [b"later"] * 100)

    options = ("--audit-topic", "spark-audit-queries", "--bootstrap", kafka.bootstrap)
    checkpoint = ("--tier", "copies", "--spark-checkpoint", str(tmp_path / "copies"))
    counted = run("audit", "tally", "spark-audit-query", *checkpoint, *options)
    assert counted.exit_code == 0, counted.output
    assert "400 records" in counted.output  # not the hundred that the query has not seen

    pipeline.write(kafka.bootstrap, "spark-audit-unread", [_items(4)])
    unread = run("audit", "tally", "spark-audit-unread", *checkpoint, *options)
    assert unread.exit_code == 1
    assert "the positions that were given name no partition of topic spark-audit-unread" in unread.stderr
