"""Bodies become records as the client wrote them, or one problem that names the place. Nothing else ever happens."""

from __future__ import annotations

import base64
import gzip
import json
import random
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import cramjam
import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import NotDelivered, SpoolFull
from ottla.gateway.http.answers import Landed, Missed, Outcome, by_row, native
from ottla.gateway.http.bodies import Rows, read_rows
from ottla.gateway.http.compat import read_kafboy
from ottla.gateway.http.decoding import decoded
from ottla.gateway.http.limits import Limits
from ottla.gateway.http.problems import Problem, problem_of
from ottla.gateway.http.rest_bodies import Documents, from_v3, read_v2, read_v3, read_v3_batch, v2_answer
from ottla.gateway.intake import Incoming
from ottla.gateway.keys.table import Done, Table, decode_entry, encode_entry

_LIMITS = Limits()
_JSON, _NDJSON = "application/json", "application/x-ndjson"
_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def _read_bytes(body: bytes, kind: str) -> Rows:
    return read_rows(body, kind, {}, limits=_LIMITS)


def _read(body: bytes | str, kind: str = _JSON, **query: str) -> Rows:
    return read_rows(body.encode() if isinstance(body, str) else body, kind, query, limits=_LIMITS)


def _problem(work: Callable[[], Any]) -> Problem:
    with pytest.raises(Problem) as caught:
        work()
    return caught.value


def test_each_line_is_a_value_byte_for_byte() -> None:
    lines = ['{"b":1,  "a":[ 1,2 ]}', '"text"', "null", "1.50", '{"ü":"é"}']
    rows = _read("\n\n".join(lines) + "\r\n", _NDJSON, key="k")
    assert list(rows) == [Incoming(line.encode(), b"k") for line in lines]


@given(st.lists(_values, min_size=1, max_size=20), st.booleans())
def test_any_json_comes_through_as_lines(values: list[Any], is_ascii: bool) -> None:
    lines = [json.dumps(value, ensure_ascii=is_ascii) for value in values]
    assert [row.value for row in _read("\n".join(lines), _NDJSON)] == [line.encode() for line in lines]


def test_records_have_all_parts_of_a_record() -> None:
    records = [
        {"value": {"a": 1}, "key": "k", "headers": {"h": "1", "n": None}, "timestamp": 1.5, "partition": 3},
        {"text": "plain", "key_base64": "AAE=", "headers": [["h", "1"], ["h", "2"]]},
        {"base64": "/w==", "timestamp": "2026-01-01T00:00:00Z"},
        {"key": "k"},
        {"value": None},
        {"value": ""},
    ]
    expected = [
        Incoming(b'{"a":1}', b"k", (("h", b"1"), ("n", None)), 1.5, 3),
        Incoming(b"plain", b"\x00\x01", (("h", b"1"), ("h", b"2"))),
        Incoming(b"\xff", None, (), 1767225600.0),
        Incoming(None, b"k"),
        Incoming(None),
        Incoming(b'""'),
    ]
    compact = json.dumps({"records": records}, separators=(",", ":"))
    assert list(_read(compact)) == expected
    lines = "\n".join(json.dumps(record, separators=(",", ":")) for record in records)
    assert list(_read(lines, _NDJSON, shape="record")) == expected


def test_any_other_json_is_one_record() -> None:
    for text in ('{"a":1}', "[1,2]", '{"records":{"a":1}}', '"records"', '{"a":{"records":[]}}'):
        assert list(_read(text)) == [Incoming(text.encode())]
    assert list(_read('{"records":[1]}', shape="value")) == [Incoming(b'{"records":[1]}')]


def test_a_body_of_any_bytes_is_one_record() -> None:
    assert list(_read(b"\xff\x00", "application/octet-stream", key="k")) == [Incoming(b"\xff\x00", b"k")]
    assert list(_read(b"", "text/plain; charset=utf-8")) == [Incoming(b"")]


def test_an_arrow_stream_is_a_table() -> None:
    table = pa.table({"value": pa.array([b"a", None]), "key": pa.array([None, b"k"])})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    rows = _read(sink.getvalue().to_pybytes(), "application/vnd.apache.arrow.stream")
    assert isinstance(rows, pa.RecordBatch)
    assert rows.to_pydict() == table.to_pydict()


