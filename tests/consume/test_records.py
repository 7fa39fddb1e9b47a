"""Single records: the same as the columns, and counted one by one."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.rows import Row, decoded, encoded, placed, rows, thorough

from ottla.consume.positions import Portion, Positions
from ottla.consume.records import records_of
from ottla.fetch.cursor import Cursor
from ottla.model import Record, TopicPartition
from ottla.wire.decode import SCHEMA

AT = TopicPartition("t", 3)


def batch_of(written: list[Row]) -> pa.RecordBatch:
    table = decoded(placed(encoded(written))).combine_chunks()
    (batch,) = table.to_batches()
    columns = [
        pa.array(["t"] * len(written)) if name == "topic" else batch.column(name)  # the decoder does not set the topic
        for name in SCHEMA.names
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


@thorough
@given(st.lists(rows, min_size=1, max_size=20), st.integers(0, 20))
def test_they_are_what_the_columns_say(written: list[Row], skipped: int) -> None:
    batch = batch_of(written).slice(skipped)
    records = list(records_of(batch))
    assert all(type(record) is Record for record in records)
    assert [(r.offset, r.key, r.value, r.headers) for r in records] == [
        (offset, row.key, row.value, row.headers) for offset, row in list(enumerate(written))[skipped:]
    ]
    assert [r.timestamp for r in records] == pytest.approx([row.time / 1000 for row in written[skipped:]], rel=1e-12)
    assert {(r.topic, r.partition) for r in records} <= {("t", 0)}


def test_what_the_program_is_through_with_is_one_less_than_what_it_has() -> None:
    positions = Positions()
    positions.begin(AT, 0)
    portion = Portion(Cursor(AT, 0), batch_of([Row()] * 5), start=0, stop=5)
    positions.hand_out(portion)
    assert (positions.handed(AT), positions.all_done()[AT].offset) == (0, 0)
    for number in range(1, 6):
        portion.used = number
        assert (positions.handed(AT), positions.all_done()[AT].offset) == (number, number - 1)
    positions.mark_done_in(portion)
    assert positions.all_done()[AT].offset == 5


def test_what_is_taken_back_in_the_middle_is_done_up_to_there() -> None:
    positions = Positions()
    positions.begin(AT, 0)
    portion = Portion(Cursor(AT, 0), batch_of([Row()] * 5), start=0, stop=5)
    positions.hand_out(portion)
    portion.used = 3
    positions.take_back(AT)
    assert (positions.handed(AT), positions.all_done()[AT].offset) == (3, 2)
