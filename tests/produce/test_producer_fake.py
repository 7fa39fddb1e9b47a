"""The producer end to end against the fake cluster: every way in, every option, every failure that can be provoked."""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from tests.waiting import eventually

from ottla import Batching, Buffering, ByColumn, OnUnknownTopic, Producer, RoundRobin, TopicOptions, WhenFull
from ottla.config import Retry, Timeouts
from ottla.errors import (
    BufferFull,
    ConfigError,
    ErrorCode,
    InputError,
    NotDelivered,
    OttlaError,
    RecordTooLarge,
    UsedAfterFork,
)
from ottla.events import Dropped, EpochBumped, Event
from ottla.model import OffsetRange
from ottla.produce.options import Oversize
from ottla.produce.outcomes import FailedBatch
from ottla.testing import FakeKafka, When
from ottla.wire.batch import Batch
from ottla.wire.partitioning import partition_of_key

SOON = 20.0
QUICK = Retry(initial=0.01, maximum=0.05)
TIMES = Timeouts(connect=2.0, request=5.0, total=10.0)


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka(brokers=2, topics={"t": 1, "many": 4}, auto_create=None) as cluster:
        yield cluster


def new(kafka: FakeKafka, **options: Any) -> Producer:
    given: dict[str, Any] = {"retry": QUICK, "timeouts": TIMES, "batching": Batching(linger=0.001), **options}
    return Producer(kafka.bootstrap, **given)


def values(kafka: FakeKafka, topic: str = "t", partition: int = 0) -> list[bytes | None]:
    return [record.value for record in kafka.records(topic, partition)]


# Ways in


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
    given: list[Any] = ["abc", None, "def", "ghi"]
    simple = pa.array(given, pa.string())
    plain = pa.binary() if pa.types.is_fixed_size_binary(kind) else None
    column = simple.cast(plain).cast(kind) if plain else _encoded(simple, kind)
    chunked = pa.chunked_array([column.slice(0, 1), column.slice(1, 0), column.slice(1)])
    with new(kafka) as producer:
        sent = producer.send_table("t", pa.table({"value": chunked, "key": chunked})).result(SOON)
    assert sent.records == 4
    expected = [None if text is None else text.encode() for text in given]
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


def test_a_large_table_is_cut_into_batches_and_stays_in_order(kafka: FakeKafka) -> None:
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
            told = producer.partition_for("many")
            assert producer.partition_for("many") == told
            assert producer.send("many", b"x").result(SOON).partition == told
    with new(kafka, partitioner=lambda key, value, partitions: 3) as producer:
        assert producer.partition_for("many", b"any") == 3


# Bad input


