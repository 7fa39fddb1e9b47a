"""A batch hook may change a batch, and a batch may be split: outcomes find their way back to the records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ottla.errors import InputError, NotDelivered, OttlaError
from ottla.produce.delivery import Delivery, Outcome
from ottla.produce.hook import HookedDraft, decoded, split_batch
from ottla.produce.options import BatchHook
from ottla.produce.outgoing import Outgoing
from ottla.wire.batch import Codec
from ottla.wire.columns import from_arrow, from_list
from ottla.wire.draft import Draft
from ottla.wire.encode import BatchLimits

from .test_packing import Packed

LIMITS = BatchLimits(max_bytes=1_000_000)
FAILED = NotDelivered("no")


def rows_of(batch: Outgoing) -> list[dict[str, Any]]:
    assert batch.header is not None
    assert batch.records is not None
    rows: list[dict[str, Any]] = decoded(batch.header, batch.records, topic="t", partition=0).to_pylist()
    return rows


def made(hook: BatchHook, *values: bytes, **options: Any) -> tuple[list[Outgoing], list[Delivery]]:
    """What a hook makes of values, and their deliveries."""
    packed = Packed(1, batch_hook=hook, **options)
    shipment = packed.pack(from_list(list(values)))
    packed.seal_all()
    return list(packed.topic.lane(0).queue), [Delivery(shipment, row) for row in range(len(values))]


def test_a_hook_sees_topic_partition_and_all_columns() -> None:
    seen: list[tuple[str, int, pa.RecordBatch]] = []

    def look(topic: str, partition: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        seen.append((topic, partition, rows))
        return rows

    batches, _ = made(look, b"1", b"2")
    ((topic, partition, rows),) = seen
    assert (topic, partition, rows.schema.names) == ("t", 0, ["key", "value", "headers", "timestamp"])
    assert rows.column("timestamp").type == pa.timestamp("ms", tz="UTC")
    assert [row["value"] for batch in batches for row in rows_of(batch)] == [b"1", b"2"]


def test_records_that_are_changed_one_by_one_keep_their_own_offsets() -> None:
    batches, deliveries = made(lambda t, p, rows: pa.record_batch({"value": [b"x", b"y", b"z"]}), b"1", b"2", b"3")
    (batch,) = batches
    batch.decide(Outcome(0, 40, -1))
    assert [delivery.result(0).offset for delivery in deliveries] == [40, 41, 42]


def test_many_into_one_are_all_where_that_one_is() -> None:
    batches, deliveries = made(lambda t, p, rows: pa.record_batch({"value": [b"all"]}), b"1", b"2", b"3")
    (batch,) = batches
    assert [row["value"] for row in rows_of(batch)] == [b"all"]
    assert not deliveries[0].done
    batch.decide(Outcome(0, 40, -1))
    assert [delivery.result(0).offset for delivery in deliveries] == [40, 40, 40]


def test_what_a_hook_makes_may_be_more_than_one_batch_and_fails_if_any_does() -> None:
    def grow(topic: str, partition: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"value": [bytes(400)] * 10})

    from ottla.produce.options import Batching

    batches, deliveries = made(grow, b"1", b"2", batching=Batching(bytes=1000))
    assert len(batches) == 5
    for batch in batches[:4]:
        batch.decide(Outcome(0, 0, -1))
    assert not deliveries[0].done
    batches[4].decide(Outcome(0, -1, -1, FAILED))
    assert [str(delivery.exception(0)) for delivery in deliveries] == [str(FAILED)] * 2


def test_nothing_left_is_no_failure() -> None:
    batches, deliveries = made(lambda t, p, rows: rows.slice(0, 0), b"1", b"2")
    assert batches == []
    assert [delivery.result(0).offset for delivery in deliveries] == [-1, -1]


def test_a_table_is_as_good_as_a_batch() -> None:
    batches, _ = made(lambda t, p, rows: pa.Table.from_batches([rows]), b"1")
    assert [row["value"] for row in rows_of(batches[0])] == [b"1"]


@pytest.mark.parametrize(
    ("hook", "text"),
    [
        (lambda t, p, rows: dict[str, pa.RecordBatch]()["missing"], "failed on 2 records: 'missing'"),
        (lambda t, p, rows: None, "returned NoneType, expected a RecordBatch with a column value"),
        (lambda t, p, rows: pa.record_batch({"key": [b""]}), "expected a RecordBatch with a column value"),
        (lambda t, p, rows: pa.record_batch({"value": [1]}), "column value has type int64"),
        (lambda t, p, rows: rows.append_column("more", rows.column("key")), r"columns \['more'\]; known are"),
    ],
)
def test_a_hook_that_fails_fails_its_records_and_says_why(hook: BatchHook, text: str) -> None:
    batches, deliveries = made(hook, b"1", b"2")
    assert batches == []
    for delivery in deliveries:
        with pytest.raises(NotDelivered, match=text) as caught:
            delivery.result(0)
    assert caught.value.__cause__ is not None


def test_what_a_hook_fails_on_is_settled_and_no_memory_stays_counted() -> None:
    errors: list[OttlaError | None] = []
    for hook in (lambda t, p, rows: 1 / 0, lambda t, p, rows: rows.slice(0, 0), lambda t, p, rows: rows):
        packed = Packed(1, batch_hook=hook)
        packed.pack(from_list([b"1", b"2"]))
        packed.seal_all()
        queue = packed.topic.lane(0).queue
        assert packed.account.held_bytes == sum(batch.size_bytes for batch in queue)
        errors += [effect.outcome.error for effect in packed.settled]
    failed, filtered = errors
    assert failed is not None
    assert filtered is None


def test_a_hooked_draft_takes_rows_until_it_is_full() -> None:
    columns = from_list([bytes(100)] * 20)
    draft = HookedDraft(BatchLimits(max_bytes=1000, max_records=7))
    assert draft.append(columns, start=0, stop=20, now_ms=1) == 7
    assert draft.count == 7
    small = HookedDraft(BatchLimits(max_bytes=62))
    assert small.append(columns, start=3, stop=20, now_ms=1) == 4  # one record always fits
    assert small.append(columns, start=4, stop=20, now_ms=1) == 4
    picked = HookedDraft(LIMITS)
    assert picked.append(columns, rows=np.array([1, 5, 9]), start=1, stop=3, now_ms=1) == 3
    assert picked.count == 2


def sealed(values: list[Any], codec: Codec = Codec.NONE, **columns: Any) -> Outgoing:
    batch = Outgoing("t", 0, opened=3.0, created=4.0)
    batch.due, batch.deadline = 5.0, 6.0
    draft = Draft(LIMITS)
    draft.append(from_arrow(pa.array(values, pa.binary()), **columns), start=0, stop=len(values), now_ms=77)
    new = draft.seal(codec)
    batch.seal(new.header, new.records)
    return batch


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_is_split_without_changing_its_records(codec: Codec) -> None:
    headers = pa.array([[("h", b"%d" % i)] for i in range(50)], pa.map_(pa.string(), pa.binary()))
    keys = pa.array([b"k%d" % i if i % 3 else None for i in range(50)], pa.binary())
    times = pa.array(range(1000, 1050), pa.int64())
    whole = sealed([bytes(50)] * 50, codec, key=keys, headers=headers, timestamp=times)
    before = rows_of(whole)
    parts, refused = split_batch(whole, level=None)
    assert (len(parts) > 1, refused) == (True, [])
    assert [row for part in parts for row in rows_of(part)] == before
    assert {part.header.codec for part in parts if part.header} == {codec}
    assert {(part.opened, part.created, part.due, part.deadline) for part in parts} == {(3.0, 4.0, 5.0, 6.0)}
    assert sum(part.count for part in parts) == whole.count


@pytest.mark.parametrize("invalid", [{0}, {9}, {3, 4, 7}, {0, 2, 4, 6, 8}])
def test_invalid_records_are_split_off_and_the_others_keep_their_order(invalid: set[int]) -> None:
    whole = sealed([b"%d" % number for number in range(10)])
    before = rows_of(whole)
    parts, refused = split_batch(whole, invalid, level=None)
    assert [row for part in parts for row in rows_of(part)] == [before[n] for n in range(10) if n not in invalid]
    assert [row for part in refused for row in rows_of(part)] == [before[n] for n in sorted(invalid)]
    for part in parts:
        part.decide(Outcome(0, 100, -1))
    assert not whole.decided
    for part in refused:
        part.decide(Outcome(0, -1, -1, InputError("refused")))
    failed = [outcome.error is not None for outcome in whole.outcomes]
    assert [outcome.first in invalid for outcome in whole.outcomes] == failed


def test_a_batch_that_is_split_is_decided_by_its_parts() -> None:
    whole = sealed([b"%d" % i + bytes(50) for i in range(10)])
    parts, _ = split_batch(whole, level=None)
    for number, part in enumerate(parts):
        assert not whole.decided
        part.decide(Outcome(0, 100 * number, -1))
    assert whole.decided
    assert [outcome.first for outcome in whole.outcomes] == np.cumsum([0] + [p.count for p in parts])[:-1].tolist()
    assert [outcome.base_offset for outcome in whole.outcomes] == [100 * n for n in range(len(parts))]