@pytest.mark.parametrize(
    ("body", "kind", "query", "status", "place"),
    [
        ('1\n2\n{"a":', _NDJSON, {}, 400, "line 3"),
        ('{}\n{"nonesuch":1}', _NDJSON, {"shape": "record"}, 400, "line 2"),
        ('{"records":[{},{"key":1}]}', _JSON, {}, 400, "$.records[1].key"),
        ('{"records":[{},{"base64":"a"}]}', _JSON, {}, 400, "record 1"),
        ('{"records":[{"value":1,"text":"a"}]}', _JSON, {}, 400, "record 0"),
        (b'1\n"\xff"', _NDJSON, {}, 400, "line 2"),
        ("{}", _JSON, {"shape": "other"}, 400, "shape"),
        ("{}", "application/xml", {}, 415, "application/xml"),
        ("{}", "", {}, 415, "no content type"),
        ("\n", _NDJSON, {}, 422, "no records"),
        ('{"records":[{"timestamp":"2026-01-01T00:00:00"}]}', _JSON, {}, 400, "no zone"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(
    body: bytes | str, kind: str, query: dict[str, str], status: int, place: str
) -> None:
    problem = _problem(lambda: _read(body, kind, **query))
    assert (problem.status, place in problem.text) == (status, True), problem.text


def test_a_v2_body_has_one_format_for_all() -> None:
    body = b'{"records":[{"key":"a2V5","value":"dmFsdWU=","headers":[{"key":"h","value":"MQ=="}],"timestamp":1500}]}'
    assert read_v2(body, "binary", partition=None, limits=_LIMITS) == [
        Incoming(b"value", b"key", (("h", b"1"),), 1.5, None)
    ]
    assert read_v2(b'{"records":[{"key":"k","value":{"a": 1}}]}', "json", partition=2, limits=_LIMITS) == [
        Incoming(b'{"a": 1}', b'"k"', (), None, 2)
    ]
    assert read_v2(b'{"records":[{"key":"k","value":null}]}', "text", partition=None, limits=_LIMITS) == [
        Incoming(None, b"k")
    ]
    for wrong, form in ((b'{"records":[]}', "json"), (b'{"records":[{"value":"a"}]}', "binary"), (b"[]", "json")):
        problem = _problem(partial(read_v2, wrong, form, partition=None, limits=_LIMITS))
        assert problem.status == 422


def test_a_v2_answer_has_an_entry_for_each_record_in_its_order() -> None:
    refused = Problem(413, "too large", limit="record_bytes")
    outcome = Outcome(4, (Landed((0, 2), 1, 10), Landed(range(3, 4), 0, 5)), (Missed((1,), refused),))
    answer = msgspec.json.decode(v2_answer(outcome))
    assert [(each["partition"], each["offset"], each["error_code"]) for each in answer["offsets"]] == [
        (1, 10, None),
        (None, None, 50002),
        (1, 11, None),
        (0, 5, None),
    ]


def test_a_native_answer_shows_in_its_status_what_failed() -> None:
    unknown, refused = Problem(504, "outcome unknown"), Problem(422, "refused")
    landed = Landed(range(2), 0, 7)
    assert native(Outcome(2, (landed,)))[0] == 200
    assert native(Outcome(3, (landed,), (Missed((2,), refused),)))[0] == 207
    assert native(Outcome(2, (), (Missed((0,), refused), Missed((1,), unknown))))[0] == 504
    status, body = native(Outcome(1, (Landed(range(1), 3, 9),)))
    assert (status, json.loads(body)) == (
        200,
        {"ranges": [{"partition": 3, "base_offset": 9, "count": 1}], "failed": []},
    )


def test_a_full_disk_is_named_and_so_are_records_that_got_there_before() -> None:
    full = SpoolFull("/spool", used_bytes=1, needed_bytes=2, reason="No space left on device")
    problem = problem_of(NotDelivered("the spool did not take it", cause=full))
    assert (problem.status, problem.limit, "/spool" in problem.text) == (503, "spool_disk", False)
    assert problem_of(SpoolFull("/spool", used_bytes=1, needed_bytes=2, max_bytes=2)).limit == "spool_bytes"
    assert native(Outcome(2, (), (Missed(range(2), problem),)))[0] == 503
    assert native(Outcome(2, (), (Missed(range(1), problem),)))[0] == 207


def test_v3_records_say_what_they_are() -> None:
    record = read_v3(
        b'{"partition_id":1,"headers":[{"name":"h","value":"MQ=="}],"key":{"type":"STRING","data":"k"},'
        b'"value":{"type":"JSON","data":{"a": 1}},"timestamp":"2026-01-01T00:00:00Z"}',
        _LIMITS,
    )
    row, receipt = from_v3(record, _LIMITS)
    assert row == Incoming(b'{"a": 1}', b"k", (("h", b"1"),), 1767225600.0, 1)
    assert receipt == {"key": {"type": "STRING", "size": 1}, "value": {"type": "JSON", "size": 8}}
    for body, code in (
        (b'{"entries":[]}', 42208),
        (b'{"entries":[{"id":"a"},{"id":"a"}]}', 42208),
        (b'{"entries":[{"id":1}]}', 42208),
        (b'{"entries":[{"id":"a b"}]}', 42208),
    ):
        assert _problem(partial(read_v3_batch, body, _LIMITS)).code == code


@given(st.lists(st.dictionaries(st.text(max_size=8), _values, max_size=3), max_size=6), st.data())
def test_documents_are_found_however_a_stream_is_cut(values: list[dict[str, Any]], data: st.DataObject) -> None:
    texts = [json.dumps(value).encode() for value in values]
    stream = data.draw(st.sampled_from([b"", b"\r\n", b" ", b","])).join(texts)
    documents = Documents(1 << 20)
    found: list[bytes] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += documents.feed(stream[:size])
        stream = stream[size:]
    documents.end()
    assert found == texts


def test_kafboy_takes_forms_and_objects() -> None:
    pairs = [Incoming(b"1", b"a"), Incoming(b"x y", b"b")]
    assert read_kafboy(b"a=1&b=x+y", "application/x-www-form-urlencoded") == pairs
    assert read_kafboy(b'{"a":1,"b":"x y"}', _JSON) == pairs
    assert read_kafboy(b"[1]", _JSON) is None


@given(st.binary(max_size=2000), st.integers(1, 3))
def test_encoded_bodies_come_out_as_they_were(body: bytes, members: int) -> None:
    assert decoded(b"".join(gzip.compress(body) for _ in range(members)), "gzip", limits=_LIMITS) == body * members
    assert decoded(bytes(cramjam.zstd.compress(body)), "zstd", limits=_LIMITS) == body


def test_an_entry_of_the_key_topic_comes_out_as_it_went_in() -> None:
    outcome = Outcome(5, (Landed(range(3), 0, 7), Landed((3, 4), 2, -1)))
    done = Done("billing/ü 1", b"d" * 32, 12.5, outcome)
    key, value = encode_entry("gate", done)
    found = decode_entry("gate", key, value)
    assert found is not None
    assert by_row(found.outcome) == by_row(outcome)
    assert (found.name, found.digest, found.time) == (done.name, done.digest, done.time)
    assert decode_entry("other", key, value) is None
    assert decode_entry("gate", key, b"nonsense") is None


def test_keys_are_forgotten_by_age_and_by_number() -> None:
    table = Table(most=2, seconds=10)
    for at, name in enumerate("abc"):
        table.add(Done(name, b"", float(at), Outcome(0, ())))
    assert table.find("a", 3.0) is None
    assert table.find("b", 3.0) is not None
    assert table.find("b", 11.5) is None
    assert table.find("c", 11.5) is not None


_SEEDS = [
    b'{"records":[{"value":{"a":1},"key":"k","headers":{"h":"1"},"timestamp":1.5,"partition":3}]}',
    b'{"records":[{"text":"x","key_base64":"AAE=","headers":[["h",null]]},{"base64":"/w=="}]}',
    b'{"a":1}\n[1,2]\n"x"\n\nnull\r\n',
    b'{"value":1}\n{"text":"\\u00e9"}\n',
    b'{"records":[{"key":"a2V5","value":"dg==","headers":[{"key":"h","value":"MQ=="}],"timestamp":1500}]}',
    b'{"value":{"type":"JSON","data":{"a":1}}} '
    b'{"key":{"type":"BINARY","data":"AAE="},"timestamp":"2026-01-01T00:00:00Z"}',
    b'{"entries":[{"id":"1","value":{"type":"STRING","data":"x"}},{"id":"b-_"}]}',
    b"a=1&b=%20x",
    b"name:scrypt:16384:8:1:AAAAAAAAAAA=:AAAA",
]
_TOKENS = [
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"\\",
    b"\\ud800",
    b"\xff",
    b"\x00",
    b"\n",
    b"null",
    b"1e999",
    b"-1",
]


def _mutated(chance: random.Random) -> bytes:
    body = bytearray(chance.choice(_SEEDS))
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(body) + 1)
        match chance.randrange(4):
            case 0:
                body[at:at] = chance.choice(_TOKENS)
            case 1:
                del body[at : at + chance.randint(1, 10)]
            case 2 if at < len(body):
                body[at] = chance.randrange(256)
            case _:
                body[at:at] = body[chance.randrange(len(body) + 1) :][: chance.randint(1, 30)]
    return bytes(body[:400])


def _documents(body: bytes) -> None:
    documents = Documents(300)
    for at in range(0, len(body), 7):
        for document in documents.feed(body[at : at + 7]):
            from_v3(read_v3(document, _LIMITS), _LIMITS)
    documents.end()


_READERS: list[Callable[[bytes], object]] = [
    lambda body: _read(body),
    lambda body: _read(body, _NDJSON),
    lambda body: _read(body, _NDJSON, shape="record"),
    lambda body: read_v2(body, "json", partition=None, limits=_LIMITS),
    lambda body: read_v2(body, "binary", partition=None, limits=_LIMITS),
    lambda body: read_v2(body, "text", partition=1, limits=_LIMITS),
    _documents,
    lambda body: [from_v3(entry, _LIMITS) for _, entry in read_v3_batch(body, _LIMITS)],
    lambda body: read_kafboy(body, ""),
    lambda body: decoded(body, "gzip", limits=_LIMITS),
]


def _refused_without_much_memory(read: Callable[[], object]) -> Problem:
    """Return why a body is refused; nothing may take far more memory than the body has."""
    tracemalloc.start()
    allocated = pa.total_allocated_bytes()
    try:
        with pytest.raises(Problem) as refused:
            read()
        assert tracemalloc.get_traced_memory()[1] < 60 << 20
    finally:
        tracemalloc.stop()
    assert pa.total_allocated_bytes() - allocated < 1 << 20
    return refused.value


@pytest.mark.parametrize(
    "read",
    [
        lambda: _read(b"1\n" * 2_000_000, _NDJSON),
        lambda: _read(b"{}\n" * 2_000_000, _NDJSON, shape="record"),
        lambda: _read(b'{"records":[' + b"{}," * 2_000_000 + b"{}]}"),
        lambda: read_v2(b'{"records":[' + b"{}," * 2_000_000 + b"{}]}", "json", partition=None, limits=_LIMITS),
        lambda: read_v3_batch(b'{"entries":[' + b"{}," * 2_000_000 + b"{}]}", _LIMITS),
    ],
)
def test_too_many_records_are_refused_before_they_take_memory(read: Callable[[], object]) -> None:
    problem = _refused_without_much_memory(read)
    assert (problem.status, problem.limit) == (413, "records")


@pytest.mark.parametrize("field", ["headers", "headers_base64"])
def test_too_many_headers_are_refused_before_they_take_memory(field: str) -> None:
    body = b'{"records":[{"%s":[' % field.encode() + b'["a","b"],' * 700_000 + b'["a","b"]]}]}'
    assert _refused_without_much_memory(lambda: _read(body)).limit == "record_header_bytes"


def test_empty_gzip_members_are_refused_before_they_take_minutes() -> None:
    with pytest.raises(Problem) as refused:
        decoded(gzip.compress(b"") * 20_000, "gzip", limits=_LIMITS)
    assert refused.value.limit == "gzip_members"


def _stream(batch: pa.RecordBatch, codec: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    return bytes(memoryview(sink.getvalue()))


def _same_view(size: int, count: int) -> pa.Array:
    """A column whose values all lie at the same place."""
    views, *data = pa.array([bytes(size)], pa.binary_view()).buffers()[1:]
    return pa.Array.from_buffers(pa.binary_view(), count, [None, pa.py_buffer(views.to_pybytes()[:16] * count), *data])


def _same_entry(size: int, count: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array([bytes(size)]))


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_an_arrow_stream_is_not_decompressed_beyond_the_limit(codec: str) -> None:
    bomb = _stream(pa.record_batch({"value": pa.array([bytes(100 << 20)], pa.large_binary())}), codec)
    assert _refused_without_much_memory(lambda: _read_arrow(bomb)).limit == "decoded_bytes"
    assert len(_read_arrow(_stream(pa.record_batch({"value": pa.array([bytes(1 << 20)])}), codec))) == 1


@pytest.mark.parametrize("make", [_same_view, _same_entry])
def test_an_arrow_value_is_not_repeated_beyond_the_limit(make: Callable[[int, int], pa.Array]) -> None:
    assert len(_read_arrow(_stream(pa.record_batch({"value": make(1 << 10, 1000)})))) == 1000
    with pytest.raises(Problem) as refused:
        _read_arrow(_stream(pa.record_batch({"value": make(1 << 20, 1000)})))
    assert refused.value.limit == "decoded_bytes"


def test_limits_of_headers_hold_for_arrow_too() -> None:
    headers = pa.array([[("a", b"1")] * 65], pa.map_(pa.string(), pa.binary()))
    with pytest.raises(Problem) as refused:
        _read_arrow(_stream(pa.record_batch({"value": pa.array([b"x"]), "headers": headers})))
    assert refused.value.limit == "record_headers"

    for sizes in ([(9_000, 0), (9_000, 0)], [(1, 9_000), (1, 9_000)], [(17_000, 0)]):
        large = _with_headers([(b"a" * name, b"x" * value) for name, value in sizes])
        assert _problem(partial(_read_arrow, large)).limit == "record_header_bytes"
    assert len(_read_arrow(_with_headers([(b"a" * 9_000, b"x" * 7_000)]))) == 2


def _with_headers(pairs: list[tuple[bytes, bytes | None]]) -> bytes:
    headers = pa.array([[], pairs], pa.map_(pa.binary(), pa.binary()))
    return _stream(pa.record_batch({"value": pa.array([b"x", b"y"]), "headers": headers}))


def test_names_of_headers_in_arrow_are_utf8() -> None:
    assert len(_read_arrow(_with_headers([("é".encode(), None), (b"", b"\xff"), (b"a", b"")]))) == 2
    for names in ([b"a", b"\xff"], ["é".encode()[:1], "é".encode()[1:]], [b"a", b"\xed\xa0\x80"]):
        bad = _with_headers([(name, b"") for name in names])
        assert _problem(partial(_read_arrow, bad)).status == 422


_ODD_TYPES = [
    pa.null(),
    pa.int64(),
    pa.float64(),
    pa.timestamp("s"),
    pa.duration("s"),
    pa.decimal128(10, 2),
    pa.string(),
    pa.binary_view(),
    pa.binary(3),
    pa.list_(pa.binary()),
    pa.list_view(pa.binary()),
    pa.struct([("key", pa.binary()), ("value", pa.int64())]),
    pa.list_(pa.struct([("key", pa.int64()), ("value", pa.binary())])),
    pa.list_(pa.struct([("key", pa.binary()), ("key", pa.binary()), ("value", pa.binary())])),
    pa.dense_union([pa.field("a", pa.int64())]),
]


@pytest.mark.parametrize("column", ["value", "key", "headers", "timestamp", "partition"])
@pytest.mark.parametrize("number", range(len(_ODD_TYPES)))
def test_whatever_type_an_arrow_column_has_it_is_read_or_refused(column: str, number: int) -> None:
    kind = _ODD_TYPES[number]
    indices, entries = pa.array([0, 0], pa.int32()), pa.nulls(1, kind)
    kinds = [pa.nulls(2, kind), pa.DictionaryArray.from_arrays(indices, entries)]
    kinds += [pa.DictionaryArray.from_arrays(indices, pa.DictionaryArray.from_arrays(indices[:1], entries))]
    kinds += [pa.ListArray.from_arrays(pa.array([0, 1, 1], pa.int32()), entries)]
    refused: list[Problem] = []
    for content in kinds:
        columns = {"value": pa.array([b"x", b"y"])} | {column: content}
        try:
            assert len(_read_arrow(_stream(pa.record_batch(columns)))) == 2
        except Problem as problem:
            refused.append(problem)
    assert {problem.status for problem in refused} <= {400, 422}


def test_damaged_arrow_streams_are_refused() -> None:
    chance = random.Random(2026)
    whole = _stream(pa.record_batch({"value": pa.array([b"abc"] * 100), "key": pa.array(["k"] * 100)}), "zstd")
    refused = 0
    for _ in range(3000):
        body = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            body[chance.randrange(len(body))] = chance.randrange(256)
        try:
            _read_arrow(bytes(body))
        except Problem:
            refused += 1
    assert refused > 1000


def _read_arrow(body: bytes) -> Rows:
    return _read_bytes(body, "application/vnd.apache.arrow.stream")


def test_a_line_has_one_value() -> None:
    for body in (b"1 2\n3", b'{"a":\n1}', b'"a""b"'):
        with pytest.raises(Problem, match="line 1"):
            _read(body, _NDJSON)


def test_objects_before_what_is_none_are_found() -> None:
    documents = Documents(1000).feed(b'{"a":1}{"b":2}rubbish')
    assert (next(documents), next(documents)) == (b'{"a":1}', b'{"b":2}')
    with pytest.raises(Problem):
        next(documents)


@pytest.mark.parametrize(
    "read",
    [
        lambda: _read('{"records":[{"value":1}],"records":[{"value":2},{"value":3}]}'),
        lambda: _read('{"records":[{"value":1}],"\\u0072ecords":[{"value":2}]}'),
        lambda: _read('{"records":[{"value":1}],"records":[]}'),
        lambda: _read('{"records":[{"value":1}],"records":3}'),
        lambda: _read('{"records":[1],"a":{},"records":{}}'),
        lambda: read_v2(b'{"records":[{}],"records":[{},{}]}', "json", partition=None, limits=_LIMITS),
        lambda: read_v3_batch(b'{"entries":[{"id":"a"}],"entries":[{"id":"b"}]}', _LIMITS),
    ],
)
def test_records_that_a_second_list_would_hide_are_refused(read: Callable[[], object]) -> None:
    problem = _problem(read)
    assert (problem.status, "more than once" in problem.text) == (400, True)


def test_a_value_may_have_anything_under_the_name_records() -> None:
    for text in (
        '{"records":{"records":[1]}}',
        '{"a":{"records":[1]},"records":"x"}',
        '{"records":1e999}',
        '{"records":123456789012345678901234567890}',
        '{"records":null,"a":[]}',
        '{"records":true}',
    ):
        assert list(_read(text)) == [Incoming(text.encode())]


def test_times_that_no_clock_has_are_refused() -> None:
    for number in (b"-1", b"1" + b"0" * 400):
        body = b'{"records":[{"value":1,"timestamp":' + number + b"}]}"
        with pytest.raises(Problem) as refused:
            read_v2(body, "json", partition=None, limits=_LIMITS)
        assert refused.value.status in (400, 422)


def test_a_hundred_thousand_odd_bodies_are_read_or_refused_and_nothing_else() -> None:
    chance = random.Random(2026)
    refused: list[Problem] = []
    for number in range(100_000):
        body = _mutated(chance)
        try:
            rows = _READERS[number % len(_READERS)](body)
        except Problem as wrong:
            refused.append(wrong)
        else:
            for row in rows if isinstance(rows, list) else ():
                row = row[0] if isinstance(row, tuple) else row
                assert all(value is None or isinstance(value, bytes) for value in (row.value, row.key))
                assert all(isinstance(name.encode(), bytes) for name, _ in row.headers)
    assert 10_000 < len(refused) < 99_000
    for problem in refused:
        assert 400 <= problem.status < 500
        assert json.loads(problem.body())["message"]


def test_base64_is_read_strictly() -> None:
    assert list(_read(json.dumps({"records": [{"base64": base64.b64encode(b"x").decode()}]}))) == [Incoming(b"x")]
    assert _problem(lambda: _read('{"records":[{"base64":"eA= ="}]}')).status == 400