def test_an_unknown_topic_is_refused_with_its_name(kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.produce.scout._UNKNOWN_PATIENCE", 0.2)
    producer = new(kafka)
    delivery = producer.send("typo", b"1")
    with pytest.raises(OttlaError, match=r"topic typo: UNKNOWN_TOPIC_OR_PARTITION .*\n.*does not exist"):
        delivery.result(SOON)
    with pytest.raises(NotDelivered, match=r"1 record was not delivered.*typo"):
        producer.close()


def test_a_partition_that_does_not_exist_fails_its_own_rows_only(kafka: FakeKafka) -> None:
    producer = new(kafka)
    good = producer.send("t", b"good")
    bad = producer.send("t", b"bad", partition=9)
    assert good.result(SOON).offset == 0
    with pytest.raises(NotDelivered, match="topic t has no partition 9: it has partitions 0 to 0"):
        bad.result(SOON)
    table = pa.table({"value": [b"1", b"2"], "partition": [0, 5]})
    with pytest.raises(NotDelivered, match="has no partition 5"):
        producer.send_table("t", table).result(SOON)
    with pytest.raises(NotDelivered, match="2 records were not delivered"):
        producer.close()
    assert values(kafka) == [b"good", b"1"]


def test_an_oversize_record_is_refused_at_the_call_with_both_sizes(kafka: FakeKafka) -> None:
    with new(kafka, max_record_bytes=1000) as producer:
        with pytest.raises(RecordTooLarge, match=r"the record takes 1,021 bytes, the limit is 1,000") as told:
            producer.send("t", bytes(1000))
        assert (told.value.size_bytes, told.value.limit_bytes) == (1021, 1000)
        with pytest.raises(RecordTooLarge, match=r"item 1 takes 2,0"):
            producer.send_many("t", [b"", bytes(2000)])
        with pytest.raises(RecordTooLarge, match=r"row 2 takes 1,0"):
            producer.send_table("t", pa.table({"value": [b"", b"", bytes(1000)]}))
        with pytest.raises(RecordTooLarge):
            producer.send("t", b"", headers={"h": bytes(1000)})
    assert values(kafka) == []


def test_oversize_records_are_diverted_where_that_is_configured(kafka: FakeKafka) -> None:
    diverted: list[Oversize] = []
    with new(kafka, max_record_bytes=1000, on_oversize=diverted.append) as producer:
        large = producer.send("t", bytes(1000), b"k")
        with pytest.raises(NotDelivered, match="takes 1,022 bytes") as told:
            large.result(SOON)
        assert isinstance(told.value.cause, RecordTooLarge)
        producer.send_many("t", [b"1", bytes(2000), (b"k", b"2")]).result(SOON)
        table = pa.table({"value": [bytes(3000), b"3"], "headers": _headers([[], [("h", b"v")]]), "partition": [0, 0]})
        producer.send_table("t", table).result(SOON)
    assert [(d.topic, d.key, len(d.value or b"")) for d in diverted] == [
        ("t", b"k", 1000),
        ("t", None, 2000),
        ("t", None, 3000),
    ]
    assert [(r.key, r.value, r.headers) for r in kafka.records("t", 0)] == [
        (None, b"1", ()),
        (b"k", b"2", ()),
        (None, b"3", (("h", b"v"),)),
    ]


def _headers(listed: list[list[tuple[str, bytes]]]) -> pa.Array:
    return pa.array(listed, pa.map_(pa.string(), pa.binary()))


def _raises(key: bytes | None, value: bytes | None, partitions: int) -> int:
    if value == b"bad":
        raise ValueError("of the program")
    return 1


@pytest.mark.parametrize(
    ("partitioner", "text"),
    [
        (_raises, "the partitioner raised ValueError: of the program"),
        (
            lambda key, value, n: 99 if value == b"bad" else 1,
            "the partitioner returned 99; accepted are 0 to 3 and None",
        ),
        (lambda key, value, n: "x" if value == b"bad" else 1, "the partitioner returned 'x'"),
        (ByColumn(lambda keys, values, n: [n if v.as_py() == b"bad" else 1 for v in values]), "returned 4"),
        (
            ByColumn(lambda keys, values, n: [1.5 if v.as_py() == b"bad" else 1 for v in values]),
            "expected whole numbers",
        ),
    ],
    ids=["raises", "out of range", "no number", "column out of range", "column of another type"],
)
def test_a_partitioner_that_fails_fails_that_call_only(kafka: FakeKafka, partitioner: Any, text: str) -> None:
    with new(kafka, partitioner=partitioner) as producer:
        producer.send("many", b"1")
        with pytest.raises(InputError, match=text):
            producer.send("many", b"bad")
        with pytest.raises(InputError, match=text):
            producer.send_table("many", pa.table({"value": [b"good", b"bad"]}))
        producer.send_table("many", pa.table({"value": [b"2"]}))
        producer.send("many", b"3").result(SOON)
    assert values(kafka, "many", 1) == [b"1", b"2", b"3"]


def test_a_partitioner_is_asked_for_lists_too(kafka: FakeKafka) -> None:
    with new(kafka, partitioner=lambda key, value, n: 2) as producer:
        producer.send_many("many", [b"1", (b"k", b"2")]).result(SOON)
        producer.send("many", b"3", partition=0).result(SOON)
    assert values(kafka, "many", 2) == [b"1", b"2"]
    assert values(kafka, "many", 0) == [b"3"]


def test_a_strategy_that_fails_fails_its_records(kafka: FakeKafka) -> None:
    def strategy(records: int, partitions: Any) -> int:
        raise ValueError("of the program")

    with new(kafka, strategy=strategy) as producer:
        with pytest.raises(NotDelivered, match="the strategy, asked about 1 records, failed with ValueError"):
            producer.send("many", b"1").result(SOON)
        assert producer.send("many", b"2", b"key").result(SOON).offset == 0
        with pytest.raises(NotDelivered):
            producer.flush(SOON)


# The batch hook


def test_a_hook_may_change_each_record(kafka: FakeKafka) -> None:
    def upper(topic: str, partition: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"key": rows.column("key"), "value": [v.as_py().upper() for v in rows.column("value")]})

    with new(kafka, batch_hook=upper) as producer:
        offsets = [producer.send("t", b"v%d" % i, b"k") for i in range(5)]
        assert [delivery.result(SOON).offset for delivery in offsets] == [0, 1, 2, 3, 4]
    assert [(r.key, r.value) for r in kafka.records("t", 0)] == [(b"k", b"V%d" % i) for i in range(5)]


