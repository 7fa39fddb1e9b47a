"""What a stream looks like, without brokers."""

from __future__ import annotations

import json
from uuid import UUID

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ottla.gateway.http.problems import Problem
from ottla.gateway.reading.frames import Events, Lines
from ottla.gateway.reading.places import Cursor, parse
from ottla.gateway.reading.rendering import Shape
from ottla.wire.decode import SCHEMA

from .streaming import EventSource

_ID = UUID(int=7)
_cursors = st.dictionaries(st.integers(0, 500), st.integers(0, (1 << 63) - 1), min_size=1, max_size=20).flatmap(
    lambda offsets: st.builds(
        Cursor, st.sampled_from([None, _ID]), st.just(offsets), st.sampled_from([{}, dict.fromkeys(offsets, 1 << 40)])
    )
)


@given(cursor=_cursors, offset=st.integers(0, (1 << 63) - 1), data=st.data())
def test_the_text_of_a_moved_cursor_is_the_same_either_way(cursor: Cursor, offset: int, data: st.DataObject) -> None:
    partition = data.draw(st.sampled_from(sorted(cursor.offsets)))
    text = cursor.texts(partition)(offset)
    assert text == cursor.moved(partition, offset).text()
    assert parse(text) == cursor.moved(partition, offset)


def _batch(partition: int, *offsets: int) -> pa.RecordBatch:
    rows = [
        {"topic": "t", "partition": partition, "offset": offset, "timestamp": 0, "value": b"%d" % offset}
        for offset in offsets
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def test_each_event_has_the_cursor_behind_it() -> None:
    before = Cursor(None, {0: 3, 1: 0}, {})
    after = Cursor(_ID, {0: 9, 1: 2}, {})
    body = Events(Shape.JSON).records([_batch(0, 3, 5), _batch(0, 6), _batch(1, 0, 1)], before, after)
    source = EventSource()
    events = source.feed(body)
    assert [event.data["value"] for event in events] == [3, 5, 6, 0, 1]
    assert [parse(event.id).offsets for event in events] == [
        *({0: 4, 1: 0}, {0: 6, 1: 0}, {0: 7, 1: 0}),
        *({0: 7, 1: 1}, {0: 7, 1: 2}),
    ]
    assert parse(source.last_id) == after  # also behind offsets that have no record
    assert {parse(event.id).topic_id for event in events} == {_ID}


def test_every_part_of_a_stream_of_events_can_be_read() -> None:
    cursor, frames, source = Cursor(_ID, {0: 3}, {}), Events(Shape.JSON), EventSource()
    assert source.feed(frames.begin(cursor)) == []
    assert (source.retry, source.last_id) == (2000, cursor.text())
    assert source.feed(frames.beat(cursor.moved(0, 4), "two\nlines")) == []
    assert (source.comments, source.last_id) == (["two lines"], cursor.moved(0, 4).text())
    (failed,) = source.feed(frames.failed(Problem(410, "gone\nfor good", code=41001, details={"lost": 1})))
    assert (failed.kind, failed.data["error_code"], failed.data["lost"]) == ("error", 41001, 1)
    (over,) = source.feed(frames.over(cursor))
    assert over == ("end", {"next": None}, cursor.text())


def test_every_line_of_a_stream_of_lines_is_a_record_or_a_place() -> None:
    cursor, frames = Cursor(_ID, {0: 3}, {}), Lines(Shape.JSON)
    body = frames.begin(cursor) + frames.records([_batch(0, 3)], cursor, cursor.moved(0, 4))
    body += frames.beat(cursor, "") + frames.beat(cursor, "no\nleader") + frames.failed(Problem(410, "gone"))
    lines = [json.loads(line) for line in (body + frames.over(cursor)).splitlines()]
    assert lines == [
        {"next": cursor.text()},
        {"partition": 0, "offset": 3, "timestamp": 0.0, "value": 3},
        {"next": cursor.moved(0, 4).text()},
        {"next": cursor.text()},
        {"next": cursor.text(), "waiting": "no leader"},
        {"error_code": 410, "message": "gone"},
        {"next": None},
    ]
