"""Other clients behind two functions each: write records to a partition with a codec, read a partition."""

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
# The tool runs only briefly, so skip the second compiler. Text is UTF-8 whatever the locale (Java 17 would use it).
_OPTIONS = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8")


def confluent_write(bootstrap: str, tp: TopicPartition, codec: str, records: Sequence[Sent]) -> None:
    settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": codec, "linger.ms": 50}
    producer = confluent_kafka.Producer(settings)
    failures: list[Any] = []
    for r in records:
        producer.produce(
            tp.topic,
            r.value,
            r.key,
            partition=tp.partition,
            timestamp=r.time,
            headers=list(r.headers),
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(SECONDS) == 0
    assert not failures


def confluent_read(bootstrap: str, tp: TopicPartition, count: int) -> list[Sent]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "check.crcs": True})
    with closing(consumer):
        consumer.assign([confluent_kafka.TopicPartition(tp.topic, tp.partition, 0)])
        messages: list[Any] = []
        while len(messages) < count:
            more = consumer.consume(count - len(messages), SECONDS)
            assert more, f"{len(messages)} of {count} records arrived"
            assert [m.error() for m in more if m.error()] == []
            messages += more
    return [Sent(m.key(), m.value(), tuple(m.headers() or ()), m.timestamp()[1]) for m in messages]


def aiokafka_write(bootstrap: str, tp: TopicPartition, codec: str, records: Sequence[Sent]) -> None:
    async def write() -> None:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            enable_idempotence=True,
            compression_type=None if codec == "none" else codec,
            linger_ms=50,
        ) as producer:
            sent = [
                await producer.send(
                    tp.topic, r.value, r.key, partition=tp.partition, timestamp_ms=r.time, headers=list(r.headers)
                )
                for r in records
            ]
            await asyncio.wait_for(asyncio.gather(*sent), SECONDS)

    asyncio.run(write())


def aiokafka_read(bootstrap: str, tp: TopicPartition, count: int) -> list[Sent]:
    async def read() -> list[Sent]:
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, check_crcs=True) as consumer:
            client_tp = aiokafka.TopicPartition(*tp)
            consumer.assign([client_tp])
            consumer.seek(client_tp, 0)
            messages = [await asyncio.wait_for(consumer.getone(), SECONDS) for _ in range(count)]
        return [Sent(m.key, m.value, tuple(m.headers), m.timestamp) for m in messages]

    return asyncio.run(read())


def kafka_python_write(bootstrap: str, tp: TopicPartition, codec: str, records: Sequence[Sent]) -> None:
    compression = None if codec == "none" else codec
    producer = kafka_python.KafkaProducer(bootstrap_servers=bootstrap, compression_type=compression, linger_ms=50)
    with closing(producer):
        sent = [
            producer.send(
                tp.topic, r.value, r.key, partition=tp.partition, timestamp_ms=r.time, headers=list(r.headers)
            )
            for r in records
        ]
        for future in sent:
            future.get(SECONDS)


def kafka_python_read(bootstrap: str, tp: TopicPartition, count: int) -> list[Sent]:
    consumer = kafka_python.KafkaConsumer(
        bootstrap_servers=bootstrap, consumer_timeout_ms=1000 * SECONDS, check_crcs=True
    )
    with closing(consumer):
        client_tp = kafka_python.TopicPartition(*tp)
        consumer.assign([client_tp])
        consumer.seek(client_tp, 0)
        messages = [next(consumer) for _ in range(count)]
    return [Sent(m.key, m.value, tuple(m.headers), m.timestamp) for m in messages]


CLIENTS: dict[str, tuple[Write, Read]] = {
    "confluent-kafka": (confluent_write, confluent_read),
    "aiokafka": (aiokafka_write, aiokafka_read),
    "kafka-python": (kafka_python_write, kafka_python_read),
}


def _codecs_of(client: str) -> list[str]:
    if client != "kafka-python":
        return list(CODECS)
    # It needs an extra package for each of these two.
    missing = {"snappy": not kafka_python_codecs.has_snappy(), "zstd": not kafka_python_codecs.has_zstd()}
    return [codec for codec in CODECS if not missing.get(codec)]


MATRIX = [(client, codec) for client in CLIENTS for codec in _codecs_of(client)]


def java(main: str, *arguments: str) -> subprocess.Popen[str]:
    """Start one of Kafka's own tools; its log goes to standard error."""
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
    """Give the tool its input and return what it prints; it must succeed."""
    try:
        printed, log = tool.communicate(text, timeout=120)
    except subprocess.TimeoutExpired:
        tool.kill()
        printed, log = tool.communicate()
        raise AssertionError(f"the tool did not end; its log:\n{log}") from None
    assert tool.returncode == 0, log
    return printed
