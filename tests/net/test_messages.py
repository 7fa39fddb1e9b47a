"""Control messages: we read what kio writes, kio reads what we write, and hostile bytes do no harm."""

from __future__ import annotations

import random
import tracemalloc
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader
from tests.by_kio import plain, written

from ottla.errors import ErrorCode, UnsupportedFormat, WireError
from ottla.wire import entities, messages
from ottla.wire.layouts import Field

from .servers import body

EVERY_RESPONSE = [(key, version) for key, name in api_key_map.items() for version in sorted(schema_name_map[name])]
_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def sample(entity_type: type, chance: random.Random) -> Any:
    """An entity with random content in every field."""
    return entity_type(**{f.name: _value(f, chance) for f in entities.fields_of(entity_type)})


def _value(field: Field, chance: random.Random) -> Any:
    if field.optional and field.tag is None and chance.random() < 0.3:
        return None
    if field.is_array:
        return tuple(_one(field.kind, chance) for _ in range(chance.randrange(4)))
    return _one(field.kind, chance)


def _one(kafka_type: str | type, chance: random.Random) -> Any:
    if not isinstance(kafka_type, str):
        return sample(kafka_type, chance)
    if kafka_type in _BITS:
        half = 1 << (_BITS[kafka_type] - 1)
        return chance.randrange(-half, half)
    make: dict[str, Callable[[], Any]] = {
        "uint16": lambda: chance.randrange(1 << 16),
        "bool": lambda: chance.random() < 0.5,
        "string": lambda: "ö" * chance.randrange(200),
        "bytes": lambda: chance.randbytes(chance.randrange(200)),
        "records": lambda: chance.randbytes(chance.randrange(200)),
        "uuid": lambda: uuid.UUID(int=chance.getrandbits(127) + 1),
        "error_code": lambda: chance.choice(list(ErrorCode)),
        "float64": lambda: chance.random(),
        "timedelta_i32": lambda: timedelta(milliseconds=chance.randrange(1 << 31)),
        "timedelta_i64": lambda: timedelta(milliseconds=chance.randrange(1 << 40)),
        "datetime_i64": lambda: datetime.fromtimestamp(chance.randrange(1 << 31), UTC),
    }
    return make[kafka_type]()


def test_every_response_of_every_version_is_read_as_it_was_written() -> None:
    chance = random.Random(1)
    for key, version in EVERY_RESPONSE:
        entity_type = load_response_schema(key, version)
        for _ in range(3):
            entity = sample(entity_type, chance)
            data = written(entity)
            assert plain(messages.decode_response(key, version, memoryview(data))) == plain(entity)
            assert entity_reader(entity_type)(data, 0)[0] == entity


def test_every_request_of_every_version_is_read_as_it_was_written() -> None:
    chance = random.Random(2)
    for key, version in EVERY_RESPONSE:
        entity = sample(messages.request_type(key, version), chance)
        data = messages.encode_body(entity)
        assert entities.read_entity(type(entity), memoryview(data))[0] == entity
        assert plain(entity_reader(load_request_schema(key, version))(data, 0)[0]) == plain(entity)


def test_every_message_is_written_as_kio_writes_it() -> None:
    chance = random.Random(5)
    for key, version in EVERY_RESPONSE:
        for load in (load_request_schema, load_response_schema):
            entity = sample(load(key, version), chance)
            assert messages.encode_body(entity) == written(entity)


