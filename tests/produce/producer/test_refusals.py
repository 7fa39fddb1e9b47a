"""What a producer refuses, how it fails, and what it passes to functions of the program."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ottla import Buffering, ByColumn, Spool, TopicOptions, WhenFull
from ottla.errors import (
    BufferFull,
    ConfigError,
    ErrorCode,
    InputError,
    NotDelivered,
    OttlaError,
    RecordTooLarge,
    SpoolFull,
    StreamFailed,
)
from ottla.model import OffsetRange
from ottla.produce.failures import FailedBatch
from ottla.produce.options import Oversize
from ottla.testing import FakeKafka

from .stand import SOON, new, values


def test_an_unknown_topic_is_refused_with_its_name(kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.produce.topics._UNKNOWN_PATIENCE", 0.2)
    producer = new(kafka)
    delivery = producer.send("typo", b"1")
    with pytest.raises(OttlaError, match=r"topic typo: UNKNOWN_TOPIC_OR_PARTITION .*\n.*does not exist"):
        delivery.result(SOON)
    with pytest.raises(NotDelivered, match=r"1 record was not delivered.*typo"):
        producer.close()


def test_the_error_of_a_table_counts_all_rows_that_failed(kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.produce.topics._UNKNOWN_PATIENCE", 0.2)
    producer = new(kafka)
    values = pa.table({"value": [b"1"] * 5})
    for table in (values, values.to_reader()):
        delivery = producer.send_table("typo", table)
        with pytest.raises(NotDelivered, match=r"^5 records were not delivered: topic typo: UNKNOWN") as caught:
            delivery.result(SOON)
        error = delivery.exception(SOON)
        assert error is not None
        assert (caught.value.records, error.records) == (5, 5)
    partly = producer.send_table("t", pa.table({"value": [b"1"] * 4, "partition": [0, 5, 6, 6]}))
    with pytest.raises(NotDelivered, match=r"^3 records were not delivered: .*has no partition 5") as caught:
        partly.result(SOON)
    assert caught.value.records == 3
    with pytest.raises(NotDelivered, match="13 records were not delivered"):
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
        with pytest.raises(RecordTooLarge, match=r"the record takes 1,021 bytes, the limit is 1,000") as caught:
            producer.send("t", bytes(1000))
        assert (caught.value.size_bytes, caught.value.limit_bytes) == (1021, 1000)
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
        with pytest.raises(NotDelivered, match="takes 1,022 bytes") as caught:
            large.result(SOON)
        assert isinstance(caught.value.cause, RecordTooLarge)
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


def test_an_oversize_record_is_diverted_once_however_often_the_rest_is_sent_again(kafka: FakeKafka) -> None:
    """It counts as accepted, so it is diverted only when its slice has room."""
    numbers = [b"%05d" % number for number in range(30_000)]
    large = {9_000, 15_000, 29_999}
    names = ["t" if number % 3 else "many" for number in range(30_000)]
    rows = [value + bytes(20_000 if number in large else 1000) for number, value in enumerate(numbers)]
    table = pa.table(
        {"value": rows, "topic": names, "headers": _headers([[("h", b"v")]] * 30_000), "partition": [0] * 30_000}
    )
    diverted: list[bytes | None] = []
    for kind in (table, table.to_reader()):
        kafka.clear_faults()
        kafka.fail("Produce", ErrorCode.not_enough_replicas, times=20)
        with new(
            kafka,
            max_record_bytes=10_000,
            on_oversize=lambda record: diverted.append(record.value and record.value[:5]),
            buffering=Buffering(bytes=9 << 20, when_full=WhenFull.REFUSE),
        ) as producer:
            rest: Any = kind
            refusals = 0
            while rest is not None:
                try:
                    producer.send_table(None, rest)
                    rest = None
                except BufferFull as full:
                    rest = rest.slice(full.accepted)
                    refusals += 1
                except StreamFailed as stopped:
                    rest = stopped.rest
                    refusals += 1
                time.sleep(0.005)
        assert refusals > 2
    assert diverted == [numbers[number] for number in sorted(large)] * 2
    sent = [value for topic in ("t", "many") for value in values(kafka, topic)]
    assert len(sent) == 2 * (30_000 - 3)
    assert len({(value or b"")[:5] for value in sent}) == 30_000 - 3


def test_what_was_diverted_is_accepted_even_if_the_spool_fills_up_meanwhile(kafka: FakeKafka, tmp_path: Path) -> None:
    """Regression: the rows were refused, so the large one was diverted again when they were sent again."""
    diverted: list[bytes | None] = []

    def divert(record: Oversize) -> None:
        diverted.append(record.key)
        kafka.all_down()
        for _ in range(3):
            producer.send("t", random.randbytes(900_000))
        with pytest.raises(SpoolFull):
            producer.persist(1.0)

    spool = Spool(tmp_path / "spool", max_bytes=1 << 20, when_full=WhenFull.REFUSE)
    with new(kafka, spool=spool, topics={"many": TopicOptions(max_record_bytes=100, on_oversize=divert)}) as producer:
        for topic in ("t", "many"):
            producer.send(topic, b"first").result(SOON)
        delivery = producer.send_many("many", [b"1", (b"large", bytes(1000)), b"2"])
        with pytest.raises(SpoolFull):
            producer.send_many("many", [(b"large", bytes(1000))])
        kafka.all_up()
        assert delivery.result(SOON).records == 2
    assert diverted == [b"large"]


def test_rows_before_the_one_for_which_on_oversize_raises_are_accepted(kafka: FakeKafka) -> None:
    diverted: list[bytes | None] = []

    def divert(record: Oversize) -> None:
        if record.key == b"5" and len(diverted) < 2:
            raise ValueError("no place for it")
        diverted.append(record.key)

    keys = [b"%d" % number for number in range(8)]
    table = pa.table({"key": keys, "value": [bytes(2000 if number in (2, 5, 6) else 1) for number in range(8)]})
    with new(kafka, max_record_bytes=1000, on_oversize=divert) as producer:
        with pytest.raises(ValueError, match="no place for it") as caught:
            producer.send_table("t", table)
        assert vars(caught.value)["accepted"] == 5
        diverted.append(b"another place")
        producer.send_table("t", table.slice(5)).result(SOON)
    assert diverted == [b"2", b"another place", b"5", b"6"]
    assert [record.key for record in kafka.records("t", 0)] == [b"0", b"1", b"3", b"4", b"7"]


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


def test_a_batch_that_is_too_large_is_split_and_the_next_ones_are_smaller() -> None:
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


def test_wrong_settings_raise_before_anything_happens(kafka: FakeKafka) -> None:
    with pytest.raises(ConfigError, match="acks must be 'all', 1 or 0, got 2"):
        new(kafka, acks=2)
