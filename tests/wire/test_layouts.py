"""The messages of `layouts` against kio's classes: equal values, equal bytes, and no crash on malformed bytes."""

from __future__ import annotations

import random
import tracemalloc
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema import errors as kio_errors
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader
from tests.by_kio import plain, written

from ottla.errors import ErrorCode, WireError, error_row
from ottla.wire import entities, layouts, messages, schemas
from ottla.wire.layouts import Field

LAID_OUT = [key for key, api in layouts.APIS.items() if api.response]
LOADED = {"request": load_request_schema, "response": load_response_schema}
OURS: dict[str, Any] = {"request": messages.request_type, "response": messages.response_type}
EVERY = [
    pytest.param(kind, key, version, id=f"{messages.api_name(key)}-{version}-{kind}")
    for key in LAID_OUT
    for version in schema_name_map[api_key_map[key]]
    for kind in LOADED
]
_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def of(entity_type: Any) -> st.SearchStrategy[Any]:
    """Entities of one of kio's classes."""
    return st.builds(entity_type, **{field.name: _values(field) for field in schemas.fields_of(entity_type)})


def _values(field: Field) -> st.SearchStrategy[Any]:
    values = st.lists(_one(field.kind), max_size=3).map(tuple) if field.is_array else _one(field.kind)
    return st.none() | values if field.optional and field.tag is None else values


def _one(kind: str | type) -> st.SearchStrategy[Any]:
    if not isinstance(kind, str):
        return of(kind)
    if kind in _BITS:
        half = 1 << (_BITS[kind] - 1)
        return st.integers(-half, half - 1)
    return {
        "bool": st.booleans(),
        "string": st.text(max_size=200),
        "bytes": st.binary(max_size=200),
        "uuid": st.uuids(),
        "error_code": st.sampled_from(kio_errors.ErrorCode),
        "timedelta_i32": st.integers(-(1 << 31), (1 << 31) - 1).map(lambda ms: timedelta(milliseconds=ms)),
        "timedelta_i64": st.integers(0, 1 << 40).map(lambda ms: timedelta(milliseconds=ms)),
    }[kind]


def longest(entity_type: Any, chance: random.Random) -> Any:
    """An entity with something in every field, by kio's class."""

    def sample(kind: Any) -> Any:
        if not isinstance(kind, str):
            return longest(kind, chance)
        known = {"string": "some text", "bytes": b"some bytes", "bool": True, "error_code": kio_errors.ErrorCode.none}
        known |= dict.fromkeys(("timedelta_i32", "timedelta_i64"), timedelta(seconds=chance.randrange(1000)))
        return None if kind == "uuid" else known.get(kind, chance.randrange(100))

    def value(field: Field) -> Any:
        return (sample(field.kind), sample(field.kind)) if field.is_array else sample(field.kind)

    return entity_type(**{field.name: value(field) for field in schemas.fields_of(entity_type)})


@pytest.mark.parametrize(("kind", "key", "version"), EVERY)
@settings(max_examples=15)
@given(data=st.data())
def test_kios_bytes_are_read_with_equal_values_and_written_as_they_were(
    kind: str, key: int, version: int, data: st.DataObject
) -> None:
    entity = data.draw(of(LOADED[kind](key, version)))
    body = written(entity)
    ours, end = entities.read_entity(OURS[kind](key, version), memoryview(body))
    assert end == len(body)
    assert plain(ours) == plain(entity)
    assert messages.encode_body(ours) == body


@pytest.mark.parametrize(("kind", "key", "version"), EVERY)
def test_the_fields_are_kios(kind: str, key: int, version: int) -> None:
    def described(fields: tuple[Field, ...]) -> list[Any]:
        return [
            field._replace(kind=field.kind if isinstance(field.kind, str) else _described(field.kind))
            if field.default is layouts.REQUIRED
            else (field.name, field.default, type(field.default) if field.default in (True, False) else None)
            for field in fields
        ]

    def _described(entity_type: type) -> Any:
        return (entity_type.__name__, described(entities.fields_of(entity_type)))

    assert _described(OURS[kind](key, version)) == _described(LOADED[kind](key, version))
    assert OURS[kind](key, version).__flexible__ == LOADED[kind](key, version).__flexible__


