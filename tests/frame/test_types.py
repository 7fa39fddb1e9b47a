"""What the types of a user's program are: `make check` runs mypy over this file, and fails where one is `Any`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, assert_type

import ottla
from ottla.admin.committed import Committed

if TYPE_CHECKING:
    import duckdb
    import polars as pl


def of_a_producer(producer: ottla.Producer) -> None:
    assert_type(producer.send("t", b"v"), ottla.Delivery)
    assert_type(producer.send("t", b"v").result(), ottla.Sent)
    assert_type(producer.send_many("t", [b"v", (b"k", b"v")]).result(), ottla.SentMany)
    assert_type(producer.send_table("t", pl.DataFrame({"value": ["v"]})), ottla.BulkDelivery)
    assert_type(producer.send_table("t", duckdb.table("rows")), ottla.BulkDelivery)
    producer.send_table("t", [b"v"])  # type: ignore[arg-type]  # a list is no table
    producer.flush(5.0)
    with producer as entered, producer.transaction() as transaction:
        assert_type(entered, ottla.Producer)
        assert_type(transaction.prepare(), ottla.PreparedTransaction)


async def of_a_coroutine(producer: ottla.Producer, consumer: ottla.Consumer) -> None:
    assert_type(await producer.send("t", b"v"), ottla.Sent)
    assert_type(await producer.send_many("t", [b"v"]), ottla.SentMany)
    await producer.aflush(timeout=5.0)
    await producer.aflush(seconds=5.0)  # type: ignore[call-arg]  # it takes what `flush` takes
    offsets: Mapping[ottla.TopicPartition, int | Committed] = {ottla.TopicPartition("t", 0): 5}
    await consumer.acommit(offsets)
    async with producer as entered, consumer as member, producer.transaction() as transaction:
        assert_type(entered, ottla.Producer)
        assert_type(member, ottla.Consumer)
        await transaction.asend_offsets(consumer.member, consumer.positions())
        assert_type(await transaction.aprepare(), ottla.PreparedTransaction)


def of_records(consumer: ottla.Consumer, reader: ottla.Reader) -> None:
    for record in consumer.records():
        assert_type(record, ottla.Record)
        assert_type(record.value, bytes | None)
        assert_type(record.timestamp, float)
        assert_type(record.headers, tuple[tuple[str, bytes | None], ...])
    assert_type(reader.count("t"), int)
    assert_type(reader.ranges("t"), list[ottla.OffsetRange])
    assert_type(consumer.positions(), dict[ottla.TopicPartition, int])


def test_the_package_says_that_it_is_typed() -> None:
    from importlib.resources import files

    assert (files("ottla") / "py.typed").is_file()
