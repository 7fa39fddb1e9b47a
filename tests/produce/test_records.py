"""Wrong input is refused at the call, with one error that says what is wrong and what is accepted."""

from __future__ import annotations

import contextlib
import gc
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ottla.errors import InputError, NotDelivered
from ottla.produce import records as checks
from ottla.produce.producer import Producer
from ottla.produce.sender import Sender
from ottla.wire.columns import as_arrow, from_arrow, from_list


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Producer]:
    """A producer that sends nothing: errors must be raised before sending."""
    monkeypatch.setattr(Sender, "start", lambda self: None)
    made = Producer("127.0.0.1:9")
    yield made
    made._started = False  # there is no sender to flush with
    with contextlib.suppress(NotDelivered):  # what a test has left behind
        made.close()


def table(**columns: Any) -> pa.Table:
    return pa.table({"value": [b"1", b"2"], **columns})


WRONG: list[tuple[str, Callable[[Any], object], str]] = [
    # Topics
    ("no topic", lambda p: p.send("", b""), "'' is not a topic name: use 1 to 249 of the characters a-z A-Z 0-9"),
    ("topic of bytes", lambda p: p.send(b"t", b""), "b't' is not a topic name"),
    ("topic none", lambda p: p.send(None, b""), "None is not a topic name"),
    ("topic with a space", lambda p: p.send("a b", b""), "'a b' is not a topic name"),
    ("topic too long", lambda p: p.send("a" * 250, b""), "is not a topic name"),
    ("topic ..", lambda p: p.send("..", b""), "'..' is not a topic name.*and not . or .."),
    ("topic with a newline", lambda p: p.send("a\n", b""), r"'a\\n' is not a topic name"),
    ("list, no topic", lambda p: p.send_many("a/b", [b""]), "'a/b' is not a topic name"),
    ("table, no topic", lambda p: p.send_table("a/b", table()), "'a/b' is not a topic name"),
    # Values
    ("value a number", lambda p: p.send("t", 1), "the value is int, expected bytes, str or None"),
    ("value a list", lambda p: p.send("t", [b"x"]), "the value is list, expected bytes, str or None"),
    ("key a number", lambda p: p.send("t", b"", 1), "the key is int, expected bytes, str or None"),
    ("value of half a character", lambda p: p.send("t", "\ud800"), "the value is text that cannot be encoded as UTF-8"),
    # Headers
    ("headers a text", lambda p: p.send("t", b"", headers="ab"), "headers is str, expected a mapping or"),
    ("headers a number", lambda p: p.send("t", b"", headers=5), "headers is int, expected a mapping or"),
    (
        "headers of three",
        lambda p: p.send("t", b"", headers=[("a", b"", b"")]),
        r"expected a mapping or \(key, value\)",
    ),
    ("header key bytes", lambda p: p.send("t", b"", headers={b"a": b""}), "a header's key is bytes, expected str"),
    ("header value", lambda p: p.send("t", b"", headers={"a": 1}), "the header a is int, expected bytes, str or None"),
    (
        "header half",
        lambda p: p.send("t", b"", headers={"\ud800": b""}),
        "the key of a header is text that cannot be encoded",
    ),
    # Partitions
    ("partition of text", lambda p: p.send("t", b"", partition="1"), "partition is '1', expected a whole number"),
    ("partition -1", lambda p: p.send("t", b"", partition=-1), "partition is -1, expected a whole number from 0"),
    ("partition true", lambda p: p.send("t", b"", partition=True), "partition is True, expected a whole number"),
    ("partition 2**31", lambda p: p.send("t", b"", partition=1 << 31), "partition is 2147483648"),
    # Times
    ("time of text", lambda p: p.send("t", b"", timestamp="now"), "timestamp is 'now', expected seconds since 1970"),
    ("time before 1970", lambda p: p.send("t", b"", timestamp=-1.0), "timestamp is -1.0, expected seconds since 1970"),
    ("time nan", lambda p: p.send("t", b"", timestamp=float("nan")), "timestamp is nan, expected seconds since 1970"),
    ("time true", lambda p: p.send("t", b"", timestamp=True), "timestamp is True, expected seconds"),
    (
        "time in milliseconds",
        lambda p: p.send("t", b"", timestamp=1e15),
        "expected seconds since 1970 .not milliseconds",
    ),
    (
        "naive time",
        lambda p: p.send("t", b"", timestamp=datetime(2024, 1, 1)),
        "has no time zone: use an aware datetime",
    ),
    # Lists
    ("list of numbers", lambda p: p.send_many("t", [b"", 1]), "item 1: value is int, expected bytes, str or None"),
    ("list of triples", lambda p: p.send_many("t", [(b"", b"", b"")]), "item 0 is a tuple of 3"),
    ("pair of numbers", lambda p: p.send_many("t", [(1, b"")]), "item 0: key is int, expected bytes, str or None"),
    ("a text for a list", lambda p: p.send_many("t", "abc"), "str is not a list of records: expected values"),
    ("bytes for a list", lambda p: p.send_many("t", b"abc"), "bytes is not a list of records"),
    ("no list", lambda p: p.send_many("t", 5), "int is not a list of records"),
    ("a mapping", lambda p: p.send_many("t", {b"k": b"v"}), "dict is not a list of records"),
    # Tables
    ("no table", lambda p: p.send_table("t", [b""]), "a table is anything with __arrow_c_stream__ .*, not list"),
    ("no value", lambda p: p.send_table("t", pa.table({"key": [b""]})), "the table has no column value, only key"),
    ("no columns", lambda p: p.send_table("t", pa.table({})), "the table has no column value, only none at all"),
    (
        "other columns",
        lambda p: p.send_table("t", table(x=[1, 2])),
        "the table has the columns x; known are value, key",
    ),
    ("twice", lambda p: p.send_table("t", pa.table([[b""], [b""]], ["value", "value"])), "a column twice"),
    ("two topics", lambda p: p.send_table("t", table(topic=["a", "b"])), "a column topic and the call names a topic"),
    ("no topics", lambda p: p.send_table(None, table()), "neither the call nor a column of the table names the topic"),
    ("null topic", lambda p: p.send_table(None, table(topic=["a", None])), "column topic has 1 nulls"),
    ("wrong topic", lambda p: p.send_table(None, table(topic=["a", "/"])), "'/' is not a topic name"),
    (
        "topic numbers",
        lambda p: p.send_table(None, table(topic=[1, 2])),
        "column topic has type int64; accepted is text",
    ),
    (
        "value numbers",
        lambda p: p.send_table("t", pa.table({"value": [1]})),
        "column value has type int64; accepted are",
    ),
    (
        "key numbers",
        lambda p: p.send_table("t", table(key=[1.5, 2])),
        "column key has type double; accepted are binary",
    ),
    ("partition text", lambda p: p.send_table("t", table(partition=["0", "1"])), "column partition has type string"),
    (
        "partition low",
        lambda p: p.send_table("t", table(partition=[0, -2])),
        "column partition has -2 to 0; accepted are",
    ),
    (
        "partition high",
        lambda p: p.send_table("t", table(partition=[0, 1 << 31])),
        "column partition has 0 to 2147483648",
    ),
    (
        "partition huge",
        lambda p: p.send_table("t", table(partition=pa.array([0, (1 << 64) - 1], pa.uint64()))),
        "column partition .*accepted are 0 to 2147483647",
    ),
    ("time text", lambda p: p.send_table("t", table(timestamp=["a", "b"])), "column timestamp has type string"),
    ("time null", lambda p: p.send_table("t", table(timestamp=[1, None])), "column timestamp has 1 nulls"),
    (
        "headers text",
        lambda p: p.send_table("t", table(headers=["a", "b"])),
        "column headers has type string; accepted",
    ),
]


