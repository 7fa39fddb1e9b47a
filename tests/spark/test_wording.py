"""Advice in errors names Spark's options, wherever they are raised."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from pyspark.sql.types import StructType

from ottla import Producer
from ottla.errors import Advice
from ottla.model import OffsetRange
from ottla.spark import read_task
from ottla.spark.batch_source import BatchReader
from ottla.spark.columns import full_schema
from ottla.spark.read_options import for_batch, for_stream
from ottla.spark.read_task import Slice
from ottla.spark.source import OttlaSource
from ottla.spark.stream_source import StreamReader
from ottla.spark.wording import WORDS
from ottla.testing import FakeKafka

API_NAMES = re.compile(r"Security\(|Tls\(|Fetching\(|on_lost|max_record_bytes")


def test_every_advice_has_words_of_its_own() -> None:
    assert set(WORDS) == set(Advice)
    assert not [words for words in WORDS.values() if API_NAMES.search(words)]


def options(kafka: FakeKafka, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": "clicks", **more}


def schema() -> StructType:
    return full_schema(headers=False)


@pytest.fixture
def kafka(fake_kafka: FakeKafka) -> Iterator[FakeKafka]:
    fake_kafka.create_topic("clicks", partitions=1)
    yield fake_kafka
    while read_task._readers:
        read_task._readers.popitem()[1].close()


def test_tls_on_a_listener_without_it(kafka: FakeKafka) -> None:
    given = options(kafka, **{"kafka.security.protocol": "SSL", "kafka.default.api.timeout.ms": "1000"})
    batch, stream = BatchReader(for_batch(given), schema()), StreamReader(for_stream(given), schema())
    for step in (batch.partitions, stream.initialOffset):
        with pytest.raises(Exception, match=r"Then set kafka\.security\.protocol to PLAINTEXT") as caught:
            step()
        assert not API_NAMES.search(str(caught.value))


def test_offsets_that_are_not_there(kafka: FakeKafka) -> None:
    reader = BatchReader(for_batch(options(kafka, endingOffsets='{"clicks":{"0":100}}')), schema())
    with pytest.raises(Exception, match="failOnDataLoss=false") as caught:
        reader.partitions()
    assert not API_NAMES.search(str(caught.value))


def test_offsets_that_were_taken_away_since_the_planning(kafka: FakeKafka) -> None:
    given = options(kafka, retryTimeout="1s")
    for reader in (BatchReader(for_batch(given), schema()), StreamReader(for_stream(given), schema())):
        with pytest.raises(Exception, match="failOnDataLoss=false") as caught:
            list(reader.read(Slice(OffsetRange("clicks", 0, 50, 60))))
        assert not API_NAMES.search(str(caught.value))


def test_an_address_with_a_user(kafka: FakeKafka) -> None:
    source = OttlaSource(options(kafka) | {"kafka.bootstrap.servers": "me:secret@localhost:9092"})
    with pytest.raises(Exception, match=re.escape("kafka.sasl.jaas.config")) as caught:
        source.schema()
    assert "secret" not in str(caught.value)


def test_a_batch_that_inflates(kafka: FakeKafka) -> None:
    with Producer(kafka.bootstrap, compression="zstd") as producer:
        producer.send("clicks", bytes(100_000))
    for limit, rows in (("50000", 0), ("200k", 1)):
        reader = BatchReader(for_batch(options(kafka, maxBatchBytes=limit)), schema())
        (slice_,) = (part for part in reader.partitions() if isinstance(part, Slice))
        if rows:
            assert sum(batch.num_rows for batch in reader.read(slice_)) == rows
        else:
            with pytest.raises(Exception, match="the option maxBatchBytes raises it"):
                list(reader.read(slice_))
