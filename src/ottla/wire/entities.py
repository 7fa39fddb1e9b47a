"""Reads entities of `layouts` and of kio from untrusted bytes.

Comes in: bytes. Goes out: an entity and the position after it, or a `WireError` for anything wrong with the bytes.

This replaces kio's own reader, which reserves memory for as many array elements as the bytes claim and ends the process
if it cannot (five bytes are enough). It also rejects error codes and tagged fields newer than itself. This reader
follows the fields of the same classes, checks every length against the bytes that are left, skips unknown tags, and
reads an unknown error code as UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from struct import Struct
from typing import Any
from uuid import UUID

from ottla.codes import ErrorCode
from ottla.errors import WireError
from ottla.wire.layouts import REQUIRED, Entity, Field

Read = Callable[[memoryview, int], tuple[Any, int]]
"""Takes bytes and a position; returns a value and the position after it."""
Step = Callable[[memoryview, int, dict[str, Any]], int]
"""Takes bytes, a position and the values so far; adds fields and returns the position after them."""

FORMATS = {
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
"""The types of fixed size and their `struct` formats."""
_VARINT_BYTES = 5
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ERROR_CODES = {int(code): code for code in ErrorCode}


def read_entity(entity_type: type, data: memoryview, start: int = 0) -> tuple[Any, int]:
    """Return the entity that begins at `start` and the position after it. Raises `WireError` if it is malformed."""
    try:
        return _entity(entity_type)(data, start)
    except (WireError, ValueError, OverflowError) as exc:
        version = int(entity_type.__version__)  # type: ignore[attr-defined]
        raise WireError(f"{entity_type.__name__} v{version}: {exc}") from exc


def read_varint(data: memoryview, position: int) -> tuple[int, int]:
    """Return an unsigned varint of at most five bytes and the position after it."""
    value = 0
    for index in range(_VARINT_BYTES):
        if position + index >= len(data):
            raise WireError(f"ends inside a number at byte {position}")
        byte = data[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise WireError(f"number without end at byte {position}")


@cache
def fields_of(entity_type: type) -> tuple[Field, ...]:
    """Return the fields of an entity."""
    if issubclass(entity_type, Entity):
        return entity_type.__fields__
    from ottla.wire.schemas import fields_of

    return fields_of(entity_type)


@cache
def names_of(entity_type: type) -> frozenset[str]:
    """Return the names of the fields of an entity."""
    return frozenset(field.name for field in fields_of(entity_type))


@cache
def element_type(entity_type: type, name: str) -> Any:
    """Return the type of an element of the array, or of the nested entity, in the field `name`."""
    return next(field.kind for field in fields_of(entity_type) if field.name == name)


def absent(field: Field) -> Any:
    """Return what an absent tagged field means: its declared default, else zero, empty, or an entity of those."""
    if field.default is not REQUIRED:
        return field.default
    kind = field.kind
    if not isinstance(kind, str):
        return kind(**{nested.name: absent(nested) for nested in fields_of(kind)})
    if kind in ("string", "bytes"):
        return "" if kind == "string" else b""
    layout = Struct(">" + FORMATS[kind])
    return _single(layout, _converter(kind, optional=False))(memoryview(bytes(layout.size)), 0)[0]


@cache
def _entity(entity_type: type) -> Read:
    """Compile the reader of an entity: a list of steps, run in order for each entity."""
    steps = _steps(entity_type)
    defaults = {field.name: absent(field) for field in fields_of(entity_type) if field.tag is not None}

    def read(data: memoryview, position: int) -> tuple[Any, int]:
        values = dict(defaults)
        for step in steps:
            position = step(data, position, values)
        return entity_type(**values), position

    return read


def _steps(entity_type: type) -> tuple[Step, ...]:
    """Split the fields into steps. Tagged fields come last, whatever their order."""
    flexible: bool = entity_type.__flexible__  # type: ignore[attr-defined]
    steps: list[Step] = []
    tagged: dict[int, tuple[str, Read]] = {}
    run: list[Field] = []  # consecutive fields of fixed size, read in one step
    for field in fields_of(entity_type):
        if field.tag is not None:
            tagged[field.tag] = (field.name, _field(field, flexible))
        elif field.kind in FORMATS and not field.is_array:
            run.append(field)
        else:
            steps += [_fixed(tuple(run))] if run else []
            steps.append(_named(field.name, _field(field, flexible)))
            run = []
    steps += [_fixed(tuple(run))] if run else []
    return (*steps, _tags(tagged)) if flexible else tuple(steps)


def _field(field: Field, flexible: bool) -> Read:
    """Return the reader of a field: of a value, of a nested entity, or of an array of them."""
    kind = field.kind
    optional = field.optional and not field.is_array
    if not isinstance(kind, str):
        # KIP-893: a nullable struct has a marker byte before it; a tagged one is absent instead.
        read_value = _nullable(_entity(kind)) if optional and field.tag is None else _entity(kind)
    else:
        read_value = _primitive(kind, flexible, optional=optional)
    if not field.is_array:
        return read_value
    # The smallest size of an element limits how many can be in the remaining bytes.
    smallest = Struct(">" + FORMATS[kind]).size if isinstance(kind, str) and kind in FORMATS else 1
    return _array(read_value, flexible=flexible, smallest=smallest, optional=field.optional)


def _primitive(kafka_type: str, flexible: bool, optional: bool) -> Read:
    """Return the reader of a primitive type. The length of strings and bytes depends on the version."""
    if kafka_type in FORMATS:
        return _single(Struct(">" + FORMATS[kafka_type]), _converter(kafka_type, optional))
    size = _compact_size if flexible else _short_size if kafka_type == "string" else _long_size
    return _sized(size, str if kafka_type == "string" else bytes, optional)


def _converter(kafka_type: str, optional: bool) -> Callable[[Any], Any] | None:
    """Return what turns the raw number into kio's type; None if nothing is to be done."""
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
    """Read one field of fixed size."""

    def read(data: memoryview, position: int) -> tuple[Any, int]:
        end = _end(data, position, layout.size)
        value = layout.unpack_from(data, position)[0]
        return (value if convert is None else convert(value)), end

    return read