@pytest.mark.parametrize(("use", "text"), [pytest.param(use, text, id=name) for name, use, text in WRONG])
def test_wrong_input_is_named_at_the_call(producer: Producer, use: Callable[[Any], object], text: str) -> None:
    with pytest.raises(InputError, match=text):
        use(producer)
    assert producer._budget.used == 0
    assert producer._intake.idle()


def test_the_short_path_refuses_what_the_full_path_refuses(producer: Producer) -> None:
    producer.send("t", b"opens a chunk")
    with pytest.raises(InputError, match="the value is int"):
        producer.send("t", 1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="'a b' is not a topic name"):
        producer.send("a b", b"")


def test_payloads_become_bytes_of_their_own() -> None:
    changing = bytearray(b"abc")
    taken = [checks.payload("value", value) for value in (changing, memoryview(changing), b"x", "ä", None)]
    changing[:] = b"xyz"
    assert taken == [b"abc", b"abc", b"x", "ä".encode(), None]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ({}, None),
        ([], None),
        ({"a": "1", "b": None}, [("a", b"1"), ("b", None)]),
        ((("a", b"1"), ("a", b"2")), [("a", b"1"), ("a", b"2")]),
        (iter([("a", b"1")]), [("a", b"1")]),
    ],
)
def test_headers_are_a_mapping_or_pairs(value: object, expected: object) -> None:
    assert checks.headers(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, -1),
        (0, 0),
        (1.5, 1500),
        (1_700_000_000.123, 1_700_000_000_123),
        (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), 0),
    ],
)
def test_times_become_milliseconds(value: object, expected: int) -> None:
    assert checks.milliseconds(value) == expected


