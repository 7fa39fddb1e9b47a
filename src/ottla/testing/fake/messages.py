"""Converts frames to kio messages and back, and builds a message of any version from plain values.

The bytes of a request without its length, or a tree of dicts for a response, come in; kio entities and bytes go out. No
schema is written here: kio's classes tell which fields a version has.
"""

from __future__ import annotations

import io
import re
import struct
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import timedelta
from functools import cache
from typing import Any

from ottla.errors import ConfigError, ErrorCode, WireError
from ottla.wire.messages import api_name
from ottla.wire.schemas import (
    api_key_map,
    entity_reader,
    entity_writer,
    load_request_schema,
    load_response_schema,
)

Tree = Mapping[str, Any]

_PREFIX = struct.Struct(">hhi")
_ZEROS: dict[str, object] = {
    "string": "",
    "bytes": b"",
    "records": b"",
    "bool": False,
    "float64": 0.0,
    "error_code": ErrorCode.none,
    "timedelta_i32": timedelta(0),
    "timedelta_i64": timedelta(0),
}


@dataclass(frozen=True, slots=True)
class Incoming:
    """One request; `body` is None if its version is unknown and only the header was read."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: Any


@dataclass(frozen=True, slots=True)
class _Slot:
    """How to fill one field of an entity."""

    name: str
    entity: Any
    """The class of the field's elements, or None for a plain value."""
    is_array: bool
    kafka_type: str | None
    default: object


def api_key(api: str | int) -> int:
    """Return the key of an API given as key, `ListOffsets` or `list_offsets`.

    Raises `ConfigError` for an unknown name.
    """
    if isinstance(api, int):
        return api
    normalized = re.sub("[^a-z]", "", api.lower())
    for key, name in api_key_map.items():
        if name.replace("_", "") == normalized:
            return key
    names = ", ".join(sorted(api_name(key) for key in api_key_map))
    raise ConfigError(f"{api!r} is not the name of a Kafka API; use one of {names}")


def parse(frame: bytes, *, known: bool) -> Incoming:
    """Parse the request in `frame`; without `known`, only the common start of all headers.

    Raises `WireError` if it is unreadable.
    """
    if len(frame) < _PREFIX.size:
        raise WireError(f"a request of {len(frame)} bytes has no header")
    key, version, correlation_id = _PREFIX.unpack_from(frame)
    if not known:
        return Incoming(key, version, correlation_id, None, None)
    schema: Any = load_request_schema(key, version)
    try:
        header, size = entity_reader(schema.__header_schema__)(frame, 0)
        body, _ = entity_reader(schema)(frame, size)
    except Exception as exc:  # kio raises several unrelated exceptions for malformed bytes.
        raise WireError(f"could not parse {api_name(key)} version {version}: {exc}") from exc
    return Incoming(key, version, correlation_id, header.client_id, body)


def peek(frame: bytes) -> tuple[int, int]:
    """Return API key and version of a request; (-1, -1) if it is too short."""
    key, version, _ = _PREFIX.unpack_from(frame) if len(frame) >= _PREFIX.size else (-1, -1, 0)
    return key, version


def answer(key: int, version: int, *, correlation_id: int, tree: Tree) -> bytes:
    """Return the response described by `tree` as bytes, with its length and header."""
    schema: Any = load_response_schema(key, version)
    header_type = schema.__header_schema__
    buffer = io.BytesIO()
    buffer.write(bytes(4))
    entity_writer(header_type)(buffer, header_type(correlation_id=correlation_id))
    entity_writer(schema)(buffer, build(schema, tree))
    length = buffer.tell() - 4
    buffer.seek(0)
    buffer.write(struct.pack(">i", length))
    return buffer.getvalue()


def build(entity_type: Any, tree: Tree) -> Any:
    """Build an entity of any version from a tree with the fields of all versions.

    Fields that this version lacks are left out; fields that the tree lacks get kio's default, or null, empty or zero.
    """
    return entity_type(**{slot.name: _fill(slot, tree) for slot in _slots(entity_type)})


def _fill(slot: _Slot, tree: Tree) -> object:
    value = tree.get(slot.name, MISSING)
    if value is MISSING:
        return slot.default
    if value is None:
        return None
    if slot.entity is not None:
        return tuple(build(slot.entity, item) for item in value) if slot.is_array else build(slot.entity, value)
    if slot.is_array:
        return tuple(value)
    return ErrorCode(value) if slot.kafka_type == "error_code" else value


@cache
def _slots(entity_type: Any) -> tuple[_Slot, ...]:
    hints = typing.get_type_hints(entity_type)
    return tuple(_slot(field, hints[field.name]) for field in fields(entity_type))


def _slot(field: Any, hint: Any) -> _Slot:
    optional = typing.get_origin(hint) in (types.UnionType, typing.Union)
    inner = next(arm for arm in typing.get_args(hint) if arm is not types.NoneType) if optional else hint
    is_array = typing.get_origin(inner) is tuple
    element = typing.get_args(inner)[0] if is_array else inner
    entity = element if isinstance(element, type) and is_dataclass(element) else None
    kafka_type = field.metadata.get("kafka_type")
    default = field.default
    if default is MISSING:
        default = None if optional else () if is_array else build(entity, {}) if entity else _ZEROS.get(kafka_type, 0)
    return _Slot(field.name, entity, is_array, kafka_type, default)
