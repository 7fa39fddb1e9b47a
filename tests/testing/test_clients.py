"""Three other clients write to the fake with every codec and read each other's records."""

from __future__ import annotations

import asyncio
import warnings
from contextlib import closing
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka
import confluent_kafka.admin
import pytest

from ottla.testing import FakeKafka

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # kafka-python reads its schemas with a deprecated function
    import kafka as kafka_python

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

confluent_admin: Any = confluent_kafka.admin  # its type stubs lack what it imports

DEADLINE = 20.0
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


class Sent(NamedTuple):
    """A record that every client can represent; the time is in milliseconds."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, Any], ...]
    time: int


RECORDS = [
    Sent(b"user-1", b"hello", (("trace", b"\x00\xff"), ("trace", b"again")), 1_700_000_000_123),
    Sent(None, b"no key", (), 1_700_000_000_456),
    Sent(b"tombstone", None, (), 1_700_000_001_000),
    Sent(b"", b"", (("empty", b""),), 1_700_000_001_001),
    Sent(b"large", b"x" * 20_000, (), 1_700_000_002_000),
]


def confluent_write(bootstrap: str, topic: str, codec: str) -> list[int]:
    settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": codec}
    producer = confluent_kafka.Producer(settings)
    offsets: list[int] = []

    def delivered(error: Any, message: Any) -> None:
        assert error is None
        offsets.append(message.offset())

    for r in RECORDS:
        headers: list[tuple[str, Any]] = list(r.headers)
        producer.produce(topic, r.value, r.key, partition=0, timestamp=r.time, headers=headers, on_delivery=delivered)
    assert producer.flush(DEADLINE) == 0
    return offsets


def aiokafka_write(bootstrap: str, topic: str, codec: str) -> list[int]:
    async def write() -> list[int]:
        compression = None if codec == "none" else codec
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=True, compression_type=compression
        ) as producer:
            sent = [
                await producer.send(topic, r.value, r.key, partition=0, timestamp_ms=r.time, headers=list(r.headers))
                for r in RECORDS
            ]
            return [(await asyncio.wait_for(future, DEADLINE)).offset for future in sent]

    return asyncio.run(write())


def kafka_python_write(bootstrap: str, topic: str, codec: str) -> list[int]:
    compression = None if codec == "none" else codec
    producer = kafka_python.KafkaProducer(bootstrap_servers=bootstrap, compression_type=compression)
    with closing(producer):
        sent = [
            producer.send(topic, r.value, r.key, partition=0, timestamp_ms=r.time, headers=list(r.headers))
            for r in RECORDS
        ]
        return [future.get(DEADLINE).offset for future in sent]


def confluent_read(bootstrap: str, topic: str) -> list[Sent]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "confluent", "check.crcs": True}
    consumer = confluent_kafka.Consumer(settings)
    with closing(consumer):
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        messages: list[Any] = []
        while len(messages) < len(RECORDS):
            message = consumer.poll(DEADLINE)
            assert message is not None
            assert message.error() is None
            messages.append(message)
    return [Sent(m.key(), m.value(), tuple(m.headers() or ()), m.timestamp()[1]) for m in messages]


def aiokafka_read(bootstrap: str, topic: str) -> list[Sent]:
    async def read() -> list[Sent]:
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, check_crcs=True) as consumer:
            tp = aiokafka.TopicPartition(topic, 0)
            consumer.assign([tp])
            await consumer.seek_to_beginning(tp)
            got = [await asyncio.wait_for(consumer.getone(), DEADLINE) for _ in RECORDS]
        return [Sent(m.key, m.value, tuple(m.headers), m.timestamp) for m in got]

    return asyncio.run(read())


def kafka_python_read(bootstrap: str, topic: str) -> list[Sent]:
    consumer = kafka_python.KafkaConsumer(
        bootstrap_servers=bootstrap, consumer_timeout_ms=1000 * DEADLINE, check_crcs=True
    )
    with closing(consumer):
        tp = kafka_python.TopicPartition(topic, 0)
        consumer.assign([tp])
        consumer.seek_to_beginning(tp)
        got = [next(consumer) for _ in RECORDS]
    return [Sent(m.key, m.value, tuple(m.headers), m.timestamp) for m in got]


WRITERS = {"confluent": confluent_write, "aiokafka": aiokafka_write, "kafka-python": kafka_python_write}
READERS = {"confluent": confluent_read, "aiokafka": aiokafka_read, "kafka-python": kafka_python_read}

# kafka-python needs extra packages for the other two.
KAFKA_PYTHON_CODECS = ("none", "gzip", "lz4")


def speaks(client: str, codec: str) -> bool:
    return client != "kafka-python" or codec in KAFKA_PYTHON_CODECS


@pytest.mark.parametrize(("client", "codec"), [(w, c) for w in WRITERS for c in CODECS if speaks(w, c)])
def test_what_one_client_writes_the_others_read(fake_kafka: FakeKafka, client: str, codec: str) -> None:
    assert WRITERS[client](fake_kafka.bootstrap, "clicks", codec) == [0, 1, 2, 3, 4]
    stored = fake_kafka.records("clicks", 0)
    assert [Sent(r.key, r.value, r.headers, round(r.timestamp * 1000)) for r in stored] == RECORDS
    for reader, read in READERS.items():
        if speaks(reader, codec):
            assert read(fake_kafka.bootstrap, "clicks") == RECORDS


def test_an_assigned_consumer_continues_where_it_committed(fake_kafka: FakeKafka) -> None:
    confluent_write(fake_kafka.bootstrap, "clicks", "none")
    settings = {"bootstrap.servers": fake_kafka.bootstrap, "group.id": "g", "enable.auto.commit": False}
    with closing(confluent_kafka.Consumer(settings)) as first:
        first.commit(offsets=[confluent_kafka.TopicPartition("clicks", 0, 3)], asynchronous=False)
    with closing(confluent_kafka.Consumer(settings)) as second:
        second.assign([confluent_kafka.TopicPartition("clicks", 0)])
        message = second.poll(DEADLINE)
        assert message is not None
        assert message.offset() == 3


def test_aiokafka_and_kafka_python_see_the_same_committed_offset(fake_kafka: FakeKafka) -> None:
    confluent_write(fake_kafka.bootstrap, "clicks", "none")

    async def commit() -> None:
        tp = aiokafka.TopicPartition("clicks", 0)
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=fake_kafka.bootstrap, group_id="g") as consumer:
            consumer.assign([tp])
            await consumer.commit({tp: 2})
            assert await consumer.committed(tp) == 2

    asyncio.run(commit())
    with closing(kafka_python.KafkaConsumer(bootstrap_servers=fake_kafka.bootstrap, group_id="g")) as other:
        assert other.committed(kafka_python.TopicPartition("clicks", 0)) == 2


def test_offsets_are_found_by_time(fake_kafka: FakeKafka) -> None:
    confluent_write(fake_kafka.bootstrap, "clicks", "zstd")
    settings = {"bootstrap.servers": fake_kafka.bootstrap, "group.id": "g"}
    times = [1_700_000_000_000, 1_700_000_000_124, 1_700_000_001_001, 1_800_000_000_000]
    with closing(confluent_kafka.Consumer(settings)) as consumer:
        offsets = [
            consumer.offsets_for_times([confluent_kafka.TopicPartition("clicks", 0, t)], timeout=DEADLINE)[0].offset
            for t in times
        ]
        assert consumer.get_watermark_offsets(confluent_kafka.TopicPartition("clicks", 0)) == (0, 5)
    assert offsets[:3] == [0, 1, 3]
    assert offsets[3] == confluent_kafka.OFFSET_END


def test_an_admin_client_creates_grows_describes_and_deletes_topics() -> None:
    with FakeKafka(brokers=3, auto_create=None) as kafka:
        admin = confluent_admin.AdminClient({"bootstrap.servers": kafka.bootstrap})
        new = confluent_admin.NewTopic("orders", 2, 3, config={"retention.ms": "1000"})
        admin.create_topics([new])["orders"].result(DEADLINE)
        with pytest.raises(confluent_kafka.KafkaException, match="TOPIC_ALREADY_EXISTS"):
            admin.create_topics([new])["orders"].result(DEADLINE)
        resource = confluent_admin.ConfigResource("topic", "orders")
        configs = admin.describe_configs([resource])[resource].result(DEADLINE)
        assert configs["retention.ms"].value == "1000"
        admin.create_partitions([confluent_admin.NewPartitions("orders", 5)])["orders"].result(DEADLINE)
        assert kafka.topics == {"orders": 5}
        described = admin.list_topics("orders", timeout=DEADLINE)
        assert len(described.brokers) == 3
        assert all(len(p.replicas) == 3 for p in described.topics["orders"].partitions.values())
        assert len(admin.describe_cluster().result(DEADLINE).nodes) == 3
        admin.delete_topics(["orders"])["orders"].result(DEADLINE)
        assert kafka.topics == {}


def test_without_auto_create_an_unknown_topic_is_an_error() -> None:
    with FakeKafka(auto_create=None) as kafka:
        settings = {"bootstrap.servers": kafka.bootstrap, "topic.metadata.propagation.max.ms": 100}
        producer = confluent_kafka.Producer(settings)
        errors: list[str | None] = []
        producer.produce("nowhere", b"x", on_delivery=lambda error, _: errors.append(error.name() if error else None))
        producer.flush(DEADLINE)
        assert errors in (["_UNKNOWN_TOPIC"], ["UNKNOWN_TOPIC_OR_PART"])  # as its own cache or the answer says
        assert kafka.topics == {}
