"""The source `ottla` gives the same rows as Spark's own Kafka connector, whatever the topic and the options."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.fetch.compacting import COMPACTION
from tests.waiting import eventually

import ottla
from ottla.admin import Admin
from ottla.cluster import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.broker

T0 = 1_700_000_000
"""Seconds: the first record of a topic; each further one is a second later."""
COUNT = 60
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PLAIN, CODED, APPENDED, COMPACTED, TRANSACTED = (
    f"matrix-{name}" for name in ("plain", "coded", "appended", "compacted", "transacted")
)
ALL = (PLAIN, CODED, APPENDED, COMPACTED, TRANSACTED)


@dataclass(frozen=True)
class Stage:
    """A session that has both formats, and topics of every kind."""

    spark: SparkSession
    bootstrap: str

    def read(self, form: str, options: Mapping[str, str]) -> DataFrame:
        return self.spark.read.format(form).options(**{"kafka.bootstrap.servers": self.bootstrap, **options}).load()

    def rows(self, form: str, options: Mapping[str, str]) -> list[tuple[Any, ...]]:
        return sorted_rows(self.read(form, options))

    def stream(
        self, form: str, options: Mapping[str, str], checkpoint: Path
    ) -> tuple[list[tuple[Any, ...]], list[int]]:
        """The rows of an availableNow query, and the number of rows in each batch."""
        rows: list[tuple[Any, ...]] = []
        source = self.spark.readStream.format(form).options(**{"kafka.bootstrap.servers": self.bootstrap, **options})
        query = (
            source.load()
            .writeStream.foreachBatch(lambda frame, _: rows.extend(map(tuple, frame.collect())))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60), "the query did not end"
        return sorted(rows, key=lambda row: row[2:5]), [p.numInputRows for p in query.recentProgress if p.numInputRows]


def sorted_rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, frame.collect()), key=lambda row: row[2:5])


@pytest.fixture(scope="module")
def stage(spark: SparkSession, kafka: LocalCluster) -> Stage:
    with Admin(kafka.bootstrap) as admin, ottla.Producer(kafka.bootstrap) as producer:
        admin.create_topic(PLAIN, partitions=3)
        admin.create_topic(CODED, partitions=2)
        admin.create_topic(APPENDED, partitions=1, settings={"message.timestamp.type": "LogAppendTime"})
        admin.create_topic(COMPACTED, partitions=1, replicas=1, settings=COMPACTION)
        admin.create_topic(TRANSACTED, partitions=2)
        _write(producer, COMPACTED, partitions=1)
        _write(producer, PLAIN, partitions=2)  # the third partition stays empty
        _write(producer, APPENDED, partitions=1)
        for codec in CODECS:
            with ottla.Producer(kafka.bootstrap, compression=codec) as coded:
                _write(coded, CODED, partitions=2)
        _transact(kafka.bootstrap)
        _compact(kafka.bootstrap, producer)
    return Stage(spark, kafka.bootstrap)


def _write(producer: ottla.Producer, topic: str, *, partitions: int) -> None:
    """Records of every kind: with and without key, value and headers."""
    for number in range(COUNT):
        repeated = b"%d" % (number % 7 if number % 3 else number)
        headers = ([], [("a", b"1"), ("a", None), ("", b"")], [("only", b"\x00\xff")])[number % 3]
        producer.send(
            topic,
            None if number % 7 == 0 else b"" if number % 11 == 0 else b"value %d" % number,
            key=None if number % 5 == 0 and topic != COMPACTED else repeated,
            headers=headers,
            partition=number % partitions,
            timestamp=float(T0 + number),
        )
    producer.flush(30)


def _transact(bootstrap: str) -> None:
    with ottla.Producer(bootstrap, transactional_id="matrix") as producer:
        for number in range(6):
            try:
                with producer.transaction():
                    for count in range(5):
                        producer.send(TRANSACTED, b"%d/%d" % (number, count), partition=number % 2)
                    if number in (1, 4, 5):
                        producer.flush(30)  # they are in the log, but not committed
                        raise _GivenUp
            except _GivenUp:
                pass


class _GivenUp(Exception):
    """Abort a transaction."""


def _compact(bootstrap: str, producer: ottla.Producer) -> None:
    """Wait until compaction has made gaps. After that no segment is closed any more, so the log stays as it is."""
    with ottla.Reader(bootstrap) as reader, Admin(bootstrap) as admin:

        def compacted() -> bool:
            producer.send(COMPACTED, b"tock", key=b"tick").result(10)  # a new segment begins
            return reader.count(COMPACTED, 0, COUNT) < COUNT - 20

        eventually(compacted, "the log is compacted", seconds=60)
        admin.alter_settings(
            COMPACTED,
            {"segment.ms": "86400000", "min.compaction.lag.ms": "86400000", "max.compaction.lag.ms": "86400000"},
        )
        eventually(lambda: reader.fingerprint(COMPACTED) == reader.fingerprint(COMPACTED), "the log no longer changes")


def offsets_json(topic: str, **offsets: int) -> str:
    return json.dumps({topic: {number.removeprefix("p"): offset for number, offset in offsets.items()}})


def ms(seconds: int) -> str:
    return str((T0 + seconds) * 1000)


CASES: dict[str, dict[str, str]] = {
    "everything of several topics": {"subscribe": ",".join(ALL), "includeHeaders": "true"},
    "a pattern": {"subscribePattern": "matrix-.*ed", "includeHeaders": "true"},
    "a pattern is found anywhere in the name": {"subscribePattern": "rix-pl"},
    "partitions": {"assign": json.dumps({PLAIN: [1], CODED: [0]})},
    "without headers": {"subscribe": CODED},
    "offsets": {
        "subscribe": PLAIN,
        "startingOffsets": offsets_json(PLAIN, p0=3, p1=-2, p2=0),
        "endingOffsets": offsets_json(PLAIN, p0=20, p1=-1, p2=-1),
    },
    "offsets inside a compacted log": {
        "subscribe": COMPACTED,
        "startingOffsets": offsets_json(COMPACTED, p0=7),
        "endingOffsets": offsets_json(COMPACTED, p0=41),
    },
    "offsets inside batches": {
        "subscribe": CODED,
        "startingOffsets": offsets_json(CODED, p0=17, p1=101),
        "endingOffsets": offsets_json(CODED, p0=131, p1=103),
    },
    "a start and an end in time": {
        "subscribe": PLAIN,
        "startingTimestamp": ms(10),
        "endingTimestamp": ms(40),
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "times by partition": {
        "subscribe": CODED,
        "startingOffsetsByTimestamp": offsets_json(CODED, p0=int(ms(5)), p1=int(ms(50))),
        "endingOffsetsByTimestamp": offsets_json(CODED, p0=int(ms(58)), p1=int(ms(10_000))),
    },
    "a time after the last record": {
        "subscribe": CODED,
        "startingTimestamp": ms(10_000_000),
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "an end in time before the first record": {"subscribe": CODED, "endingTimestamp": ms(-100)},
    "a time wins over offsets": {
        "subscribe": CODED,
        "startingTimestamp": ms(30),
        "startingOffsets": offsets_json(CODED, p0=0),
    },
    "more tasks than partitions": {"subscribe": ",".join(ALL), "minPartitions": "11"},
    "small tasks": {"subscribe": ",".join(ALL), "maxRecordsPerPartition": "13", "includeHeaders": "true"},
    "both": {"subscribe": CODED, "maxRecordsPerPartition": "50", "minPartitions": "9"},
    "committed transactions": {"subscribe": TRANSACTED, "kafka.isolation.level": "read_committed"},
    "all transactions": {"subscribe": TRANSACTED, "kafka.isolation.level": "read_uncommitted"},
    "parts of transactions": {
        "subscribe": TRANSACTED,
        "kafka.isolation.level": "read_committed",
        "startingOffsets": offsets_json(TRANSACTED, p0=2, p1=1),
        "endingOffsets": offsets_json(TRANSACTED, p0=9, p1=8),
    },
    "small tasks over transactions": {
        "subscribe": TRANSACTED,
        "kafka.isolation.level": "read_committed",
        "maxRecordsPerPartition": "3",
    },
    "losses allowed": {"subscribe": ",".join(ALL), "failOnDataLoss": "false"},
    "a group that is not used": {"subscribe": APPENDED, "groupIdPrefix": "team", "kafka.group.id": "app"},
}


@pytest.mark.parametrize("case", CASES)
def test_a_batch_has_the_rows_of_the_connector(stage: Stage, case: str) -> None:
    theirs, ours = stage.rows("kafka", CASES[case]), stage.rows("ottla", CASES[case])
    assert ours == theirs
    assert theirs or case in ("a time after the last record", "an end in time before the first record")


@pytest.mark.parametrize("headers", ["true", "false"])
def test_the_columns_are_those_of_the_connector(stage: Stage, headers: str) -> None:
    options = {"subscribe": PLAIN, "includeHeaders": headers}
    assert stage.read("ottla", options).schema == stage.read("kafka", options).schema


STREAMS: dict[str, dict[str, str]] = {
    "everything": {"subscribe": ",".join(ALL), "includeHeaders": "true"},
    "in portions": {"subscribe": f"{PLAIN},{CODED}", "maxOffsetsPerTrigger": "100"},
    "in portions of transactions": {
        "subscribe": TRANSACTED,
        "kafka.isolation.level": "read_committed",
        "maxOffsetsPerTrigger": "9",
        "minPartitions": "5",
    },
    "from a time on": {"subscribePattern": "matrix-cod.d", "startingTimestamp": ms(20)},
}


@pytest.mark.parametrize("case", STREAMS)
def test_a_stream_has_the_rows_and_the_batches_of_the_connector(stage: Stage, case: str, tmp_path: Path) -> None:
    options = {"startingOffsets": "earliest", **STREAMS[case]}
    theirs = stage.stream("kafka", options, tmp_path / "theirs")
    ours = stage.stream("ottla", options, tmp_path / "ours")
    assert ours == theirs
    assert ours[0]


def test_a_query_goes_on_with_the_checkpoint_of_the_connector_and_back(stage: Stage, tmp_path: Path) -> None:
    topic = "matrix-moved"
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    values: list[bytes] = []
    with Admin(stage.bootstrap) as admin, ottla.Producer(stage.bootstrap) as producer:
        admin.create_topic(topic, partitions=12)
        for number, form in enumerate(("kafka", "ottla", "kafka")):
            producer.send_many(topic, [b"%d" % value for value in range(number * 50, number * 50 + 50)]).result(30)
            rows, _ = stage.stream(form, options, tmp_path / "one")
            values += [row[1] for row in rows]
    assert sorted(map(int, values)) == list(range(150))


REFUSED: dict[str, dict[str, str]] = {
    "a batch from the end on": {"subscribe": PLAIN, "startingOffsets": "latest"},
    "offsets without a partition": {"subscribe": PLAIN, "startingOffsets": offsets_json(PLAIN, p0=0)},
    "offsets of a foreign partition": {"subscribe": CODED, "startingOffsets": offsets_json(CODED, p0=0, p1=0, p2=0)},
    "times without a partition": {"subscribe": CODED, "startingOffsetsByTimestamp": offsets_json(CODED, p0=0)},
    "a start after the end": {
        "subscribe": CODED,
        "startingOffsets": offsets_json(CODED, p0=9, p1=9),
        "endingOffsets": offsets_json(CODED, p0=8, p1=9),
    },
    "a time without a record": {"subscribe": CODED, "startingTimestamp": ms(10_000_000)},
    "a deserializer": {"subscribe": PLAIN, "kafka.key.deserializer": "x"},
    "a topic that does not exist": {"subscribe": "matrix-absent"},
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_connector_refuses_is_refused(stage: Stage, case: str) -> None:
    for form in ("kafka", "ottla"):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever the connector raises
            stage.rows(form, REFUSED[case])
    text = str(caught.value)
    assert "ottla.errors." in text
    assert len(list(itertools.takewhile(lambda line: line, text.splitlines()))) < 60
