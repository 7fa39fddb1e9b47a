"""The archive on Spark: as a streaming query and as tasks, in a shared session."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.engines import spark as engine
from ottla.errors import ConfigError, InputError, LakeError, OffsetsLost, OttlaError
from ottla.fetch.options import OnLost
from ottla.fetch.reader import Reader
from ottla.jobs.archive_plan import Cutting
from ottla.jobs.archive_range import ArchiveRange, Brokers
from ottla.jobs.archiving import ArchiveRequest, Archiving
from ottla.lake.lake import Lake
from ottla.lake.layout import Format, LakeSettings
from ottla.lake.values import Entry
from ottla.lake.verifying import Checked, verify_brokers, verify_files
from ottla.lake.writer import FileOptions
from ottla.model import OffsetRange
from ottla.produce.producer import Producer
from ottla.spark import archive_stream
from ottla.spark.archiving import start_query
from ottla.wire.decode import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.broker
_SECONDS = 120
_OPTIONS = FileOptions(file_bytes=1 << 16, row_group_bytes=1 << 16)
_CUTTING = Cutting(file_bytes=1 << 16, workers=2, batch_bytes=1 << 18)


class Stand:
    """A topic, an archive, and ways to archive the topic with Spark."""

    def __init__(self, kafka: LocalCluster, spark: SparkSession, topic: str, path: Path, **settings: object) -> None:
        self.kafka = kafka
        self.spark = spark
        self.topic = topic
        self.lake = Lake.create(path, LakeSettings(**settings))  # type: ignore[arg-type]
        with Admin(kafka.bootstrap) as admin:
            admin.create_topic(topic, partitions=3)

    def produce(self, first: int, count: int) -> None:
        numbers = range(first, first + count)
        values = pa.array([f"event {n} ".encode() * 8 for n in numbers], pa.binary())
        keys = pa.array([str(n).encode() for n in numbers], pa.binary())
        with Producer(self.kafka.bootstrap) as producer:
            producer.send_table(self.topic, pa.table({"key": keys, "value": values}))

    @property
    def job(self) -> ArchiveRange:
        return ArchiveRange(
            brokers=Brokers(bootstrap=self.kafka.bootstrap),
            path=str(self.lake.path),
            settings=self.lake.settings,
            options=_OPTIONS,
        )

    def stream(self, *, every: float | None = None, checkpoint: str | None = None, **request: object) -> list[Entry]:
        """A query that ends where the topic ends now."""
        entries: list[Entry] = []
        query = start_query(
            self.spark,
            self.lake,
            self.job,
            ArchiveRequest(topics=(self.topic,), **request),  # type: ignore[arg-type]
            cutting=_CUTTING,
            every=every,
            checkpoint=checkpoint,
            on_entry=entries.append,
        )
        assert query.wait(_SECONDS)
        return entries

    def check(self) -> None:
        table = ds.dataset(self.lake.path, format="parquet", partitioning="hive").to_table(columns=SCHEMA.names)
        order = [("partition", "ascending"), ("offset", "ascending")]
        with Reader(self.kafka.bootstrap) as reader:
            log = pa.Table.from_batches(list(reader.read(self.topic)), SCHEMA)
            assert list(verify_brokers(self.lake, reader, Checked())) == []
        assert table.sort_by(order).equals(log.sort_by(order))
        assert list(verify_files(self.lake, Checked(), deep=True)) == []
        assert self.lake.staged() == []
        seen = self.spark.read.parquet(str(self.lake.path)).selectExpr("count(*)", "count(distinct partition, offset)")
        assert tuple(seen.collect()[0]) == (log.num_rows, log.num_rows)


def records(entries: list[Entry]) -> int:
    return sum(receipt.count for entry in entries for receipt in entry.receipts)


def test_a_query_archives_in_several_batches_and_another_one_goes_on(
    kafka: LocalCluster, spark: SparkSession, tmp_path: Path
) -> None:
    stand = Stand(
        kafka, spark, "spark-archive", tmp_path / "a", format=Format.DELTA, partition_by=("topic", "date", "hour")
    )
    stand.produce(0, 6000)
    entries = stand.stream(group="spark-archive-group")
    assert records(entries) == 6000
    assert len(entries) > 1
    assert {entry.written_by.engine for entry in entries} == {"spark"}
    assert len({entry.written_by.query for entry in entries}) == 1
    assert entries[0].written_by.query
    assert [entry.written_by.batch for entry in entries] == list(range(len(entries)))
    assert stand.stream() == []
    stand.produce(6000, 500)
    assert records(stand.stream()) == 500
    stand.check()
    with Admin(kafka.bootstrap) as admin:
        committed = admin.groups.committed("spark-archive-group")
    assert sum(offset.offset for offset in committed.values()) == 6000


def test_the_engines_take_turns_on_one_archive(kafka: LocalCluster, spark: SparkSession, tmp_path: Path) -> None:
    stand = Stand(kafka, spark, "spark-archive-turns", tmp_path / "a")
    stand.produce(0, 2000)
    stand.stream()
    stand.produce(2000, 2000)
    archiving = Archiving(
        stand.lake,
        stand.job,
        ArchiveRequest(topics=(stand.topic,)),
        engine=lambda job, ranges: engine.run(job, ranges, spark=spark),
        cutting=_CUTTING,
        name="spark",
    )
    assert records(list(archiving.until_now())) == 2000
    stand.produce(4000, 100)
    assert records(stand.stream()) == 100, "its checkpoint is behind the ledger"
    stand.check()


def test_a_batch_that_spark_repeats_changes_nothing(kafka: LocalCluster, spark: SparkSession, tmp_path: Path) -> None:
    stand = Stand(kafka, spark, "spark-archive-repeats", tmp_path / "a")
    stand.produce(0, 2000)
    stand.stream()
    (folder,) = (stand.lake.path / "_ottla" / "checkpoints").iterdir()
    for name in ("0", ".0.crc"):  # as if killed before Spark stored that the batch is done
        (folder / "commits" / name).unlink(missing_ok=True)
    before = stand.lake.ledger.numbers()
    assert stand.stream() == []
    assert stand.lake.ledger.numbers() == before
    stand.check()


def test_an_error_of_a_task_comes_out_as_it_was(kafka: LocalCluster, spark: SparkSession, tmp_path: Path) -> None:
    stand = Stand(kafka, spark, "spark-archive-error", tmp_path / "a")
    stand.produce(0, 100)
    ranges = [OffsetRange(stand.topic, 0, 0, 10), OffsetRange(stand.topic, 1, 0, 10)]
    nowhere = replace(stand.job, path=os.devnull)
    with pytest.raises(LakeError, match="cannot be written") as failed:
        list(engine.run(nowhere, ranges, spark=spark))
    assert failed.value.__notes__ == [f"while {stand.topic}-0[0, 10) was worked on"]
    assert list(engine.run(len, ranges, spark=spark)) == [10, 10]
    assert list(engine.run(len, [], spark=spark)) == []


def test_a_checkpoint_of_something_else_is_refused(kafka: LocalCluster, spark: SparkSession, tmp_path: Path) -> None:
    stand = Stand(kafka, spark, "spark-archive-checkpoint", tmp_path / "a")
    other = Stand(kafka, spark, "spark-archive-checkpoint-2", tmp_path / "b")
    stand.produce(0, 10)
    checkpoint = str(tmp_path / "checkpoint")
    stand.stream(checkpoint=checkpoint)
    with pytest.raises(ConfigError, match="belongs to topic spark-archive-checkpoint, not spark-archive-checkpoint-2"):
        other.stream(checkpoint=checkpoint)
    stand.lake = Lake.create(tmp_path / "c", LakeSettings())
    with pytest.raises(ConfigError, match="belongs to another archive"):
        stand.stream(checkpoint=checkpoint)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "metadata").write_text("{}")
    with pytest.raises(ConfigError, match="belongs to another query"):
        stand.stream(checkpoint=str(tmp_path / "foreign"))
    assert stand.lake.ledger.numbers() == []


def test_one_call_archives_as_a_stream(kafka: LocalCluster, spark: SparkSession, tmp_path: Path) -> None:
    path, topic, entries = tmp_path / "lake", "spark-archive-call", list[Entry]()
    with Admin(kafka.bootstrap) as admin, Producer(kafka.bootstrap) as producer:
        admin.create_topic(topic, partitions=2)
        producer.send_many(topic, [b"%d" % number for number in range(500)])
    for wrong, text in (
        ({"every": 0}, "every must be seconds above 0"),
        ({"every": "5m"}, "every must be seconds above 0"),
        ({"on_lost": "skip"}, "on_lost is 'skip'; accepted are 'error', 'earliest', 'latest'"),
        ({"group": ""}, "group must be a name"),
    ):
        with pytest.raises(ConfigError, match=text):
            archive_stream(spark, topic, path, brokers=kafka.bootstrap, **wrong)
    with pytest.raises(InputError, match="start is '-2h'"):
        archive_stream(spark, topic, path, brokers=kafka.bootstrap, start="-2h")
    assert not path.exists()
    query = archive_stream(
        spark,
        topic,
        path,
        brokers=kafka.bootstrap,
        every=None,
        partition_by="topic",
        on_lost="earliest",
        on_entry=entries.append,
    )
    assert query.wait(_SECONDS)
    assert records(entries) == 500
    with pytest.raises(LakeError, match="partition"):
        archive_stream(spark, topic, path, brokers=kafka.bootstrap, partition_by="topic,date")
    with Producer(kafka.bootstrap) as producer:
        producer.send_many(topic, [b"more"] * 20)
    following = archive_stream(spark, topic, path, brokers=kafka.bootstrap, every=0.5, on_entry=entries.append)
    eventually(lambda: records(entries) == 520, "the query follows the topic", seconds=_SECONDS)
    following.stop()
    assert Lake.open(path).staged() == []


def test_wrong_use_is_reported_before_a_query_starts(kafka: LocalCluster, spark: SparkSession, tmp_path: Path) -> None:
    stand = Stand(kafka, spark, "spark-archive-wrong", tmp_path / "a")
    stand.produce(0, 300)
    stand.stream()
    with Admin(kafka.bootstrap) as admin:
        admin.delete_topics([stand.topic])
        admin.create_topic(stand.topic, partitions=3)
    with pytest.raises(InputError, match="created again"):
        stand.stream()
    stand.topic = "spark-archive-nosuch"
    with pytest.raises(OttlaError, match="spark-archive-nosuch"):
        stand.stream()
    assert not spark.streams.active


def test_what_retention_took_during_the_query_becomes_a_gap(
    kafka: LocalCluster, spark: SparkSession, tmp_path: Path
) -> None:
    stand = Stand(kafka, spark, "spark-archive-retention", tmp_path / "a")
    stand.produce(0, 900)
    stand.stream()
    stand.produce(900, 900)
    client = AdminClient({"bootstrap.servers": kafka.bootstrap})
    ends = [TopicPartition(*tp, offset + 5) for tp, offset in stand.lake.positions().items()]
    for deleted in client.delete_records(ends).values():
        deleted.result(30)
    with pytest.raises(OffsetsLost):
        stand.stream()
    entries = stand.stream(on_lost=OnLost.EARLIEST)
    assert records(entries) == 900 - 15
    assert sum(len(gap.range) for entry in entries for gap in entry.gaps) == 15


@pytest.mark.long
def test_a_topic_that_was_deleted_does_not_stop_the_others(
    kafka: LocalCluster, spark: SparkSession, tmp_path: Path
) -> None:
    stand = Stand(kafka, spark, "spark-archive-stays", tmp_path / "a")
    gone = "spark-archive-goes"
    stand.produce(0, 300)
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic(gone, partitions=1)
        with Producer(kafka.bootstrap) as producer:
            producer.send_many(gone, [b"soon gone"] * 20)
        request = ArchiveRequest(topics=(stand.topic, gone))
        query = start_query(spark, stand.lake, stand.job, request, cutting=_CUTTING)
        assert query.wait(_SECONDS)
        admin.delete_topics([gone])
    stand.produce(300, 200)
    query = start_query(spark, stand.lake, stand.job, request, cutting=_CUTTING)
    assert query.wait(_SECONDS)
    assert sum(offset for tp, offset in stand.lake.positions().items() if tp.topic == stand.topic) == 500
    assert set(query.troubles) == {gone}
    assert list(verify_files(stand.lake, Checked(), deep=True)) == []
