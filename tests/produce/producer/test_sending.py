"""Every way to send, and what arrives in the log of the fake cluster."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from tests.waiting import eventually

from ottla import Batching, OnUnknownTopic, RoundRobin, TopicOptions
from ottla.errors import RecordTooLarge
from ottla.model import OffsetRange
from ottla.testing import FakeKafka
from ottla.wire.batch import Batch
from ottla.wire.partitioning import partition_of_key

from .stand import SOON, new, values


@pytest.mark.parametrize("acks", ["all", 1, 0])
@pytest.mark.parametrize("idempotent", [True, False])
def test_records_arrive_in_order_with_every_kind_of_acknowledgement(
    kafka: FakeKafka, acks: Any, idempotent: bool
) -> None:
    with new(kafka, acks=acks, idempotent=idempotent) as producer:
        deliveries = [producer.send("t", b"%d" % i) for i in range(3000)]
        offsets = [delivery.result(SOON).offset for delivery in deliveries]
    eventually(lambda: len(values(kafka)) == 3000, "all arrive")
    assert values(kafka) == [b"%d" % i for i in range(3000)]
    assert offsets == ([-1] * 3000 if acks == 0 else list(range(3000)))
    numbered = Batch.parse(kafka.log("t", 0)[0]).header.producer_id >= 0
    assert numbered == (idempotent and acks != 0)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_compresses_whole_batches(kafka: FakeKafka, codec: str) -> None:
    with new(kafka, compression=codec) as producer:
        producer.send_many("t", [b"the same again and again"] * 500).result(SOON)
    (stored,) = kafka.log("t", 0)
    assert Batch.parse(stored).header.codec.name.lower() == codec
    assert values(kafka) == [b"the same again and again"] * 500
    assert (len(stored) < 4000) == (codec != "none")


def test_a_send_tells_topic_partition_offset_and_time(kafka: FakeKafka) -> None:
    with new(kafka) as producer:
        producer.send("t", b"before").result(SOON)
        sent = producer.send("t", "text", "key", headers={"a": "1", "b": None}, timestamp=1_700_000_000.5).result(SOON)
    assert sent == ("t", 0, 1, 1_700_000_000.5)
    record = kafka.records("t", 0)[1]
    assert (record.key, record.value, record.timestamp) == (b"key", b"text", 1_700_000_000.5)
    assert record.headers == (("a", b"1"), ("b", None))


def test_nothing_empty_and_null_are_three_things(kafka: FakeKafka) -> None:
    with new(kafka) as producer:
        producer.send("t", b"")
        producer.send("t", None)
        producer.send("t", None, b"")
        producer.send("t", b"x", headers=[])
    assert [(r.key, r.value) for r in kafka.records("t", 0)] == [(None, b""), (None, None), (b"", None), (None, b"x")]


def test_what_is_changed_after_the_send_is_sent_as_it_was(kafka: FakeKafka) -> None:
    changing = bytearray(b"before")
    with new(kafka, batching=Batching(linger=0.05)) as producer:
        producer.send("t", changing)
        producer.send_many("t", [changing])
        changing[:] = b"after!"
    assert values(kafka) == [b"before", b"before"]


def test_an_aware_datetime_is_a_timestamp(kafka: FakeKafka) -> None:
    with new(kafka) as producer:
        producer.send("t", b"", timestamp=datetime(2024, 2, 29, 12, tzinfo=UTC))
    assert kafka.records("t", 0)[0].timestamp == datetime(2024, 2, 29, 12, tzinfo=UTC).timestamp()


def test_lists_mix_values_and_pairs(kafka: FakeKafka) -> None:
    with new(kafka) as producer:
        sent = producer.send_many("t", [b"1", (b"k", b"2"), "3", (None, None), ("k", bytearray(b"5"))]).result(SOON)
    assert sent.ranges == (OffsetRange("t", 0, 0, 5),)
    assert [(r.key, r.value) for r in kafka.records("t", 0)] == [
        (None, b"1"),
        (b"k", b"2"),
        (None, b"3"),
        (None, None),
        (b"k", b"5"),
    ]


def test_an_empty_list_and_an_empty_table_are_sent_at_once(kafka: FakeKafka) -> None:
    with new(kafka) as producer:
        assert producer.send_many("t", []).result(SOON).records == 0
        assert producer.send_table("t", pa.table({"value": pa.array([], pa.binary())})).result(SOON).records == 0


STRINGS = [
    pa.binary(),
    pa.large_binary(),
    pa.binary_view(),
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.binary(3),
    pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int8(), pa.binary()),
]


@pytest.mark.parametrize("kind", STRINGS, ids=str)
def test_tables_of_every_text_and_binary_type_are_sent(kafka: FakeKafka, kind: pa.DataType) -> None:
    texts: list[Any] = ["abc", None, "def", "ghi"]
    simple = pa.array(texts, pa.string())
    plain = pa.binary() if pa.types.is_fixed_size_binary(kind) else None
    column = simple.cast(plain).cast(kind) if plain else _encoded(simple, kind)
    chunked = pa.chunked_array([column.slice(0, 1), column.slice(1, 0), column.slice(1)])
    with new(kafka) as producer:
        sent = producer.send_table("t", pa.table({"value": chunked, "key": chunked})).result(SOON)
    assert sent.records == 4
    expected = [None if text is None else text.encode() for text in texts]
    assert [(r.key, r.value) for r in kafka.records("t", 0)] == list(zip(expected, expected, strict=True))


def _encoded(simple: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_dictionary(kind):
        return simple.cast(kind)
    return simple.cast(kind.value_type).dictionary_encode().cast(kind)


def test_a_table_brings_key_headers_timestamp_and_partition(kafka: FakeKafka) -> None:
    table = pa.table(
        {
            "value": [b"a", b"b", b"c"],
            "key": [b"k", None, b"k"],
            "headers": pa.array([[("h", b"1")], [], None], pa.map_(pa.string(), pa.binary())),
            "timestamp": pa.array([1000, 2000, 3000], pa.timestamp("ms", tz="UTC")),
            "partition": pa.array([2, 3, 2], pa.int16()),
        }
    )
    with new(kafka) as producer:
        sent = producer.send_table("many", table).result(SOON)
    assert sent.ranges == (OffsetRange("many", 2, 0, 2), OffsetRange("many", 3, 0, 1))
    first, second = kafka.records("many", 2)
    assert (first.key, first.value, first.headers, first.timestamp) == (b"k", b"a", (("h", b"1"),), 1.0)
    assert (second.value, second.headers, second.timestamp) == (b"c", (), 3.0)


def test_a_table_may_name_the_topic_of_each_row(kafka: FakeKafka) -> None:
    table = pa.table({"topic": ["t", "many", "t"], "value": [b"1", b"2", b"3"]})
    with new(kafka) as producer:
        assert producer.send_table(None, table).result(SOON).records == 3
    assert values(kafka) == [b"1", b"3"]
    assert [v for p in range(4) for v in values(kafka, "many", p)] == [b"2"]


def test_rows_without_a_partition_go_where_their_key_says(kafka: FakeKafka) -> None:
    keys = [b"%d" % i for i in range(200)]
    table = pa.table({"value": keys, "key": keys, "partition": pa.array([None] * 200, pa.int32())})
    with new(kafka) as producer:
        producer.send_table("many", table).result(SOON)
        for key in keys[:5]:
            assert producer.partition_for("many", key) == partition_of_key(key, 4)
    for partition in range(4):
        assert values(kafka, "many", partition) == [k for k in keys if partition_of_key(k, 4) == partition]


def test_a_large_table_is_split_into_batches_and_stays_in_order(kafka: FakeKafka) -> None:
    table = pa.table({"value": [b"%07d" % i + bytes(93) for i in range(100_000)]})
    with new(kafka, batching=Batching(bytes=100_000, linger=0.0)) as producer:
        sent = producer.send_table("t", table).result(60)
    assert sent.ranges == (OffsetRange("t", 0, 0, 100_000),)
    assert [int(v[:7]) for v in values(kafka) if v is not None] == list(range(100_000))
    assert all(len(stored) <= 100_000 for stored in kafka.log("t", 0))


def test_threads_share_a_producer_and_each_keeps_its_order(kafka: FakeKafka) -> None:
    def work(thread: int) -> None:
        for i in range(2000):
            producer.send("many", b"%d/%d" % (thread, i), b"%d" % thread)

    with new(kafka) as producer:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON)
    for thread_number in range(4):
        mine = [v for p in range(4) for v in values(kafka, "many", p) if (v or b"").startswith(b"%d/" % thread_number)]
        assert mine == [b"%d/%d" % (thread_number, i) for i in range(2000)]


def test_batches_have_as_many_records_as_they_may(kafka: FakeKafka) -> None:
    with new(kafka, batching=Batching(records=10, linger=0.0)) as producer:
        producer.send_many("t", [b"x"] * 35).result(SOON)
    assert [Batch.parse(stored).header.count for stored in kafka.log("t", 0)] == [10, 10, 10, 5]


def test_a_topic_has_options_of_its_own(kafka: FakeKafka) -> None:
    options = {"many": TopicOptions(compression="gzip", acks=1, strategy=RoundRobin(), max_record_bytes=100)}
    with new(kafka, compression="lz4", topics=options) as producer:
        producer.send_many("many", [b"x"] * 8).result(SOON)
        producer.send("t", bytes(200)).result(SOON)
        with pytest.raises(RecordTooLarge):
            producer.send("many", bytes(200))
    assert Batch.parse(kafka.log("t", 0)[0]).header.codec.name == "LZ4"
    assert [len(values(kafka, "many", p)) for p in range(4)] == [2, 2, 2, 2]
    assert Batch.parse(kafka.log("many", 0)[0]).header.codec.name == "GZIP"


def test_new_topics_are_created_where_that_is_configured() -> None:
    with FakeKafka() as kafka, new(kafka, unknown_topic=OnUnknownTopic.CREATE) as producer:
        assert producer.send("fresh", b"1").result(SOON).offset == 0
        assert values(kafka, "fresh") == [b"1"]


def test_partition_for_tells_the_choice_without_sending(kafka: FakeKafka) -> None:
    with new(kafka, strategy=RoundRobin()) as producer:
        for _ in range(5):
            partition = producer.partition_for("many")
            assert producer.partition_for("many") == partition
            assert producer.send("many", b"x").result(SOON).partition == partition
    with new(kafka, partitioner=lambda key, value, partitions: 3) as producer:
        assert producer.partition_for("many", b"any") == 3


def test_records_for_hundreds_of_partitions_arrive_each_in_its_own_and_in_order() -> None:
    """By single sends, lists and tables, with small records and some that outgrow their slots."""
    with FakeKafka(topics={"wide": 300}) as kafka, new(kafka) as producer:
        items = [(b"key-%d" % (i % 1000), b"%d" % i + bytes(20_000 if i % 997 == 0 else i % 50)) for i in range(6000)]
        table = pa.table({"key": [key for key, _ in items[:2000]], "value": [value for _, value in items[:2000]]})
        deliveries = [producer.send_table("wide", table), producer.send_many("wide", items[2000:4000])]
        single = [producer.send("wide", value, key) for key, value in items[4000:]]
        places: dict[int, tuple[int, int]] = {}
        for number, delivery in enumerate(deliveries):
            for tp, rows, offset, error in delivery.outcomes(SOON):
                assert error is None
                places |= {2000 * number + row: (tp.partition, offset + i) for i, row in enumerate(rows.tolist())}
        for row, single_delivery in enumerate(single, 4000):
            sent = single_delivery.result(SOON)
            places[row] = sent.partition, sent.offset
        logs = {partition: kafka.records("wide", partition) for partition in range(300)}
    for row, (key, value) in enumerate(items):
        partition, offset = places[row]
        assert partition == partition_of_key(key, 300)
        record = logs[partition][offset]
        assert (record.key, record.value) == (key, value)
    for records in logs.values():
        numbers = [int(record.value.split(b"\0")[0]) for record in records if record.value]
        assert numbers == sorted(numbers)
