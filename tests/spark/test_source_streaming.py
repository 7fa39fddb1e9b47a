"""Streaming queries: batch limits, restarts, changing topics, broker outages, published progress."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.reading import Play, cut_off, new_topic, write
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.events import BatchDone, Event, LagMeasured
from ottla.model import TopicPartition
from ottla.spark import LagListener

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.broker


def end_of(query: StreamingQuery) -> object:
    progress = query.lastProgress
    position = json.loads(progress["sources"][0]["endOffset"]) if progress else {}
    return {name: offsets for name, offsets in position.items() if offsets}


def test_a_query_follows_a_topic_and_its_new_partitions(
    spark: SparkSession, kafka: LocalCluster, tmp_path: Path
) -> None:
    topic = new_topic(kafka.bootstrap)
    write(kafka.bootstrap, topic, range(10))
    play = Play(spark, kafka.bootstrap, topic, tmp_path)
    with play.running() as query:
        play.await_values(query, list(range(10)))
        with Admin(kafka.bootstrap) as admin:
            admin.add_partitions(topic, 3)
        write(kafka.bootstrap, topic, range(10, 20), 2)
        write(kafka.bootstrap, topic, range(20, 30), 0)
        play.await_values(query, list(range(30)))
        expected = {topic: {"0": 20, "1": 0, "2": 10}}
        eventually(lambda: end_of(query) == expected, lambda: f"the end should be {expected}, it is {end_of(query)}")


def test_a_pattern_finds_topics_that_are_created_later(
    spark: SparkSession, kafka: LocalCluster, tmp_path: Path
) -> None:
    first = new_topic(kafka.bootstrap)
    write(kafka.bootstrap, first, range(5))
    options = {"subscribePattern": f"^{first}(-more)?$"}
    play = Play(spark, kafka.bootstrap, first, tmp_path, **options)
    play._options = {name: text for name, text in play._options.items() if name != "subscribe"}
    with play.running() as query:
        play.await_values(query, list(range(5)))
        with Admin(kafka.bootstrap) as admin:
            admin.create_topic(f"{first}-more")
        write(kafka.bootstrap, f"{first}-more", range(5, 10))
        play.await_values(query, list(range(10)))


def test_portions_by_bytes(spark: SparkSession, kafka: LocalCluster, tmp_path: Path) -> None:
    topic = new_topic(kafka.bootstrap, 2)
    for partition in (0, 1):
        write(kafka.bootstrap, topic, range(partition * 1000, partition * 1000 + 1000), partition)
    with Admin(kafka.bootstrap) as admin:
        sizes = admin.replica_sizes(topic)
        total = sum(sizes.largest(TopicPartition(topic, number)) or 0 for number in (0, 1))
    play = Play(spark, kafka.bootstrap, topic, tmp_path, maxBytesPerTrigger=str(total // 4 + 1))
    play.until_now()
    assert sorted(play.values) == list(range(2000))
    assert [len(batch) for batch in play.batches.values() if batch][:3] == [500, 500, 500]


def test_a_batch_waits_for_enough_records_or_long_enough(
    spark: SparkSession, kafka: LocalCluster, tmp_path: Path
) -> None:
    topic = new_topic(kafka.bootstrap)
    write(kafka.bootstrap, topic, range(3))
    options = {"minOffsetsPerTrigger": "100", "maxTriggerDelay": "3s"}
    play = Play(spark, kafka.bootstrap, topic, tmp_path, **options)
    with play.running() as query:
        play.await_values(query, [0, 1, 2])  # the first batch does not wait
        write(kafka.bootstrap, topic, range(3, 6))
        write(kafka.bootstrap, topic, range(6, 9))
        play.await_values(query, list(range(9)))
    assert [batch for batch in play.batches.values() if batch][1:] == [[3, 4, 5, 6, 7, 8]]


def test_a_first_batch_from_a_place_has_its_records_at_once(
    spark: SparkSession, kafka: LocalCluster, tmp_path: Path
) -> None:
    topic = new_topic(kafka.bootstrap)
    write(kafka.bootstrap, topic, range(10))
    play = Play(spark, kafka.bootstrap, topic, tmp_path, startingOffsets=f'{{"{topic}":{{"0":4}}}}')
    query = play._writer().trigger(once=True).start()
    assert query.awaitTermination(120)
    assert play.batches == {0: list(range(4, 10))}


def test_a_query_from_the_end_on_remembers_where_that_was(
    spark: SparkSession, kafka: LocalCluster, tmp_path: Path
) -> None:
    topic = new_topic(kafka.bootstrap)
    write(kafka.bootstrap, topic, range(10))
    play = Play(spark, kafka.bootstrap, topic, tmp_path, startingOffsets="latest")
    with play.running() as query:
        eventually(lambda: 0 in play.batches, "the first batch, which has nothing", seconds=90)
        assert query.isActive
    assert play.values == []
    # As if the driver had died in its first batch: Spark has stored where the batch ends, but not that it was done.
    shutil.rmtree(tmp_path / "commits")
    write(kafka.bootstrap, topic, range(10, 20))
    with play.running() as query:
        play.await_values(query, list(range(10, 20)))


def test_progress_is_published_as_a_group_and_emitted_as_events(
    spark: SparkSession, kafka: LocalCluster, tmp_path: Path
) -> None:
    topic, group = new_topic(kafka.bootstrap, 2), "source-progress"
    write(kafka.bootstrap, topic, range(20), 1)
    emitted: list[Event] = []
    listener = LagListener(emitted.append)
    spark.streams.addListener(listener)
    try:
        play = Play(spark, kafka.bootstrap, topic, tmp_path, commitGroup=group, maxOffsetsPerTrigger="15")
        query = play.until_now()
        eventually(lambda: sum(isinstance(event, BatchDone) for event in emitted) == 2, "both batches are reported")
    finally:
        spark.streams.removeListener(listener)
    done = [event for event in emitted if isinstance(event, BatchDone)]
    assert [(event.query, event.batch, event.records) for event in done] == [
        (str(query.id), 0, 15),
        (str(query.id), 1, 5),
    ]
    lag = [(event.partition, event.lag_records) for event in emitted if isinstance(event, LagMeasured)]
    assert lag == [(0, 0), (1, 5), (0, 0), (1, 0)]
    with Admin(kafka.bootstrap) as admin:
        assert {tp.partition: committed.offset for tp, committed in admin.groups.committed(group).items()} == {
            0: 0,
            1: 20,
        }


def test_the_listener_publishes_the_last_batch_at_once(
    spark: SparkSession, kafka: LocalCluster, tmp_path: Path
) -> None:
    topic, group = new_topic(kafka.bootstrap), "source-listener"
    write(kafka.bootstrap, topic, range(7))
    listener = LagListener(lambda _: None, commit={"kafka.bootstrap.servers": kafka.bootstrap, "commitGroup": group})
    spark.streams.addListener(listener)
    try:
        Play(spark, kafka.bootstrap, topic, tmp_path).until_now()
        with Admin(kafka.bootstrap) as admin:
            partition = TopicPartition(topic, 0)
            eventually(lambda: partition in admin.groups.committed(group), "the group has an offset")
            assert admin.groups.committed(group)[partition].offset == 7
    finally:
        spark.streams.removeListener(listener)


# Losses


def test_records_that_retention_took_are_an_error(spark: SparkSession, kafka: LocalCluster, tmp_path: Path) -> None:
    topic = new_topic(kafka.bootstrap)
    write(kafka.bootstrap, topic, range(10))
    play = Play(spark, kafka.bootstrap, topic, tmp_path)
    play.until_now()
    write(kafka.bootstrap, topic, range(10, 30))
    cut_off(kafka.bootstrap, topic, 15)
    with pytest.raises(Exception, match=r"offsets \[10, 15\) are lost: they are older than what the topic keeps"):
        play.until_now()
    assert play.values == list(range(10))


def test_records_that_retention_took_are_left_out_where_that_is_allowed(
    spark: SparkSession, kafka: LocalCluster, tmp_path: Path
) -> None:
    topic = new_topic(kafka.bootstrap)
    write(kafka.bootstrap, topic, range(10))
    play = Play(spark, kafka.bootstrap, topic, tmp_path, failOnDataLoss="false")
    play.until_now()
    write(kafka.bootstrap, topic, range(10, 30))
    cut_off(kafka.bootstrap, topic, 15)
    play.until_now()
    assert play.values == [*range(10), *range(15, 30)]


@pytest.mark.parametrize("allowed", [False, True])
def test_a_topic_that_was_created_again_is_noticed(
    spark: SparkSession, kafka: LocalCluster, tmp_path: Path, allowed: bool
) -> None:
    """Even if it has as many records as before: its id differs."""
    topic = new_topic(kafka.bootstrap)
    write(kafka.bootstrap, topic, range(5))
    play = Play(spark, kafka.bootstrap, topic, tmp_path, failOnDataLoss=str(not allowed))
    # Triggers are far apart, so the topic can be deleted, created and filled between two of them.
    with play.running("4 seconds") as query:
        play.await_values(query, list(range(5)))
        with Admin(kafka.bootstrap) as admin:
            admin.delete_topics(topic)
            admin.create_topic(topic)
        write(kafka.bootstrap, topic, range(100, 105))
        if allowed:
            play.await_values(query, [*range(5), *range(100, 105)])
        else:
            eventually(lambda: not query.isActive, "the query ends", seconds=90)
            assert "the topic was deleted and created again" in str(query.exception())
            assert play.values == list(range(5))


def test_a_checkpoint_of_another_topic_is_refused(spark: SparkSession, kafka: LocalCluster, tmp_path: Path) -> None:
    first, other = new_topic(kafka.bootstrap), new_topic(kafka.bootstrap)
    write(kafka.bootstrap, first, range(5))
    write(kafka.bootstrap, other, range(5))
    Play(spark, kafka.bootstrap, first, tmp_path).until_now()
    play = Play(spark, kafka.bootstrap, other, tmp_path, failOnDataLoss="false")
    with pytest.raises(Exception, match=f"the checkpoint belongs to a query on {first}; this query reads none"):
        play.until_now()
    assert play.values == []


# Brokers


def test_a_broker_that_is_killed_and_restarted_does_not_end_a_query(spark: SparkSession, tmp_path: Path) -> None:
    with LocalCluster("source", brokers=1, dir=tmp_path / "cluster") as cluster:
        topic = new_topic(cluster.bootstrap)
        write(cluster.bootstrap, topic, range(10))
        play = Play(spark, cluster.bootstrap, topic, tmp_path / "checkpoint")
        with play.running() as query:
            play.await_values(query, list(range(10)))
            (broker,) = [status.id for status in cluster.status().brokers]
            cluster.kill(broker)
            # The broker is down while the query looks for more, several times.
            eventually(lambda: not query.status["isDataAvailable"], "the query has nothing to do")
            cluster.restart(broker)
            write(cluster.bootstrap, topic, range(10, 20))
            play.await_values(query, list(range(20)))
