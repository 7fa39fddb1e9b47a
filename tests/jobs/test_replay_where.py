"""Conditions of a replay: which records pass, and what the error for other text says."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import InputError
from ottla.jobs.replay_where import parse
from ottla.wire.decode import SCHEMA


def record(offset: int, **content: object) -> dict[str, object]:
    when = datetime(2026, 1, 1, offset, tzinfo=UTC)
    common = {"topic": "clicks", "partition": 2, "offset": offset, "timestamp": when, "timestampType": 0}
    return {"key": b"a", "value": b"it's", "headers": None, **common, **content}


RECORDS = pa.RecordBatch.from_pylist(
    [
        record(0),
        record(1, key=None, headers=[]),
        record(2, key=b"b", headers=[{"key": "site", "value": b"oslo"}]),
        record(3, value=None, headers=[{"key": "site", "value": None}]),
        record(4, headers=[{"key": "site", "value": b"oslo"}, {"key": "site", "value": b"bergen"}]),
    ],
    SCHEMA,
)


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        ("key = 'a'", [0, 3, 4]),
        ("key == 'a' or key is null", [0, 1, 3, 4]),
        ("key != 'a'", [2]),
        ("not key = 'a'", [2]),
        ("key <> 'a' or key < 'b'", [0, 2, 3, 4]),
        ("key in ('b', 'c')", [2]),
        ("value is not null AND offset >= 1", [1, 2, 4]),
        ("value = 'it''s' and offset > 2", [4]),
        ("value contains 't' and not (offset < 2 or offset = 4)", [2]),
        ("value matches '^it.s$' and partition in (1, 2)", [0, 1, 2, 4]),
        ("header.site = 'bergen'", [4]),
        ("header.'site' != 'oslo'", [4]),
        ("header.site is null", [0, 1, 3]),
        ("header.site is not null", [2, 4]),
        ("topic = 'clicks' and partition = 1", []),
        ("topic contains 'ick'", [0, 1, 2, 3, 4]),
        ("timestamp >= '2026-01-01T02:00Z' and timestamp < '2026-01-01T05:00+01:00'", [2, 3]),
    ],
)
def test_what_passes(text: str, offsets: list[int]) -> None:
    condition = pickle.loads(pickle.dumps(parse(text)))
    assert RECORDS.filter(condition.mask(RECORDS)).column("offset").to_pylist() == offsets


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at its end: a column was expected"),
        ("key", "at its end: a comparison was expected after key"),
        ("key = 5", "at '5': key is compared with a text in single quotes"),
        ("user = 'x'", "a column was expected"),
        ("offset = 'a'", "offset is compared with a whole number"),
        ("offset = 99999999999999999999", "offset is compared with a whole number"),
        ("key = 'a", """is not understood at "'a";"""),
        ("key = 'a' key = 'b'", "and, or, or the end was expected"),
        ("(key = 'a'", ") was expected"),
        ("key in ('a' 'b')", ", or ) was expected"),
        ("timestamp > 'noon'", "that is no time such as"),
        ("timestamp > '2026-01-01T00:00'", "the time has no zone"),
        ("timestamp contains 'x'", "timestamp is no text"),
        ("value matches '('", "that is no regular expression"),
        ("(" * 100 + "key = 'a'" + ")" * 100, "more than 50 levels"),
        ("__import__('os').system('true')", "is not understood at"),
    ],
)
def test_what_is_no_condition_is_reported(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text)
    assert message in str(caught.value)
    assert "accepted are comparisons" in str(caught.value)


_NAMED = st.lists(st.tuples(st.sampled_from([b"a", b"\xff", b"\xc3a"]), st.none() | st.binary()), max_size=3)


_Odd = tuple[bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]


@given(st.lists(st.tuples(st.none() | st.binary(), st.none() | st.binary(), _NAMED), min_size=1, max_size=5))
def test_no_record_stops_a_condition(rows: list[_Odd]) -> None:
    pairs = [pair for _, _, headers in rows for pair in headers]
    kind = SCHEMA.field("headers").type
    names = pa.array([name for name, _ in pairs], pa.binary()).view(pa.string())
    entries = pa.StructArray.from_arrays(
        [names, pa.array([value for _, value in pairs], pa.binary())], fields=list(kind.value_type)
    )
    ends = pa.array(np.cumsum([0, *(len(headers) for _, _, headers in rows)]), pa.int32())
    records = pa.record_batch(
        {
            "key": pa.array([key for key, _, _ in rows], pa.binary()),
            "value": pa.array([value for _, value, _ in rows], pa.binary()),
            "headers": pa.ListArray.from_arrays(ends, entries),
        }
    )
    for text in (
        "key = 'a'",
        "value contains 'é'",
        "value matches 'é+|^$'",
        "header.a matches '.*'",
        "header.'é' is null",
        "not header.a in ('x')",
        "key is null or value >= ''",
    ):
        assert len(parse(text).mask(records)) == len(rows)
