"""Writes entities as bytes, field by field.

Comes in: an entity of `layouts` or of kio. Goes out: its bytes. A value that does not fit its field raises an error of
some kind; `messages.encode_body` turns it into a `WireError`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from struct import Struct
from typing import Any

from ottla.errors import WireError
from ottla.wire.entities import FORMATS, absent, fields_of
from ottla.wire.layouts import Field
from ottla.wire.primitives import compact_length, unsigned_varint

Write = Callable[[Any], bytes]

_SHORT = Struct(">h")
_LONG = Struct(">i")


def write_entity(entity: Any) -> bytes:
    """Encode an entity."""
    entity_type: Any = type(entity)
    return _entity(entity_type)(entity)


@cache
def _entity(entity_type: type) -> Write:
    """Compile the writer of an entity."""
    flexible: bool = entity_type.__flexible__  # type: ignore[attr-defined]
    fields = fields_of(entity_type)
    plain = [(field.name, _field(field, flexible)) for field in fields if field.tag is None]
    tagged = sorted((field for field in fields if field.tag is not None), key=lambda field: field.tag or 0)
    tags = [(field.tag or 0, field.name, _field(field, flexible), absent(field)) for field in tagged]

    def write(entity: Any) -> bytes:
        parts = [write_field(getattr(entity, name)) for name, write_field in plain]
        return b"".join([*parts, _tags(entity, tags)] if flexible else parts)

    return write


def _tags(entity: Any, tags: list[tuple[int, str, Write, Any]]) -> bytes:
    """Encode the tagged fields that differ from what their absence means."""
    parts = []
    for tag, name, write, default in tags:
        value = getattr(entity, name)
        if value != default:
            content = write(value)
            parts.append(unsigned_varint(tag) + unsigned_varint(len(content)) + content)
    return b"".join([unsigned_varint(len(parts)), *parts])


def _field(field: Field, flexible: bool) -> Write:
    # A tagged field that is null is left out.
    optional = field.optional and field.tag is None
    write_value = _value(field, flexible, optional=optional and not field.is_array)
    if not field.is_array:
        return write_value
    return _array(write_value, compact_length if flexible else _LONG.pack, optional=optional)


def _value(field: Field, flexible: bool, *, optional: bool) -> Write:
    """Return the writer of a single value, without the array around it."""
    kind = field.kind
    if not isinstance(kind, str):
        return _nullable(_entity(kind)) if optional else _entity(kind)
    if kind in FORMATS:
        return _fixed(kind)
    size = compact_length if flexible else _SHORT.pack if kind == "string" else _LONG.pack
    return _sized(size, str.encode if kind == "string" else bytes, optional=optional)


def _fixed(kind: str) -> Write:
    """Return the writer of a type of fixed size. Null is all zeros for a uuid, and -1 for a time."""
    pack = Struct(">" + FORMATS[kind]).pack
    if kind == "uuid":
        return lambda value: bytes(16) if value is None else value.bytes
    if kind == "datetime_i64":
        return lambda value: pack(-1 if value is None else round(value.timestamp() * 1000))
    if kind in ("timedelta_i32", "timedelta_i64"):
        return lambda value: pack(round(value.total_seconds() * 1000))
    return pack


def _sized(size: Write, encoded: Write, *, optional: bool) -> Write:
    """Write a string or byte string with its length in front."""

    def write(value: Any) -> bytes:
        if value is None:
            return _null(size, optional)
        content = encoded(value)
        return size(len(content)) + content

    return write


def _array(write_element: Write, size: Write, *, optional: bool) -> Write:
    """Write an array with its count in front."""

    def write(values: Any) -> bytes:
        if values is None:
            return _null(size, optional)
        return b"".join([size(len(values)), *map(write_element, values)])

    return write


def _null(size: Write, optional: bool) -> bytes:
    """Write null as the length -1. Raises `WireError` if the field is not nullable."""
    if not optional:
        raise WireError("null where a value must be")
    return size(-1)


def _nullable(write_struct: Write) -> Write:
    # KIP-893: a marker byte comes first.
    return lambda value: b"\xff" if value is None else b"\x01" + write_struct(value)
