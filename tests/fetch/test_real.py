"""Reading what other clients wrote to real brokers: every shape of record, batch, topic and transaction."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterable
from contextlib import closing
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pyarrow as pa
import pytest
from tests.interop.clients import aiokafka_write, confluent_write, java, kafka_python_write, output
from tests.interop.samples import CODECS, RECORDS, TEXTS, Sent
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.config import Timeouts
from ottla.errors import DeadlineExceeded
from ottla.events import RangeLost
from ottla.fetch.options import Fetching
from ottla.fetch.reader import Reader
from ottla.model import OffsetRange, TopicPartition
from ottla.net import Cluster

from .compacting import COMPACTION, compact
from .conftest import NewTopic
from .watching import EventLog, names, values

pytestmark = pytest.mark.broker
SECONDS = 30.0
confluent_admin: Any = confluent_kafka.admin  # its names are not exported as mypy sees it
WRITERS = {"confluent-kafka": confluent_write, "aiokafka": aiokafka_write, "kafka-python": kafka_python_write}


@pytest.fixture(scope="module")
def reader(kafka: LocalCluster) -> Iterable[Reader]:
    with Reader(kafka.bootstrap) as reader:
        yield reader


def sent(batches: Iterable[pa.RecordBatch]) -> list[Sent]:
    """Return the records in the form that all clients share."""
    records = []
    for batch in batches:
        batch.validate(full=True)
        times = [time // 1000 for time in batch.column("timestamp").cast(pa.int64()).to_pylist()]
        keys, contents, headers = (batch.column(name).to_pylist() for name in ("key", "value", "headers"))
        records += [
            Sent(key, value, tuple((header["key"], header["value"]) for header in pairs or ()), time)
            for key, value, pairs, time in zip(keys, contents, headers, times, strict=True)
        ]
    return records


def confluent_log(
    kafka: LocalCluster, topic: str, *, isolation: str = "read_uncommitted"
) -> list[tuple[int, bytes | None]]:
    """Return offset and value of each record of partition 0, as confluent-kafka reads them."""
    settings = {
        "bootstrap.servers": kafka.bootstrap,
        "group.id": "unused",
        "isolation.level": isolation,
        "enable.partition.eof": True,
        "enable.auto.commit": False,
    }
    records: list[tuple[int, bytes | None]] = []
    with closing(confluent_kafka.Consumer(settings)) as consumer:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        while (message := consumer.poll(SECONDS)) is not None:
            error = message.error()
            if error is not None:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
                return records
            records.append((message.offset() or 0, message.value()))
    raise AssertionError(f"no end of {topic} in {SECONDS} s")


def our_log(batches: Iterable[pa.RecordBatch]) -> list[tuple[int, bytes | None]]:
    """Return the same as the reader reads it."""
    return [
        pair
        for batch in batches
        for pair in zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True)
    ]


# Records


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_with_keys_headers_nulls_and_nothing(
    kafka: LocalCluster, new_topic: NewTopic, reader: Reader, codec: str
) -> None:
    topic = new_topic()
    confluent_write(kafka.bootstrap, TopicPartition(topic, 0), codec, RECORDS)
    assert sent(reader.read(topic)) == list(RECORDS)
    (profile,) = reader.profile(topic)
    assert profile.records == reader.count(topic) == len(RECORDS)
    assert set(profile.codecs) <= {codec, "none"}
    assert codec in profile.codecs
    assert profile.last_timestamp == max(record.time for record in RECORDS)
    assert reader.fingerprint(topic).count == len(RECORDS)


def test_all_codecs_and_clients_mixed_in_one_partition(
    kafka: LocalCluster, new_topic: NewTopic, reader: Reader
) -> None:
    topic = new_topic()
    written: list[Sent] = []
    for (name, write), codec in zip(itertools.cycle(WRITERS.items()), (*CODECS, "gzip", "lz4"), strict=False):
        if name == "kafka-python" and codec in ("snappy", "zstd"):  # it needs packages of its own for these
            continue
        write(kafka.bootstrap, TopicPartition(topic, 0), codec, RECORDS)
        written += RECORDS
    assert sent(reader.read(topic)) == written
    for start, stop in ((1, 5), (300, 320), (len(RECORDS) - 1, len(RECORDS) + 1)):
        assert sent(reader.read(topic, start, stop)) == written[start:stop]
        assert reader.count(topic, start, stop) == stop - start


def test_what_the_console_producer_wrote(kafka: LocalCluster, new_topic: NewTopic, reader: Reader) -> None:
    topic = new_topic()
    lines = [(record.key, record.value) for record in TEXTS if record.key and record.value]
    tool = java(
        "org.apache.kafka.tools.ConsoleProducer",
        *("--bootstrap-server", kafka.bootstrap, "--topic", topic),
        *("--compression-codec", "zstd", "--reader-property", "parse.key=true"),
    )
    output(tool, "".join(f"{(key or b'').decode()}\t{(value or b'').decode()}\n" for key, value in lines))
    assert [(record.key, record.value) for record in sent(reader.read(topic))] == lines


def test_the_broker_sets_the_time_where_the_topic_says_so(
    kafka: LocalCluster, new_topic: NewTopic, reader: Reader
) -> None:
    topic = new_topic(settings={"message.timestamp.type": "LogAppendTime"})
    before = time.time() * 1000 - 5000
    confluent_write(
        kafka.bootstrap, TopicPartition(topic, 0), "zstd", [record._replace(time=1000) for record in RECORDS]
    )
    table = pa.Table.from_batches(reader.read(topic, columns=["timestamp", "timestampType"]))
    stamps = [stamp / 1000 for stamp in table["timestamp"].cast(pa.int64()).to_pylist()]
    assert set(table["timestampType"].to_pylist()) == {1}
    assert all(before < stamp < before + 600_000 for stamp in stamps)
    (profile,) = reader.profile(topic)
    assert (profile.first_timestamp, profile.last_timestamp) == (min(stamps), max(stamps))


def test_records_of_20_megabytes_among_small_ones(kafka: LocalCluster, new_topic: NewTopic, reader: Reader) -> None:
    topic = new_topic(settings={"max.message.bytes": str(40 << 20)}, replicas=1)
    chance = random.Random(1)
    large = [chance.randbytes(20 << 20) for _ in range(2)]
    contents = [b"first", large[0], b"between", large[1], b"last"]
    settings = {"bootstrap.servers": kafka.bootstrap, "message.max.bytes": 40 << 20, "linger.ms": 0}
    producer = confluent_kafka.Producer(settings)
    for content in contents:
        producer.produce(topic, content, partition=0)
        assert producer.flush(SECONDS) == 0
    assert values(reader.read(topic)) == contents
    assert values(reader.read(topic, 1, 2)) == [large[0]]
    small = Fetching(memory_bytes=1 << 16, request_bytes=1 << 10)
    with Reader(kafka.bootstrap, fetching=small) as frugal:
        assert values(frugal.read(topic)) == contents


def test_batches_larger_than_a_request_in_all_partitions_at_once(kafka: LocalCluster, new_topic: NewTopic) -> None:
    topic = new_topic(6)
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 100})
    for number in range(600):
        producer.produce(topic, b"%06d" % number * 1000, partition=number % 6)
    assert producer.flush(SECONDS) == 0
    tiny = Fetching(memory_bytes=1 << 16, request_bytes=1 << 10, max_wait=0.1)
    with Reader(kafka.bootstrap, fetching=tiny) as reader:
        records = sorted((value or b"")[:6] for value in values(reader.read(topic)))
    assert records == [b"%06d" % number for number in range(600)]


def test_empty_partitions_and_empty_topics(kafka: LocalCluster, new_topic: NewTopic, reader: Reader) -> None:
    topic = new_topic(12)
    assert list(reader.read(topic)) == []
    assert [(profile.records, profile.bytes) for profile in reader.profile(topic)] == [(0, 0)] * 12
    confluent_write(kafka.bootstrap, TopicPartition(topic, 7), "none", RECORDS[:3])
    assert [record.partition for record in names(reader.read(topic))] == [7, 7, 7]
    assert set(reader.offsets(topic, "latest").values()) == {0, 3}


# Topics


def test_a_compacted_topic_is_read_with_its_holes(kafka: LocalCluster, new_topic: NewTopic, reader: Reader) -> None:
    topic, count = new_topic(settings=COMPACTION, replicas=1), 1500
    tp = TopicPartition(topic, 0)
    compact(kafka, tp, count, is_there=lambda: reader.count(topic, 0, count))
    end = reader.offsets(topic, "latest")[tp]
    theirs = [pair for pair in confluent_log(kafka, topic) if pair[0] < end]
    ours = our_log(reader.read(topic, 0, end))
    assert [offset for offset, _ in ours] == sorted({offset for offset, _ in ours})
    assert ours[:300] == theirs[:300]
    last = {value: offset for offset, value in theirs}
    for start, stop in ((0, 50), (333, 777), (1, 2), (700, 1500), (1400, end)):
        read = our_log(reader.read(topic, start, stop))
        assert all(start <= offset < stop for offset, _ in read)
        assert reader.count(topic, start, stop) == len(read)
        assert [pair for pair in read if pair[1] in last] == read


def test_partitions_that_are_added_while_a_topic_is_followed(
    kafka: LocalCluster, new_topic: NewTopic, cluster: Cluster
) -> None:
    topic = new_topic(1)
    confluent_write(kafka.bootstrap, TopicPartition(topic, 0), "none", RECORDS[:5])
    with Reader(kafka.bootstrap, timeouts=Timeouts(metadata_age=0.5)) as reader:
        reading = names(reader.read(topic, "earliest", None))
        assert [next(reading) for _ in range(5)] == [(0, offset) for offset in range(5)]
        Admin(cluster).add_partitions(topic, 3)
        for partition in (1, 2, 0):
            confluent_write(kafka.bootstrap, TopicPartition(topic, partition), "none", RECORDS[:5])
        records = sorted(next(reading) for _ in range(15))
        reading.close()
    assert records == [(0, n) for n in range(5, 10)] + [(p, n) for p in (1, 2) for n in range(5)]


def test_the_same_over_tls_with_a_password(kafka: LocalCluster, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    for partition in range(3):
        confluent_write(kafka.bootstrap, TopicPartition(topic, partition), "lz4", RECORDS)
    assert kafka.secure_bootstrap is not None
    with Reader(kafka.secure_bootstrap, security=kafka.security("alice")) as reader:
        assert sorted(sent(reader.read(topic)), key=repr) == sorted(RECORDS * 3, key=repr)
        assert reader.count(topic) == 3 * len(RECORDS)


# Transactions


class Writers:
    """Producers of confluent-kafka, each in transactions of its own, interleaved in one partition."""

    def __init__(self, kafka: LocalCluster, topic: str, count: int) -> None:
        self._topic = topic
        self._numbers = itertools.count()
        self.committed: list[bytes] = []
        self._pending: list[list[bytes] | None] = [None] * count
        self._producers: list[Any] = []
        for number in range(count):
            settings = {"bootstrap.servers": kafka.bootstrap, "transactional.id": f"{topic}-{number}", "linger.ms": 0}
            producer = confluent_kafka.Producer(settings)
            producer.init_transactions(SECONDS)
            self._producers.append(producer)

    def write(self, number: int, count: int) -> None:
        """In the transaction of this producer, which begins if there is none."""
        producer = self._producers[number]
        pending = self._pending[number]
        if pending is None:
            producer.begin_transaction()
            pending = self._pending[number] = []
        for _ in range(count):
            value = b"%d from %d" % (next(self._numbers), number)
            producer.produce(self._topic, value, partition=0)
            pending.append(value)
        assert producer.flush(SECONDS) == 0

    def commit(self, number: int) -> None:
        pending = self._pending[number]
        if pending is not None:
            self._producers[number].commit_transaction(SECONDS)
            self.committed += pending
            self._pending[number] = None

    def abort(self, number: int) -> None:
        if self._pending[number] is not None:
            self._producers[number].abort_transaction(SECONDS)
            self._pending[number] = None


def test_committed_and_aborted_transactions_of_interleaved_producers(kafka: LocalCluster, new_topic: NewTopic) -> None:
    topic = new_topic()
    writers, chance = Writers(kafka, topic, 3), random.Random(7)
    for _ in range(60):
        number = chance.randrange(3)
        act = chance.random()
        if act < 0.6:
            writers.write(number, chance.randrange(1, 6))
        elif act < 0.8:
            writers.abort(number)
        else:
            writers.commit(number)
    for number in range(3):
        writers.abort(number) if number == 1 else writers.commit(number)
    writers.write(0, 4)  # stays open
    writers.write(1, 2)
    writers.commit(1)

    theirs = confluent_log(kafka, topic, isolation="read_committed")
    everything = confluent_log(kafka, topic)
    with Reader(kafka.bootstrap) as committed:  # the default
        stable = committed.offsets(topic, "latest")[TopicPartition(topic, 0)]
        assert our_log(committed.read(topic)) == theirs
        assert committed.count(topic) == len(theirs)
        assert committed.fingerprint(topic).count == len(theirs)
        # From everywhere, including the middle of an aborted transaction.
        for start in range(0, stable, 3):
            assert our_log(committed.read(OffsetRange(topic, 0, start, stable))) == [
                pair for pair in theirs if pair[0] >= start
            ]
    assert sorted(value or b"" for _, value in theirs) == sorted(set(writers.committed) - _open(everything, stable))
    with Reader(kafka.bootstrap, isolation="read_uncommitted") as reader:
        assert our_log(reader.read(topic)) == everything
        assert stable < reader.offsets(topic, "latest")[TopicPartition(topic, 0)]
        assert reader.profile(topic)[0].control > 5
    writers.commit(0)
    with Reader(kafka.bootstrap, isolation="read_committed") as committed:
        # Markers are written after the commit was acknowledged.
        eventually(lambda: committed.count(topic) == len(writers.committed), "the last one counts")
        assert sorted(value or b"" for value in values(committed.read(topic))) == sorted(writers.committed)


def _open(everything: list[tuple[int, bytes | None]], stable: int) -> set[bytes]:
    """What lies behind the oldest open transaction."""
    return {value for offset, value in everything if offset >= stable and value is not None}


def test_a_reader_of_committed_records_waits_for_an_open_transaction(kafka: LocalCluster, new_topic: NewTopic) -> None:
    topic = new_topic()
    writers = Writers(kafka, topic, 2)
    writers.write(0, 3)
    writers.write(1, 3)
    writers.commit(1)
    with Reader(kafka.bootstrap, isolation="read_committed") as reader:
        assert list(reader.read(topic)) == []
        reading = names(reader.read(topic, 0, None))
        ender = threading.Timer(0.3, lambda: writers.abort(0))
        ender.start()
        assert [next(reading).offset for _ in range(3)] == [3, 4, 5]
        ender.join()
        reading.close()


def test_records_of_an_open_transaction_are_not_lost_however_long_it_takes(
    kafka: LocalCluster, new_topic: NewTopic
) -> None:
    topic, events = new_topic(), EventLog()
    writers = Writers(kafka, topic, 1)
    writers.write(0, 5)
    impatient = Timeouts(total=1.0)
    with Reader(
        kafka.bootstrap, isolation="read_committed", on_lost="earliest", timeouts=impatient, events=[events]
    ) as reader:
        who = (
            r"a transaction of producer id \d+ \(transactional id '.+'\), open since 20.+, holds it up from offset 0 on"
        )
        with pytest.raises(DeadlineExceeded, match=who):
            list(reader.read(OffsetRange(topic, 0, 0, 5)))
        strict = Reader(kafka.bootstrap, isolation="read_committed", timeouts=impatient)
        with strict, pytest.raises(DeadlineExceeded, match=who):
            list(strict.read(OffsetRange(topic, 0, 0, 5)))
        writers.commit(0)
        assert [record.offset for record in names(reader.read(OffsetRange(topic, 0, 0, 5)))] == [0, 1, 2, 3, 4]
    assert not events.of(RangeLost)


def test_many_transactions_in_one_answer(kafka: LocalCluster, new_topic: NewTopic) -> None:
    topic = new_topic()
    writers = Writers(kafka, topic, 1)
    for number in range(40):
        writers.write(0, 1)
        writers.abort(0) if number % 3 else writers.commit(0)
    with Reader(kafka.bootstrap, isolation="read_committed") as reader:
        # The coordinator answers before the partition has the last marker.
        eventually(lambda: [*reader.offsets(topic, "latest").values()] == [80], "every marker is there")
        assert values(reader.read(topic)) == writers.committed