def test_a_truncated_answer_is_a_wire_error_at_every_length() -> None:
    chance = random.Random(3)
    for key, version in chance.sample(EVERY_RESPONSE, 60):
        data = written(sample(load_response_schema(key, version), chance))
        for size in range(0, len(data), max(1, len(data) // 40)):
            with pytest.raises(WireError):
                messages.decode_response(key, version, memoryview(data)[:size])


def test_mutated_answers_are_read_or_refused_and_nothing_else() -> None:
    chance = random.Random(4)
    refused = 0
    for key, version in EVERY_RESPONSE * 20:
        data = bytearray(written(sample(load_response_schema(key, version), chance)))
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        try:
            messages.decode_response(key, version, memoryview(data))
        except WireError:
            refused += 1
    assert refused > 1000


@pytest.mark.parametrize(
    ("version", "data"),
    [
        (13, b"\0\0\0\0" + b"\xff\xff\xff\xff\x0f"),
        (13, b"\0\0\0\0" + b"\xff\xff\xff\xff\x7f"),
        (13, b"\0\0\0\0" + b"\xff\xff\xff\xff\xff\xff"),
        (1, b"\x7f\xff\xff\xff"),
        (1, b"\x80\x00\x00\x00"),
    ],
)
def test_a_claimed_billion_elements_allocates_nothing(version: int, data: bytes) -> None:
    messages.response_type(3, version)
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="MetadataResponse"):
            messages.decode_response(3, version, memoryview(data))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_bytes_after_the_end_are_refused() -> None:
    data = body(messages.response_type(3, 12), {"brokers": [], "topics": []})
    with pytest.raises(WireError, match="2 bytes after its end"):
        messages.decode_response(3, 12, memoryview(data + b"ab"))


def test_a_tagged_field_from_the_future_is_skipped() -> None:
    data = body(messages.response_type(3, 12), {"brokers": [], "topics": [], "cluster_id": "c"})
    assert data.endswith(b"\0")
    future = data[:-1] + b"\x01\x63\x03abc"  # one tag, number 99, three bytes
    assert messages.decode_response(3, 12, memoryview(future)).cluster_id == "c"


def test_an_error_code_from_the_future_is_an_unknown_server_error() -> None:
    data = b"\x7f\xff" + b"\0\0\0\0"
    assert messages.decode_response(18, 0, memoryview(data)).error_code is ErrorCode.unknown_server_error


def test_request_headers_follow_the_version() -> None:
    legacy = messages.request_header(3, 1, correlation_id=7, client_id="me")
    assert legacy == b"\0\x03\0\x01\0\0\0\x07\0\x02me"
    flexible = messages.request_header(3, 12, correlation_id=7, client_id=None)
    assert flexible == b"\0\x03\0\x0c\0\0\0\x07\xff\xff\0"


def test_the_api_versions_answer_has_no_tags_in_its_header() -> None:
    data = memoryview(b"\0\0\0\x05rest")
    assert messages.split_response(18, 4, data) == (5, data[4:])
    assert messages.split_response(3, 1, data) == (5, data[4:])


def test_tags_in_a_response_header_are_skipped() -> None:
    data = memoryview(b"\0\0\0\x05" + b"\x01\x00\x02ab" + b"rest")
    assert messages.split_response(3, 12, data) == (5, memoryview(b"rest"))
    with pytest.raises(WireError):
        messages.split_response(3, 12, memoryview(b"\0\0\0\x05\x01\x00\x7fab"))
    with pytest.raises(WireError, match="no correlation id"):
        messages.split_response(3, 12, memoryview(b"\0\0"))


def test_a_value_that_a_version_does_not_know_is_left_out() -> None:
    values = {"topics": [{"name": "t", "topic_id": None}], "allow_auto_topic_creation": False}
    old = messages.compose(messages.request_type(3, 1), values)
    assert old.topics[0].name == "t"
    assert not hasattr(old, "allow_auto_topic_creation")


def test_a_value_that_does_not_fit_its_field_is_a_wire_error() -> None:
    request = messages.compose(messages.request_type(36, 2), {"auth_bytes": "not bytes but None inside"})
    request = messages.compose(type(request), {"auth_bytes": None})
    with pytest.raises(WireError, match="SaslAuthenticateRequest v2"):
        messages.encode_request(request, correlation_id=1, client_id=None)


def test_apis_are_known_by_name_and_version_range() -> None:
    assert messages.api_key("ListOffsets") == 2
    assert messages.api_name(2) == "ListOffsets"
    assert messages.supported_versions(3)[1] >= 13
    with pytest.raises(UnsupportedFormat, match="4711"):
        messages.supported_versions(4711)
    with pytest.raises(UnsupportedFormat, match="Metadata has no version 99"):
        messages.request_type(3, 99)
