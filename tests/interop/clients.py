"""Other people's clients behind two functions each: write records to a partition with a codec, read a partition."""

from __future__ import annotations

import asyncio
import os
import subprocess
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import aiokafka
import confluent_kafka

from ottla.cluster.jars import ensure_jars
from ottla.cluster.java import find_java
from ottla.cluster.local import default_cache_dir
from ottla.cluster.pinned import DEFAULT_VERSION
from ottla.model import TopicPartition

from .samples import CODECS, Sent

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # kafka-python reads its schemas with a deprecated function
    import kafka as kafka_python
    from kafka import codec as kafka_python_codecs

Write = Callable[[str, TopicPartition, str, Sequence[Sent]], None]
Read = Callable[[str, TopicPartition, int], list[Sent]]

SECONDS = 30.0
# A short life: no time for the second compiler. Text is UTF-8 whatever the locale says (Java 17 would ask it).
_OPTIONS = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8")


def confluent_write(bootstrap: str, at: TopicPartition, codec: str, records: Sequence[Sent]) -> None:
    settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": codec, "linger.ms": 50}
    producer = confluent_kafka.Producer(settings)
    failures: list[Any] = []
    for r in records:
        producer.produce(
            at.topic,
            r.value,
            r.key,
            partition=at.partition,
            timestamp=r.time,
            headers=list(r.headers),
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(SECONDS) == 0
    assert not failures


def confluent_read(bootstrap: str, at: TopicPartition, count: int) -> list[Sent]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "check.crcs": True})
    with closing(consumer):
        consumer.assign([confluent_kafka.TopicPartition(at.topic, at.partition, 0)])
        found: list[Any] = []
        while len(found) < count:
            messages = consumer.consume(count - len(found), SECONDS)
            assert messages, f"{len(found)} of {count} records arrived"
            assert [m.error() for m in messages if m.error()] == []
            found += messages
    return [Sent(m.key(), m.value(), tuple(m.headers() or ()), m.timestamp()[1]) for m in found]


def aiokafka_write(bootstrap: str, at: TopicPartition, codec: str, records: Sequence[Sent]) -> None:
    async def write() -> None:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            enable_idempotence=True,
            compression_type=None if codec == "none" else codec,
            linger_ms=50,
        ) as producer:
            sent = [
                await producer.send(
                    at.topic, r.value, r.key, partition=at.partition, timestamp_ms=r.time, headers=list(r.headers)
                )
                for r in records
            ]
            await asyncio.wait_for(asyncio.gather(*sent), SECONDS)

    asyncio.run(write())


def aiokafka_read(bootstrap: str, at: TopicPartition, count: int) -> list[Sent]:
    async def read() -> list[Sent]:
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, check_crcs=True) as consumer:
            there = aiokafka.TopicPartition(*at)
            consumer.assign([there])
            consumer.seek(there, 0)
            found = [await asyncio.wait_for(consumer.getone(), SECONDS) for _ in range(count)]
        return [Sent(m.key, m.value, tuple(m.headers), m.timestamp) for m in found]

    return asyncio.run(read())


def kafka_python_write(bootstrap: str, at: TopicPartition, codec: str, records: Sequence[Sent]) -> None:
    compression = None if codec == "none" else codec
    producer = kafka_python.KafkaProducer(bootstrap_servers=bootstrap, compression_type=compression, linger_ms=50)
    with closing(producer):
        sent = [
            producer.send(
                at.topic, r.value, r.key, partition=at.partition, timestamp_ms=r.time, headers=list(r.headers)
            )
            for r in records
        ]
        for one in sent:
            one.get(SECONDS)


def kafka_python_read(bootstrap: str, at: TopicPartition, count: int) -> list[Sent]:
    consumer = kafka_python.KafkaConsumer(
        bootstrap_servers=bootstrap, consumer_timeout_ms=1000 * SECONDS, check_crcs=True
    )
    with closing(consumer):
        there = kafka_python.TopicPartition(*at)
        consumer.assign([there])
        consumer.seek(there, 0)
        found = [next(consumer) for _ in range(count)]
    return [Sent(m.key, m.value, tuple(m.headers), m.timestamp) for m in found]


CLIENTS: dict[str, tuple[Write, Read]] = {
    "confluent-kafka": (confluent_write, confluent_read),
    "aiokafka": (aiokafka_write, aiokafka_read),
    "kafka-python": (kafka_python_write, kafka_python_read),
}


def _codecs_of(client: str) -> list[str]:
    if client != "kafka-python":
        return list(CODECS)
    # It needs a package of its own for each of these two.
    missing = {"snappy": not kafka_python_codecs.has_snappy(), "zstd": not kafka_python_codecs.has_zstd()}
    return [codec for codec in CODECS if not missing.get(codec)]


MATRIX = [(client, codec) for client in CLIENTS for codec in _codecs_of(client)]


def java(main: str, *arguments: str) -> subprocess.Popen[str]:
    """One of Kafka's own tools, started; its log goes to standard error."""
    jars = ensure_jars(DEFAULT_VERSION, default_cache_dir())
    return subprocess.Popen(
        [str(find_java(os.environ)), *_OPTIONS, main, *arguments],
        env=os.environ | {"CLASSPATH": os.pathsep.join(map(str, jars))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def output(tool: subprocess.Popen[str], text: str = "") -> str:
    """Give the tool its input and wait for what it prints; it must succeed."""
    try:
        printed, log = tool.communicate(text, timeout=120)
    except subprocess.TimeoutExpired:
        tool.kill()
        printed, log = tool.communicate()
        raise AssertionError(f"the tool did not end; its log:\n{log}") from None
    assert tool.returncode == 0, log
    return printed