def test_a_hook_may_make_one_record_of_many(kafka: FakeKafka) -> None:
    def joined(topic: str, partition: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"value": [b",".join(rows.column("value").to_pylist())]})

    with new(kafka, batch_hook=joined) as producer:
        producer.send("t", b"first").result(SOON)
        sent = producer.send_many("t", [b"a", b"b", b"c"]).result(SOON)
    assert (sent.records, sent.ranges) == (3, (OffsetRange("t", 0, 1, 2),))
    assert values(kafka) == [b"first", b"a,b,c"]


def test_a_hook_may_drop_everything(kafka: FakeKafka) -> None:
    with new(kafka, batch_hook=lambda topic, partition, rows: rows.slice(0, 0)) as producer:
        assert producer.send_many("t", [b"a", b"b"]).result(SOON).ranges == ()
        producer.flush(SOON)
        assert producer._budget.used == 0
    assert values(kafka) == []


@pytest.mark.parametrize(
    ("hook", "text"),
    [
        (lambda topic, partition, rows: 1 / 0, "division by zero"),
        (lambda topic, partition, rows: [b"x"], "returned list, expected a RecordBatch with a column value"),
        (lambda topic, partition, rows: rows.append_column("other", rows.column("key")), "known are key, value"),
    ],
    ids=["raises", "no batch", "unknown column"],
)
def test_a_hook_that_fails_fails_its_records(kafka: FakeKafka, hook: Any, text: str) -> None:
    failed: list[FailedBatch] = []
    producer = new(kafka, batch_hook=hook, on_failed=failed.append)
    with pytest.raises(NotDelivered, match=rf"the batch hook of topic t failed on 2 records: .*{text}"):
        producer.send_many("t", [b"a", b"b"]).result(SOON)
    with pytest.raises(NotDelivered, match="2 records were not delivered"):
        producer.flush(SOON)
    assert producer._budget.used == 0
    producer.close()


# Batches that are too large for the broker


def test_a_batch_that_is_too_large_is_cut_and_the_next_ones_are_smaller() -> None:
    with FakeKafka(topics={"t": 1}, max_message_bytes=5000) as kafka, new(kafka) as producer:
        sent = producer.send_many("t", [b"%04d" % i + bytes(96) for i in range(400)])
        single = [producer.send("t", b"%04d" % i) for i in range(400, 500)]
        assert sent.result(SOON).ranges == (OffsetRange("t", 0, 0, 400),)
        assert [delivery.result(SOON).offset for delivery in single] == list(range(400, 500))
        assert [int((v or b"")[:4]) for v in values(kafka)] == list(range(500))
        assert producer._budget.used == 0


