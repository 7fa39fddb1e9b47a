"""ListOffsets by hand is what kio's classes read and write."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import WireError
from ottla.model import Isolation
from ottla.wire import list_offsets, messages
from ottla.wire.entities import read_entity
from ottla.wire.entity_writer import write_entity

VERSIONS = range(list_offsets.LOWEST_VERSION, messages.supported_versions(list_offsets.API_KEY)[1] + 1)
_int32, _int64 = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
_topics = st.dictionaries(st.text(max_size=20), st.lists(st.tuples(_int32, _int32), max_size=5), max_size=5)


@given(_topics, _int64, st.sampled_from(VERSIONS), st.sampled_from(Isolation))
def test_requests_are_read_as_they_were_meant(
    topics: dict[str, list[tuple[int, int]]], timestamp: int, version: int, isolation: Isolation
) -> None:
    body = list_offsets.list_request(topics, version=version, timestamp=timestamp, isolation=isolation, timeout_ms=5000)
    entity, end = read_entity(messages.request_type(list_offsets.API_KEY, version), memoryview(body))
    assert end == len(body)
    assert (entity.replica_id, entity.isolation_level) == (-1, isolation)
    read = {
        topic.name: [(row.partition_index, row.current_leader_epoch) for row in topic.partitions]
        for topic in entity.topics
    }
    assert read == topics
    assert all(row.timestamp == timestamp for topic in entity.topics for row in topic.partitions)
    if version >= 10:
        assert entity.timeout.total_seconds() == 5


_rows = st.lists(st.tuples(_int32, st.sampled_from([0, 3, 6]), _int64, _int64, _int32), max_size=5)


def _response(topics: dict[str, list[tuple[int, int, int, int, int]]], version: int) -> bytes:
    names = ("partition_index", "error_code", "timestamp", "offset", "leader_epoch")
    fields = {
        "throttle_time": timedelta(0),
        "topics": [
            {"name": name, "partitions": [dict(zip(names, row, strict=True)) for row in rows]}
            for name, rows in topics.items()
        ],
    }
    return write_entity(messages.compose(messages.response_type(list_offsets.API_KEY, version), fields))


@given(st.dictionaries(st.text(max_size=20), _rows, max_size=5), st.sampled_from(VERSIONS))
def test_responses_are_read_as_they_were_written(
    topics: dict[str, list[tuple[int, int, int, int, int]]], version: int
) -> None:
    rows = list_offsets.list_response(memoryview(_response(topics, version)))
    assert [tuple(row) for row in rows] == [(name, *row) for name, listed in topics.items() for row in listed]


@given(st.binary(max_size=200))
def test_garbage_is_an_error_and_nothing_else(data: bytes) -> None:
    try:
        list_offsets.list_response(memoryview(data))
    except WireError:
        pass


def test_a_response_that_is_cut_short_or_too_long_is_an_error() -> None:
    whole = _response({"clicks": [(0, 0, -1, 5, 1)]}, 7)
    for wrong in (whole[:-1], whole + b"\0"):
        with pytest.raises(WireError):
            list_offsets.list_response(memoryview(wrong))