def _fixed(run: tuple[Field, ...]) -> Step:
    """Read several neighboring fields of fixed size with one `struct` call."""
    kinds = [str(field.kind) for field in run]
    layout = Struct(">" + "".join(FORMATS[kind] for kind in kinds))
    names = tuple(field.name for field in run)
    conversions: list[tuple[str, Callable[[Any], Any]]] = []
    for field, kind in zip(run, kinds, strict=True):
        convert = _converter(kind, field.optional)
        conversions += [(field.name, convert)] if convert is not None else []

    def step(data: memoryview, position: int, values: dict[str, Any]) -> int:
        end = _end(data, position, layout.size)
        values.update(zip(names, layout.unpack_from(data, position), strict=True))
        for name, convert in conversions:
            values[name] = convert(values[name])
        return end

    return step


def _named(name: str, read: Read) -> Step:
    """Read one field of variable size."""

    def step(data: memoryview, position: int, values: dict[str, Any]) -> int:
        values[name], position = read(data, position)
        return position

    return step


def _sized(size: Read, kind: type[str] | type[bytes], optional: bool) -> Read:
    """Read a string or byte string with its length in front."""

    def read(data: memoryview, position: int) -> tuple[Any, int]:
        length, start = size(data, position)
        if length < 0:
            if not optional:
                raise WireError(f"null at byte {position} where a value must be")
            return None, start
        end = _end(data, start, length)
        return (str(data[start:end], "utf-8") if kind is str else bytes(data[start:end])), end

    return read


def _array(read_element: Read, *, flexible: bool, smallest: int, optional: bool) -> Read:
    """Read an array with its count in front, which is checked before anything is allocated."""
    size = _compact_size if flexible else _long_size

    def read(data: memoryview, position: int) -> tuple[Any, int]:
        count, position = size(data, position)
        if count < 0:
            return (None if optional else ()), position
        if count * smallest > len(data) - position:
            raise WireError(f"claims {count} elements at byte {position} of {len(data)}")
        elements = []
        for _ in range(count):
            element, position = read_element(data, position)
            elements.append(element)
        return tuple(elements), position

    return read


def _compact_size(data: memoryview, position: int) -> tuple[int, int]:
    """Read a compact length, which is one more than the length; 0 is null."""
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


def _nullable(read_struct: Read) -> Read:
    """Read a struct with a marker byte in front: negative for null (KIP-893)."""

    def read(data: memoryview, position: int) -> tuple[Any, int]:
        start = _end(data, position, 1)
        return (None, start) if data[position] > 0x7F else read_struct(data, start)

    return read


def _tags(known: dict[int, tuple[str, Read]]) -> Step:
    """Read the tagged fields that are known, and skip the others (KIP-482)."""

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


def _end(data: memoryview, position: int, size: int) -> int:
    """Return the end of the next `size` bytes, or raise if they are not there."""
    end = position + size
    if end > len(data):
        raise WireError(f"needs {size} bytes at byte {position} of {len(data)}")
    return end
