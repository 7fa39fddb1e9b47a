"""Reads kio's entities from bytes that nobody vouches for.

kio's own reader reserves memory for as many array elements as the bytes claim and ends the process
when it cannot (five bytes are enough), and it refuses error codes and tagged fields newer than itself.
This one follows the same dataclasses, checks every length against the bytes that are there, skips unknown
tags and reads an unknown error code as UNKNOWN_SERVER_ERROR. Bytes go in, an entity and the position after
it come out; whatever is wrong with the bytes is a WireError.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from struct import Struct
from types import NoneType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints
from uuid import UUID

from ottla.errors import ErrorCode, WireError

Read = Callable[[memoryview, int], tuple[Any, int]]
"""Takes bytes and a position; returns one value and the position after it."""
Step = Callable[[memoryview, int, dict[str, Any]], int]
"""Takes bytes, a position and the values so far; adds fields and returns the position after them."""

_FORMATS = {
    "bool": "?",
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "uint16": "H",
    "error_code": "h",
    "int32": "i",
    "uint32": "I",
    "timedelta_i32": "i",
    "int64": "q",
    "uint64": "Q",
    "float64": "d",
    "timedelta_i64": "q",
    "datetime_i64": "q",
    "uuid": "16s",
}
_VARINT_BYTES = 5
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ERROR_CODES = {int(code): code for code in ErrorCode}


class _Hint(NamedTuple):
    """What the annotation of a field says."""

    inner: type
    is_array: bool
    optional: bool


def read_entity(entity_type: type, data: memoryview, start: int = 0) -> tuple[Any, int]:
    """The entity that begins at `start`, and the position after it."""
    try:
        return _entity(entity_type)(data, start)
    except (WireError, ValueError, OverflowError) as exc:
        version = int(entity_type.__version__)  # type: ignore[attr-defined]
        raise WireError(f"{entity_type.__name__} v{version}: {exc}") from exc


def read_varint(data: memoryview, position: int) -> tuple[int, int]:
    """An unsigned varint of at most five bytes, and the position after it."""
    value = 0
    for index in range(_VARINT_BYTES):
        if position + index >= len(data):
            raise WireError(f"ends inside a number at byte {position}")
        byte = data[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise WireError(f"number without end at byte {position}")


def element_type(entity_type: type, name: str) -> type:
    """The type of one element of the array, or of the nested entity, that the field `name` holds."""
    return _hint(entity_type, name).inner


@cache
def _hint(entity_type: type, name: str) -> _Hint:
    hint: Any = get_type_hints(entity_type)[name]
    optional = NoneType in get_args(hint)
    if optional:
        hint = next(arg for arg in get_args(hint) if arg is not NoneType)
    is_array = get_origin(hint) is tuple
    return _Hint(get_args(hint)[0] if is_array else hint, is_array, optional)


@cache
def _entity(entity_type: type) -> Read:
    steps = _steps(entity_type)
    defaults = {f.name: _default(entity_type, f) for f in fields(entity_type) if "tag" in f.metadata}

    def read(data: memoryview, position: int) -> tuple[Any, int]:
        values = dict(defaults)
        for step in steps:
            position = step(data, position, values)
        return entity_type(**values), position

    return read


def _steps(entity_type: type) -> tuple[Step, ...]:
    flexible: bool = entity_type.__flexible__  # type: ignore[attr-defined]
    steps: list[Step] = []
    tagged: dict[int, tuple[str, Read]] = {}
    run: list[Field[Any]] = []  # neighbours of fixed size, read in one step
    for field in fields(entity_type):
        if "tag" in field.metadata:
            tagged[field.metadata["tag"]] = (field.name, _field(entity_type, field, flexible))
        elif field.metadata.get("kafka_type") in _FORMATS and not _hint(entity_type, field.name).is_array:
            run.append(field)
        else:
            steps += [_fixed(entity_type, tuple(run))] if run else []
            steps.append(_named(field.name, _field(entity_type, field, flexible)))
            run = []
    steps += [_fixed(entity_type, tuple(run))] if run else []
    return (*steps, _tags(tagged)) if flexible else tuple(steps)


def _field(entity_type: type, field: Field[Any], flexible: bool) -> Read:
    hint = _hint(entity_type, field.name)
    kafka_type = field.metadata.get("kafka_type")
    if kafka_type is None:
        one = _entity(hint.inner)
        # KIP-893: a nullable struct has a marker byte before it; a tagged one is absent instead.
        one = _nullable(one) if hint.optional and not hint.is_array and "tag" not in field.metadata else one
    else:
        one = _primitive(kafka_type, flexible, optional=hint.optional and not hint.is_array)
    if not hint.is_array:
        return one
    smallest = Struct(">" + _FORMATS[kafka_type]).size if kafka_type in _FORMATS else 1
    return _array(one, flexible=flexible, smallest=smallest, optional=hint.optional)


def _primitive(kafka_type: str, flexible: bool, optional: bool) -> Read:
    if kafka_type in _FORMATS:
        return _single(Struct(">" + _FORMATS[kafka_type]), _converter(kafka_type, optional))
    size = _compact_size if flexible else _short_size if kafka_type == "string" else _long_size
    return _sized(size, str if kafka_type == "string" else bytes, optional)


def _converter(kafka_type: str, optional: bool) -> Callable[[Any], Any] | None:
    if kafka_type == "datetime_i64":
        return _optional_time if optional else _time
    return {
        "error_code": lambda code: _ERROR_CODES.get(code, ErrorCode.unknown_server_error),
        "uuid": lambda raw: UUID(bytes=raw) if any(raw) else None,
        "timedelta_i32": lambda ms: timedelta(milliseconds=ms),
        "timedelta_i64": lambda ms: timedelta(milliseconds=ms),
    }.get(kafka_type)


def _time(milliseconds: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=milliseconds)


def _optional_time(milliseconds: int) -> datetime | None:
    return None if milliseconds < 0 else _time(milliseconds)


def _single(layout: Struct, convert: Callable[[Any], Any] | None) -> Read:
    def read(data: memoryview, position: int) -> tuple[Any, int]:
        end = _end(data, position, layout.size)
        value = layout.unpack_from(data, position)[0]
        return (value if convert is None else convert(value)), end

    return read


def _fixed(entity_type: type, run: tuple[Field[Any], ...]) -> Step:
    layout = Struct(">" + "".join(_FORMATS[field.metadata["kafka_type"]] for field in run))
    names = tuple(field.name for field in run)
    conversions: list[tuple[str, Callable[[Any], Any]]] = []
    for field in run:
        convert = _converter(field.metadata["kafka_type"], _hint(entity_type, field.name).optional)
        conversions += [(field.name, convert)] if convert is not None else []

    def step(data: memoryview, position: int, values: dict[str, Any]) -> int:
        end = _end(data, position, layout.size)
        values.update(zip(names, layout.unpack_from(data, position), strict=True))
        for name, convert in conversions:
            values[name] = convert(values[name])
        return end

    return step


def _named(name: str, read: Read) -> Step:
    def step(data: memoryview, position: int, values: dict[str, Any]) -> int:
        values[name], position = read(data, position)
        return position

    return step


def _sized(size: Read, kind: type[str] | type[bytes], optional: bool) -> Read:
    def read(data: memoryview, position: int) -> tuple[Any, int]:
        length, start = size(data, position)
        if length < 0:
            if not optional:
                raise WireError(f"null at byte {position} where a value must be")
            return None, start
        end = _end(data, start, length)
        return (str(data[start:end], "utf-8") if kind is str else bytes(data[start:end])), end

    return read


def _array(one: Read, *, flexible: bool, smallest: int, optional: bool) -> Read:
    size = _compact_size if flexible else _long_size

    def read(data: memoryview, position: int) -> tuple[Any, int]:
        count, position = size(data, position)
        if count < 0:
            return (None if optional else ()), position
        if count * smallest > len(data) - position:
            raise WireError(f"claims {count} elements at byte {position} of {len(data)}")
        elements = []
        for _ in range(count):
            element, position = one(data, position)
            elements.append(element)
        return tuple(elements), position

    return read


def _compact_size(data: memoryview, position: int) -> tuple[int, int]:
    value, position = read_varint(data, position)
    return value - 1, position


def _short_size(data: memoryview, position: int) -> tuple[int, int]:
    end = _end(data, position, 2)
    return _not_below_null(_INT16.unpack_from(data, position)[0], position), end


def _long_size(data: memoryview, position: int) -> tuple[int, int]:
    end = _end(data, position, 4)
    return _not_below_null(_INT32.unpack_from(data, position)[0], position), end


def _not_below_null(claimed: int, position: int) -> int:
    if claimed < -1:
        raise WireError(f"negative length {claimed} at byte {position}")
    return claimed


def _nullable(one: Read) -> Read:
    def read(data: memoryview, position: int) -> tuple[Any, int]:
        start = _end(data, position, 1)
        return (None, start) if data[position] > 0x7F else one(data, start)

    return read


def _tags(known: dict[int, tuple[str, Read]]) -> Step:
    def step(data: memoryview, position: int, values: dict[str, Any]) -> int:
        count, position = read_varint(data, position)
        for _ in range(count):
            tag, position = read_varint(data, position)
            size, position = read_varint(data, position)
            end = _end(data, position, size)
            if tag in known:
                name, read = known[tag]
                values[name], stopped = read(data, position)
                if stopped != end:
                    raise WireError(f"tagged field {tag} at byte {position} is not {size} bytes long")
            position = end
        return position

    return step


def _default(entity_type: type, field: Field[Any]) -> Any:
    """What an absent tagged field means: its declared default, else zero, empty or an entity of such."""
    if field.default is not MISSING:
        return field.default
    inner = _hint(entity_type, field.name).inner
    if is_dataclass(inner):
        return inner(**{nested.name: _default(inner, nested) for nested in fields(inner)})
    kafka_type = field.metadata["kafka_type"]
    if kafka_type in ("string", "bytes"):
        return "" if kafka_type == "string" else b""
    layout = Struct(">" + _FORMATS[kafka_type])
    return _single(layout, _converter(kafka_type, optional=False))(memoryview(bytes(layout.size)), 0)[0]


def _end(data: memoryview, position: int, size: int) -> int:
    end = position + size
    if end > len(data):
        raise WireError(f"needs {size} bytes at byte {position} of {len(data)}")
    return end