def test_a_record_never_takes_more_than_it_is_counted_for() -> None:
    from ottla.wire.encode import encode

    cases: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None]] = [
        (b"", None, None),
        (None, b"k", None),
        (bytes(70_000), bytes(300), [("name", b"v"), ("n", None), ("ä" * 100, bytes(1000))]),
    ]
    for value, key, listed in cases:
        headers = None if listed is None else pa.array([listed], pa.map_(pa.string(), pa.binary()))
        columns = from_arrow(pa.array([value], pa.binary()), key=pa.array([key], pa.binary()), headers=headers)
        (batch,) = encode(columns, now_ms=1)
        assert len(batch.records) <= checks.record_bytes(value, key, listed) <= len(batch.records) + 60
        assert checks.most_bytes(columns) >= len(batch.records)
        assert checks.oversize_rows(columns, len(batch.records) - 1)[0][0] == 0


def test_rows_that_are_too_large_are_found_and_left_out() -> None:
    columns = from_list([b"a", bytes(500), (b"k", bytes(400)), (bytes(600), None), b"e"])
    large = checks.oversize_rows(columns, 450)
    assert [row for row, _ in large] == [1, 3]
    explicit = np.arange(5, dtype=np.int32)
    whole = checks.Rows("t", columns, explicit, range(5), tuple(large))
    rows = checks.without_oversize(whole)
    kept, partitions = rows.columns, rows.partitions
    assert list(rows.numbers) == [0, 2, 4]
    assert as_arrow(kept, now_ms=0).column("value").to_pylist() == [b"a", bytes(400), b"e"]
    assert as_arrow(kept, now_ms=0).column("key").to_pylist() == [None, b"k", None]
    assert partitions is not None
    assert partitions.tolist() == [0, 2, 4]
    assert checks.row(columns, 3) == (bytes(600), None)
    part = whole.within(range(2, 5))
    assert checks.row(part.columns, part.index_of(3)) == (bytes(600), None)
    assert list(checks.without_oversize(part).numbers) == [2, 4]


def test_a_small_slice_of_a_large_table_does_not_keep_the_table() -> None:
    gc.collect()
    others = pa.total_allocated_bytes()
    headers = pa.array([[("h", b"v%d" % row)] for row in range(5000)], pa.map_(pa.string(), pa.binary()))
    large = pa.table(
        {
            "value": pa.array([b"%d" % row + bytes(100) for row in range(5000)], pa.large_binary()),
            "key": pa.array([None if row % 2 else b"k%d" % row for row in range(5000)]),
            "headers": headers,
            "timestamp": pa.array(range(5000), pa.int64()),
        }
    )
    large_bytes = pa.total_allocated_bytes() - others
    small, _ = checks.columns(large.slice(1001, 3))
    rows = as_arrow(small, now_ms=0).to_pylist()
    assert [(row["value"][:4], row["key"]) for row in rows] == [(b"1001", None), (b"1002", b"k1002"), (b"1003", None)]
    assert [row["headers"][0]["value"] for row in rows] == [b"v1001", b"v1002", b"v1003"]
    assert list(small.times) == [1001, 1002, 1003]
    del rows, large, headers
    assert pa.total_allocated_bytes() - others < large_bytes / 10


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_slices_cover_every_row_once(count: int) -> None:
    columns = from_list([bytes(100)] * count)
    slices = list(checks.slices([checks.Rows("t", columns, None, range(count))], 3000))
    assert [row for part, _ in slices for row in part] == list(range(count))
    assert [row for _, (piece,) in slices for row in piece.numbers] == list(range(count))
    assert sum(piece.columns.count for _, (piece,) in slices) == count
    assert sum(piece.columns.data_bytes for _, (piece,) in slices) == columns.data_bytes