@pytest.mark.parametrize(("kind", "key", "version"), EVERY)
def test_truncated_bytes_are_a_wire_error_at_every_length(kind: str, key: int, version: int) -> None:
    body = memoryview(written(longest(LOADED[kind](key, version), random.Random(1))))
    for size in range(len(body)):
        with pytest.raises(WireError):
            entities.read_entity(OURS[kind](key, version), body[:size])


@pytest.mark.parametrize(("kind", "key", "version"), EVERY)
def test_changed_bytes_are_read_or_refused_and_take_no_memory(kind: str, key: int, version: int) -> None:
    chance = random.Random(2)
    body = written(longest(LOADED[kind](key, version), chance))
    entity_type = OURS[kind](key, version)
    if not body:
        return
    tracemalloc.start()
    try:
        for _ in range(300):
            changed = bytearray(body)
            position = chance.randrange(len(changed))
            if chance.random() < 0.5:  # an impossible length
                changed[position : position + 4] = chance.choice(
                    (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f", b"\x80\0\0\0")
                )
            else:
                changed[position] = chance.randrange(256)
            try:
                entities.read_entity(entity_type, memoryview(changed))
            except WireError:
                pass
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@settings(max_examples=500)
@given(st.sampled_from(EVERY), st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(case: Any, data: bytes) -> None:
    kind, key, version = case.values
    try:
        entities.read_entity(OURS[kind](key, version), memoryview(data))
    except WireError:
        pass


def test_apis_have_kios_versions_and_names() -> None:
    for key, api in layouts.APIS.items():
        name = api_key_map[key]
        versions = schema_name_map[name]
        assert (api.lowest, api.highest) == (min(versions), max(versions))
        assert api.name.lower() == name.replace("_", "")
        assert messages.api_key(api.name) == key
        for version in versions:
            assert messages.is_flexible(key, version) == load_request_schema(key, version).__flexible__


def test_error_codes_are_kios() -> None:
    assert {(code.name, int(code)) for code in ErrorCode} == {(code.name, int(code)) for code in kio_errors.ErrorCode}
    for code in kio_errors.ErrorCode:
        assert ErrorCode(int(code)).retriable == code.retriable
        assert error_row(int(code)).retriable == code.retriable


def test_an_entity_shows_what_it_has_and_takes_nothing_else() -> None:
    kind = messages.request_type(18, 3)
    entity = kind(client_software_name="ottla", client_software_version="1")
    assert repr(entity) == "ApiVersionsRequest(client_software_name='ottla', client_software_version='1')"
    assert entity == kind(client_software_version="1", client_software_name="ottla")
    assert entity != kind(client_software_name="ottla", client_software_version="2")
    with pytest.raises(TypeError, match="ApiVersionsRequest v3 needs client_software_version"):
        kind(client_software_name="ottla")
    with pytest.raises(TypeError, match="ApiVersionsRequest v3 has no colour"):
        kind(client_software_name="ottla", client_software_version="1", colour="red")


@pytest.mark.parametrize(
    ("key", "version", "fields"),
    [
        (3, 0, {"topics": None}),
        (3, 9, {"topics": [{"name": None}], "include_topic_authorized_operations": False}),
        (2, 1, {"replica_id": 1 << 31, "topics": []}),
        (18, 3, {"client_software_name": "ottla", "client_software_version": b"1"}),
        (17, 0, {"mechanism": "x" * 40_000}),
        (22, 0, {"transactional_id": None, "transaction_timeout": timedelta(days=100)}),
    ],
)
def test_a_value_that_does_not_fit_is_a_wire_error(key: int, version: int, fields: dict[str, Any]) -> None:
    values = {"include_cluster_authorized_operations": False, **fields}
    entity = messages.compose(messages.request_type(key, version), values)
    with pytest.raises(WireError, match=f"cannot write {messages.api_name(key)}Request v{version}: "):
        messages.encode_body(entity)


def test_kio_reads_what_is_written_here() -> None:
    request = messages.compose(
        messages.request_type(3, 13), {"topics": None, "include_topic_authorized_operations": True}
    )
    theirs: Any = entity_reader(load_request_schema(3, 13))(messages.encode_body(request), 0)[0]
    assert theirs.topics is None
    assert theirs.allow_auto_topic_creation