def test_a_single_record_that_is_too_large_for_the_broker_is_refused_and_the_rest_arrives() -> None:
    with FakeKafka(topics={"t": 1}, max_message_bytes=5000) as kafka:
        producer = new(kafka)
        bulk = producer.send_many("t", [b"1", bytes(6000), b"3"])
        after = producer.send("t", b"4")
        with pytest.raises(NotDelivered, match=r"MESSAGE_TOO_LARGE .*\n  hint: .*max.message.bytes"):
            bulk.result(SOON)
        after.result(SOON)
        assert values(kafka) == [b"1", b"3", b"4"]
        with pytest.raises(NotDelivered, match="1 record was not delivered"):
            producer.close()


# Memory


def _stuck(kafka: FakeKafka) -> None:
    kafka.fail("Produce", ErrorCode.not_enough_replicas, times=None)


def _fill(producer: Producer, size: int) -> list[Any]:
    return [producer.send_many("t", [bytes(100_000)] * 5) for _ in range(size // 500_000)]


@pytest.mark.parametrize(("policy", "wait"), [(WhenFull.WAIT, 0.3), (WhenFull.REFUSE, 60.0)])
def test_a_full_buffer_says_what_holds_things_up(kafka: FakeKafka, policy: WhenFull, wait: float) -> None:
    _stuck(kafka)
    producer = new(kafka, buffering=Buffering(bytes=1 << 20, when_full=policy, wait=wait))
    started = time.monotonic()
    with pytest.raises(BufferFull) as told:
        _fill(producer, 5_000_000)
    assert time.monotonic() - started < SOON
    assert "bytes wait to be delivered, the buffer holds 1,048,576" in str(told.value)
    eventually(lambda: "NOT_ENOUGH" in producer._sender.holding(), "an error is known")
    with pytest.raises(BufferFull, match=r"wait for t-0, led by .*127.0.0.1:\d+.*NOT_ENOUGH_REPLICAS"):
        producer.send_many("t", [b"x"])
    kafka.clear_faults()
    producer.close(SOON)


def test_a_caller_who_waits_goes_on_when_there_is_room(kafka: FakeKafka) -> None:
    _stuck(kafka)
    with new(kafka, buffering=Buffering(bytes=1 << 20, wait=SOON)) as producer:
        timer = threading.Timer(0.3, kafka.clear_faults)
        timer.start()
        sent = _fill(producer, 5_000_000)
        assert sum(delivery.result(SOON).records for delivery in sent) == 50
        timer.join()
    assert len(values(kafka)) == 50


def test_the_oldest_unsent_records_are_dropped_where_that_is_configured(kafka: FakeKafka) -> None:
    happened: list[Event] = []
    kafka.all_down()
    producer = new(
        kafka,
        buffering=Buffering(bytes=1 << 20, when_full=WhenFull.DROP_OLDEST, wait=SOON),
        events=[happened.append],
    )
    kafka.all_up()
    producer.send("t", b"first").result(SOON)
    kafka.all_down()
    sent = _fill(producer, 5_000_000)
    kafka.all_up()
    outcomes = [delivery.exception(SOON) for delivery in sent]
    with pytest.raises(NotDelivered, match="dropped to make room"):
        producer.close(SOON)
    assert outcomes[-1] is None
    dropped = [event for event in happened if isinstance(event, Dropped)]
    lost = sum(event.records for event in dropped)
    assert lost
    assert len(values(kafka)) == 1 + 50 - lost
    assert all(event.topic == "t" and event.first_timestamp <= event.last_timestamp for event in dropped)


# Time


def test_what_is_not_acknowledged_in_time_fails_with_the_last_error(kafka: FakeKafka) -> None:
    _stuck(kafka)
    producer = new(kafka, delivery_timeout=0.5)
    started = time.monotonic()
    with pytest.raises(
        NotDelivered, match=r"not acknowledged within 0.5 s, \d+ attempts; .*NOT_ENOUGH_REPLICAS"
    ) as told:
        producer.send("t", b"1").result(SOON)
    assert 0.4 < time.monotonic() - started < 5
    assert told.value.maybe_written
    kafka.clear_faults()
    assert producer.send("t", b"2").result(SOON).offset >= 0
    with pytest.raises(NotDelivered):
        producer.close()


def test_with_no_broker_the_error_names_every_address(kafka: FakeKafka) -> None:
    kafka.all_down()
    producer = new(kafka, delivery_timeout=0.6, timeouts=Timeouts(connect=0.2, request=1, total=0.3))
    with pytest.raises(NotDelivered) as told:
        producer.send("t", b"1").result(SOON)
    for address in kafka.addresses.values():
        assert str(address) in str(told.value)
    with pytest.raises(NotDelivered):
        producer.close(SOON)


def test_flush_waits_for_everything_and_raises_what_nobody_looked_at(kafka: FakeKafka) -> None:
    producer = new(kafka, batching=Batching(linger=30.0))
    producer.send("t", b"1")
    producer.flush(SOON)
    assert values(kafka) == [b"1"]
    kafka.fail("Produce", ErrorCode.invalid_record)
    producer.send("t", b"2")
    with pytest.raises(NotDelivered, match="INVALID_RECORD"):
        producer.flush(SOON)
    producer.flush(SOON)  # it was told
    producer.send("t", b"3")
    producer.close(SOON)
    assert values(kafka) == [b"1", b"3"]


def test_flush_runs_out_of_time(kafka: FakeKafka) -> None:
    _stuck(kafka)
    producer = new(kafka)
    producer.send("t", b"1")
    with pytest.raises(TimeoutError):
        producer.flush(0.2)
    kafka.clear_faults()
    producer.close(SOON)
    assert values(kafka) == [b"1"]


def test_close_gives_up_after_its_timeout_and_says_how_many(kafka: FakeKafka) -> None:
    _stuck(kafka)
    producer = new(kafka)
    deliveries = [producer.send("t", b"1") for _ in range(3)]
    started = time.monotonic()
    with pytest.raises(NotDelivered, match=r"3 records were not delivered: the producer was closed"):
        producer.close(0.2)
    assert time.monotonic() - started < 5
    assert all(isinstance(delivery.exception(0), NotDelivered) for delivery in deliveries)


def test_failed_batches_are_handed_out_as_values_with_their_records(kafka: FakeKafka) -> None:
    failed: list[FailedBatch] = []
    kafka.fail("Produce", ErrorCode.invalid_record)
    with new(kafka, on_failed=failed.append, compression="zstd") as producer:
        producer.send_many("t", [(b"k", b"1"), b"2"]).exception(SOON)
        producer.flush(SOON)  # handed out, so nothing is left to raise
    (batch,) = failed
    assert (batch.topic, batch.partition, batch.count) == ("t", 0, 2)
    assert "INVALID_RECORD" in str(batch.cause)
    assert [(row["key"], row["value"]) for row in batch.records.to_pylist()] == [(b"k", b"1"), (None, b"2")]


def test_on_failed_that_raises_is_logged_and_the_failure_still_raised(
    kafka: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: FailedBatch) -> None:
        raise ValueError("of the program")

    kafka.fail("Produce", ErrorCode.invalid_record)
    producer = new(kafka, on_failed=fails)
    producer.send("t", b"1")
    with pytest.raises(NotDelivered):
        producer.close(SOON)
    assert "on_failed raised for 1 records of t-0" in caplog.text


def test_leaving_the_block_with_an_error_shows_that_error(kafka: FakeKafka, caplog: pytest.LogCaptureFixture) -> None:
    kafka.fail("Produce", ErrorCode.invalid_record)

    def work() -> None:
        with new(kafka) as producer:
            producer.send("t", b"1")
            raise KeyError("of the program")

    with pytest.raises(KeyError), caplog.at_level(logging.ERROR):
        work()
    assert "INVALID_RECORD" in caplog.text


# Lives


def test_constructing_connects_nothing() -> None:
    producer = Producer("127.0.0.1:9")
    assert threading.active_count() >= 1
    assert not any(thread.name.startswith("ottla-sender") for thread in threading.enumerate())
    producer.close()


def test_a_closed_producer_says_so(kafka: FakeKafka) -> None:
    producer = new(kafka)
    producer.send("t", b"1")
    producer.close()
    producer.close()
    for use in (
        lambda: producer.send("t", b"2"),
        lambda: producer.send_many("t", [b"2"]),
        lambda: producer.send_table("t", pa.table({"value": [b"2"]})),
        lambda: producer.partition_for("t"),
        lambda: producer.flush(),
    ):
        with pytest.raises(OttlaError, match="this producer was closed"):
            use()
    assert "closed" in repr(producer)
    assert values(kafka) == [b"1"]


def test_a_closed_producer_leaves_no_thread_behind(kafka: FakeKafka) -> None:
    before = set(threading.enumerate())
    with new(kafka) as producer:
        producer.send("t", b"1").result(SOON)
    left = {thread for thread in set(threading.enumerate()) - before if "ottla" in thread.name}
    assert not left


def _use_in_child(producer: Producer, answers: Any) -> None:
    started = time.monotonic()
    for use in (lambda: producer.send("t", b"child"), lambda: producer.send_many("t", [b"child"]), producer.flush):
        try:
            use()
        except UsedAfterFork as error:
            answers.put((str(error), time.monotonic() - started))
        else:
            answers.put(("nothing was raised", 0.0))
    producer.close()


def test_a_forked_child_gets_an_error_at_once(kafka: FakeKafka) -> None:
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    with new(kafka, batching=Batching(linger=0.2)) as producer:
        producer.send("t", b"1").result(SOON)
        delivery = producer.send("t", b"2")  # an open chunk that the child must not append to
        child = context.Process(target=_use_in_child, args=(producer, answers))
        child.start()
        child.join(SOON)
        assert child.exitcode == 0
        for _ in range(3):
            text, seconds = answers.get()
            assert f"made in process {os.getpid()} before fork()" in text
            assert seconds < 1
        delivery.result(SOON)
    answers.close()
    assert values(kafka) == [b"1", b"2"]


def _script(kafka: FakeKafka, body: str) -> subprocess.CompletedProcess[str]:
    program = f"import ottla\nproducer = ottla.Producer({kafka.bootstrap!r}, batching=ottla.Batching(linger=30))\n"
    return subprocess.run(
        [sys.executable, "-c", program + textwrap.dedent(body)], capture_output=True, text=True, timeout=60, check=False
    )


def test_an_interpreter_that_ends_without_close_flushes(kafka: FakeKafka) -> None:
    done = _script(kafka, "for i in range(100): producer.send('t', b'%d' % i)\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert values(kafka) == [b"%d" % i for i in range(100)]


def test_an_interpreter_that_ends_says_what_it_could_not_send(kafka: FakeKafka) -> None:
    _stuck(kafka)
    started = time.monotonic()
    done = _script(
        kafka,
        """
        import ottla.produce.producer as module
        module._EXIT_SECONDS = 0.5
        for i in range(100): producer.send('t', b'%d' % i)
        """,
    )
    assert time.monotonic() - started < 30
    assert "100 records were not delivered" in done.stderr


# Failures of the network and the brokers: nothing lost, nothing doubled, nothing out of order


def _trouble(kafka: FakeKafka, name: str) -> None:
    faults: dict[str, Callable[[], object]] = {
        "cut before": lambda: kafka.cut("Produce", times=3),
        "cut after": lambda: kafka.cut("Produce", times=3, when=When.AFTER_HANDLING),
        "half a response": lambda: kafka.half_response("Produce", times=3),
        "silence": lambda: kafka.silence("Produce", times=2),
        "not leader": lambda: kafka.fail("Produce", ErrorCode.not_leader_or_follower, times=5),
        "retriable": lambda: kafka.fail("Produce", ErrorCode.not_enough_replicas, times=5),
        "wrong number": lambda: kafka.fail("Produce", ErrorCode.out_of_order_sequence_number, times=2),
        "unknown id": lambda: kafka.fail("Produce", ErrorCode.unknown_producer_id, times=2),
        "old epoch": lambda: kafka.fail("Produce", ErrorCode.invalid_producer_epoch, times=2),
        "leader moved": lambda: kafka.move_leader("t", 0, to=3 - kafka.leader("t", 0)),
        "broker down": lambda: kafka.down(kafka.leader("t", 0)),
        "no producer id": lambda: kafka.fail("InitProducerId", ErrorCode.coordinator_load_in_progress, times=2),
        "no metadata": lambda: kafka.cut("Metadata", times=3),
    }
    faults[name]()


TROUBLES = (
    "cut before",
    "cut after",
    "half a response",
    "silence",
    "not leader",
    "retriable",
    "wrong number",
    "unknown id",
    "old epoch",
    "leader moved",
    "broker down",
    "no producer id",
    "no metadata",
)


@pytest.mark.parametrize("name", TROUBLES)
def test_nothing_is_lost_doubled_or_reordered(kafka: FakeKafka, name: str) -> None:
    expected = [b"%d" % i for i in range(600)]
    with new(kafka, timeouts=Timeouts(connect=2, request=1, total=10), batching=Batching(records=20, linger=0)) as p:
        deliveries = [p.send("t", value) for value in expected[:100]]
        if name not in ("no producer id", "no metadata"):
            deliveries[-1].result(SOON)
        _trouble(kafka, name)
        deliveries += [p.send("t", value) for value in expected[100:]]
        offsets = [delivery.result(SOON).offset for delivery in deliveries]
    assert values(kafka) == expected
    assert offsets == list(range(600))


@pytest.mark.parametrize("name", ["cut after", "not leader", "silence", "leader moved"])
def test_without_numbers_nothing_is_lost_or_reordered(kafka: FakeKafka, name: str) -> None:
    expected = [b"%d" % i for i in range(300)]
    options: dict[str, Any] = {"timeouts": Timeouts(connect=2, request=1, total=10), "idempotent": False, "acks": 1}
    with new(kafka, batching=Batching(records=20, linger=0), **options) as producer:
        producer.send("t", b"first").result(SOON)
        _trouble(kafka, name)
        for delivery in [producer.send("t", value) for value in expected]:
            delivery.result(SOON)
    once = list(dict.fromkeys(values(kafka)[1:]))  # a resend may double a batch, but not turn it around
    assert once == expected


def test_the_first_batches_of_a_producer_keep_their_order_when_the_first_is_refused_for_a_while() -> None:
    # A broker takes any number from a producer that it does not know: the second must not overtake the first.
    with FakeKafka(topics={"t": 1}) as kafka:
        kafka.fail("Produce", ErrorCode.not_enough_replicas, times=1)
        with new(kafka, batching=Batching(records=1, linger=0)) as producer:
            producer.send_many("t", [b"%d" % i for i in range(10)]).result(SOON)
        assert values(kafka) == [b"%d" % i for i in range(10)]


def test_a_number_that_cannot_come_next_raises_the_epoch(kafka: FakeKafka) -> None:
    happened: list[Event] = []
    with new(kafka, events=[happened.append]) as producer:
        producer.send("t", b"1").result(SOON)
        kafka.fail("Produce", ErrorCode.out_of_order_sequence_number)
        assert producer.send("t", b"2").result(SOON).offset == 1
    bumped = [event for event in happened if isinstance(event, EpochBumped)]
    assert [event.epoch for event in bumped] == [1]
    assert [Batch.parse(stored).header.producer_epoch for stored in kafka.log("t", 0)] == [0, 1]


def test_a_producer_id_that_somebody_else_uses_is_given_up(kafka: FakeKafka) -> None:
    # Numbers of the same id would be taken for those batches that the broker has seen: acknowledged, and lost.
    with new(kafka, batching=Batching(records=1, linger=0)) as producer:
        producer.send("t", b"1").result(SOON)
        kafka.fail("Produce", ErrorCode.invalid_producer_epoch)
        assert producer.send("t", b"2").result(SOON).offset == 1
        assert producer.send("t", b"3").result(SOON).offset == 2
    first, second, third = (Batch.parse(stored).header.producer_id for stored in kafka.log("t", 0))
    assert first != second == third
    assert values(kafka) == [b"1", b"2", b"3"]


def _available(producer: Producer, topic: str) -> tuple[int, ...]:
    known = producer._sender.topic(topic)
    assert known is not None
    assert known.partitions is not None
    return known.partitions.available


def test_a_broker_that_comes_back_gets_records_without_key_again() -> None:
    with FakeKafka(brokers=2, auto_create=None) as kafka:
        kafka.create_topic("t", 2, replicas=1)
        with new(kafka, strategy=RoundRobin()) as producer:
            producer.send_many("t", [b"before"] * 4).result(SOON)
            kafka.down(kafka.leader("t", 0))
            eventually(lambda: _available(producer, "t") == (1,), "it is noticed, with nothing to send")
            kafka.all_up()
            eventually(lambda: _available(producer, "t") == (0, 1), "it is noticed again")
            producer.send_many("t", [b"after"] * 4).result(SOON)
        assert len(values(kafka, "t", 0)) == len(values(kafka, "t", 1)) == 4


def test_rows_that_are_handed_in_while_the_producer_closes_are_refused(kafka: FakeKafka) -> None:
    producer = new(kafka)
    producer.send("t", b"before").result(SOON)

    def closing() -> Iterator[bytes]:
        yield b"1"
        producer.close(SOON)
        yield b"2"

    with pytest.raises(OttlaError, match="closed"):
        producer.send_many("t", closing())
    assert values(kafka) == [b"before"]


def test_a_refusal_after_a_lost_answer_says_that_the_records_may_be_written(kafka: FakeKafka) -> None:
    with new(kafka, retry=Retry(initial=0.5, maximum=0.5, jitter=0)) as producer:
        producer.send("t", b"0").result(SOON)
        cut = kafka.cut("Produce", when=When.AFTER_HANDLING)
        delivery = producer.send("t", b"1")
        eventually(lambda: cut.hits == 1, "it is stored, and the answer lost")
        kafka.fail("Produce", ErrorCode.topic_authorization_failed, times=1)
        error = delivery.exception(SOON)
        with pytest.raises(NotDelivered):
            producer.flush(SOON)
    assert error is not None
    assert error.maybe_written


def test_records_without_key_pass_over_a_broker_that_is_away() -> None:
    with FakeKafka(brokers=2, auto_create=None) as kafka:
        kafka.create_topic("t", 2, replicas=1)
        with new(kafka, strategy=RoundRobin()) as producer:
            producer.send_many("t", [b"before"] * 4).result(SOON)
            kafka.down(kafka.leader("t", 0))
            producer.send("t", b"probe", partition=0)
            eventually(lambda: _available(producer, "t") == (1,), "it is noticed")
            assert producer.partition_for("t") == 1
            during = producer.send_many("t", [b"during"] * 10).result(SOON)
            assert [one.partition for one in during.ranges] == [1]
            kafka.all_up()
            producer.flush(SOON)
        assert values(kafka, "t", 0)[-1] == b"probe"


def test_random_faults_while_threads_send(kafka: FakeKafka) -> None:
    chance = random.Random(11)
    stop = threading.Event()

    def disturb() -> None:
        while not stop.wait(0.02):
            _trouble(kafka, chance.choice(["cut before", "cut after", "half a response", "not leader", "leader moved"]))

    def work(thread: int) -> None:
        for i in range(1500):
            producer.send("t", b"%d/%d" % (thread, i))

    disturber = threading.Thread(target=disturb)
    with new(kafka, batching=Batching(records=50, linger=0)) as producer:
        disturber.start()
        threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON)
        time_up = threading.Timer(2.0, stop.set)
        time_up.start()
        disturber.join(SOON)
        kafka.clear_faults()
        producer.flush(60)
    for number in range(3):
        mine = [v for v in values(kafka) if (v or b"").startswith(b"%d/" % number)]
        assert mine == [b"%d/%d" % (number, i) for i in range(1500)]


def test_wrong_settings_are_told_before_anything_happens(kafka: FakeKafka) -> None:
    with pytest.raises(ConfigError, match="acks must be 'all', 1 or 0, got 2"):
        new(kafka, acks=2)