@pytest.mark.parametrize("seed", range(5))
def test_slices_go_through_all_topics_at_once(seed: int) -> None:
    """So that the rows accepted before some point are the first rows of the table."""
    chance = np.random.default_rng(seed)
    count = int(chance.integers(1, 500))
    values = [b"%d" % row + bytes(int(chance.integers(0, 300))) for row in range(count)]
    names = chance.choice(["a", "b", "c"], count).tolist()
    all_rows = []
    for topic, rows, numbers in checks.by_topic(None, pa.table({"topic": names, "value": values})):
        explicit = np.asarray(numbers, np.int32)
        kept = checks.Rows(topic, checks.columns(rows)[0], explicit, numbers)
        first = kept._replace(oversize=((int(numbers[0]), 300),))
        all_rows.append(checks.without_oversize(first) if chance.random() < 0.5 else kept)
    reached = 0
    seen: list[int] = []
    for part, pieces in checks.slices(all_rows, 3000):
        assert part.start == reached
        reached = part.stop
        for piece in pieces:
            column = as_arrow(piece.columns, now_ms=0).column("value").to_pylist()
            assert column == [values[row] for row in piece.numbers]
            assert piece.partitions is not None
            assert piece.partitions.tolist() == list(piece.numbers)
            assert all(names[row] == piece.topic and row in part for row in piece.numbers)
            seen += list(piece.numbers)
    assert sorted(seen) == sorted(int(row) for rows in all_rows for row in rows.numbers)


def test_rows_are_split_by_topic_in_their_order() -> None:
    parts = list(checks.by_topic(None, pa.table({"topic": ["b", "a", "b"], "value": [b"1", b"2", b"3"]})))
    assert [(name, rows.column("value").to_pylist()) for name, rows, _ in parts] == [("b", [b"1", b"3"]), ("a", [b"2"])]


def test_rows_of_views_are_split_by_topic_too() -> None:
    """Found: Arrow cannot select rows of view columns, which a table from Polars has."""
    views = pa.table(
        {
            "topic": pa.array(["b", "a", "b"], pa.string_view()),
            "value": pa.array(["1", None, "3"], pa.string_view()),
            "key": pa.array([b"x", b"y", None], pa.binary_view()),
        }
    )
    entry = pa.struct([("key", pa.string_view()), ("value", pa.binary_view())])
    for headers in (
        pa.array([[{"key": "h", "value": b"v"}], None, []], pa.list_(entry)),
        pa.array([[{"key": "h", "value": b"v"}], None, []], pa.large_list(entry)),
        pa.array([[("h", b"v")], None, []], pa.map_(pa.string_view(), pa.binary_view())),
    ):
        table_of_views = views.append_column("headers", headers)
        parts = {name: checks.columns(rows)[0] for name, rows, _ in checks.by_topic(None, table_of_views)}
        assert [checks.row(parts["b"], row) for row in range(2)] == [(b"x", b"1"), (None, b"3")]
        assert checks.row(parts["a"], 0) == (b"y", None)
        assert (parts["b"].header_count, parts["a"].header_count) == (1, 0)


def test_a_topic_column_may_be_of_any_text_type() -> None:
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())):
        column = (
            pa.array(["a", "b"]).dictionary_encode() if pa.types.is_dictionary(kind) else pa.array(["a", "b"], kind)
        )
        assert [name for name, _, _ in checks.by_topic(None, table(topic=column))] == ["a", "b"]


def test_a_time_is_the_nearest_millisecond() -> None:
    """Found: 1 % of the times between 2004 and 2020 were truncated to one millisecond less."""
    chance = random.Random(10)
    for _ in range(5000):
        expected = chance.randrange(0, 4_000_000_000_000)
        assert checks.milliseconds(expected / 1000) == expected
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=expected)
        assert checks.milliseconds(moment) == expected
        assert checks.milliseconds(np.float64(expected / 1000)) == expected
    assert checks.milliseconds(1.0006) == checks.milliseconds(datetime(1970, 1, 1, 0, 0, 1, 600, tzinfo=UTC)) == 1001
    assert checks.milliseconds(datetime.max.replace(tzinfo=UTC)) == 253_402_300_799_999
    assert checks.milliseconds(253_402_300_799.9999) == 253_402_300_799_999
    for wrong in (datetime(1969, 12, 31, tzinfo=UTC), np.float64("nan"), np.bool_(True), "5", True, -1):
        with pytest.raises(InputError, match="timestamp"):
            checks.milliseconds(wrong)


def test_numbers_of_numpy_are_numbers() -> None:
    assert checks.partition(np.int32(3)) == 3
    assert type(checks.partition(np.uint8(3))) is int
    assert checks.milliseconds(np.int64(5)) == checks.milliseconds(np.float32(5)) == 5000
    for wrong in (np.int64(-1), np.float64(1), np.bool_(True)):
        with pytest.raises(InputError, match="partition"):
            checks.partition(wrong)
