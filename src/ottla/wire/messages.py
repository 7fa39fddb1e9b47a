"""Control messages: every protocol request and response except Produce and Fetch, as entities of `layouts` or of kio.

Comes in: requests as entities (`compose` builds one from plain values), responses as bytes. Goes out: request header
and body without the 4-byte frame size, and response entities. Malformed bytes raise `WireError`. This module must not
know about sockets, clocks, or which version was negotiated.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from struct import Struct
from typing import Any, ClassVar, Protocol

from ottla.errors import UnsupportedFormat, WireError
from ottla.wire import entities, layouts
from ottla.wire.entity_writer import write_entity

__all__ = [
    "Encoded",
    "Message",
    "api_key",
    "api_name",
    "compose",
    "data_type",
    "decode_response",
    "encode_body",
    "encode_request",
    "is_flexible",
    "request_header",
    "request_type",
    "response_type",
    "split_response",
    "supported_versions",
]

API_VERSIONS = 18
_CORRELATION = Struct(">i")
_HEADER = Struct(">hhi")
_LENGTH = Struct(">h")


class Message(Protocol):
    """A request, for example a MetadataRequest."""

    __api_key__: ClassVar[Any]
    __version__: ClassVar[Any]
    __flexible__: ClassVar[bool]


class Encoded:
    """A request whose body was written elsewhere."""

    __slots__ = ("__api_key__", "__flexible__", "__version__", "body")

    def __init__(self, api_key: int, version: int, body: bytes) -> None:
        self.__api_key__ = api_key
        self.__version__ = version
        self.__flexible__ = is_flexible(api_key, version)
        self.body = body


def encode_request(message: Message, *, correlation_id: int, client_id: str | None) -> bytes:
    """Encode request header and body, without the frame size. Raises `WireError` like `encode_body`."""
    header = request_header(
        message.__api_key__, message.__version__, correlation_id=correlation_id, client_id=client_id
    )
    return header + encode_body(message)


def encode_body(message: Message | Encoded) -> bytes:
    """Encode the body alone. Raises `WireError`, naming the message, if a value does not fit its field."""
    if isinstance(message, Encoded):
        return message.body
    try:
        return write_entity(message)
    except Exception as exc:
        raise WireError(f"cannot write {type(message).__name__} v{message.__version__}: {exc}") from exc


def request_header(api_key: int, version: int, *, correlation_id: int, client_id: str | None) -> bytes:
    """Encode the header of a request whose body is written elsewhere: v2 for flexible versions, else v1."""
    name = _client_name(client_id)
    # Header v2 ends with tagged fields, here none.
    return _HEADER.pack(api_key, version, correlation_id) + (name + b"\x00" if is_flexible(api_key, version) else name)


@lru_cache(maxsize=64)
def _client_name(client_id: str | None) -> bytes:
    """Encode the client id, a legacy string in both versions: a broker reads it before it knows the API."""
    if client_id is None:
        return _LENGTH.pack(-1)
    name = client_id.encode()
    if len(name) > 32767:
        raise WireError(f"the client id has {len(name)} bytes, at most 32767 fit")
    return _LENGTH.pack(len(name)) + name


def split_response(api_key: int, version: int, frame: memoryview) -> tuple[int, memoryview]:
    """Return the correlation id of a response and its body, after the response header."""
    if len(frame) < 4:
        raise WireError(f"a response of {len(frame)} bytes has no correlation id")
    correlation_id: int = _CORRELATION.unpack_from(frame)[0]
    # KIP-511: the response to ApiVersions always has header v0, because versions are not known yet.
    if api_key == API_VERSIONS or not is_flexible(api_key, version):
        return correlation_id, frame[4:]
    return correlation_id, frame[_skip_tags(frame, 4) :]


def decode_response(api_key: int, version: int, body: memoryview) -> Any:
    """Decode the response entity in `body`. Raises `WireError` for short, malformed or leftover bytes."""
    entity_type = response_type(api_key, version)
    entity, end = entities.read_entity(entity_type, body)
    if end != len(body):
        raise WireError(f"{entity_type.__name__} v{version}: {len(body) - end} bytes after its end")
    return entity


def compose(entity_type: type, values: Mapping[str, Any]) -> Any:
    """Build an entity from plain values: nested entities are mappings, arrays are sequences.

    Values that this version of the message does not have are left out, so one mapping serves all versions. Check the
    version first if leaving a value out would change the meaning.
    """
    known = entities.names_of(entity_type)
    return entity_type(**{name: _inner(entity_type, name, v) for name, v in values.items() if name in known})


def _inner(entity_type: type, name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return compose(entities.element_type(entity_type, name), value)
    if isinstance(value, (list, tuple)):
        return tuple(_inner(entity_type, name, element) for element in value)
    return value


@cache
def request_type(api_key: int, version: int) -> type:
    """Return the class of a request."""
    _check_version(api_key, version)
    if _has_layout(api_key):
        return layouts.request_type(api_key, version)
    from ottla.wire import schemas

    return schemas.load_request_schema(api_key, version)


@cache
def response_type(api_key: int, version: int) -> type:
    """Return the class of a response."""
    _check_version(api_key, version)
    if _has_layout(api_key):
        return layouts.response_type(api_key, version)
    from ottla.wire import schemas

    return schemas.load_response_schema(api_key, version)


def data_type(name: str, version: int) -> type:
    """Return the class of data that is neither request nor response, such as a member's assignment, by kio's name."""
    from ottla.wire import schemas

    return schemas.data_type(name, version)


def _has_layout(api_key: int) -> bool:
    return api_key in layouts.APIS and bool(layouts.APIS[api_key].response)


def _check_version(api_key: int, version: int) -> None:
    lowest, highest = supported_versions(api_key)
    if not lowest <= version <= highest:
        name = api_name(api_key)
        raise UnsupportedFormat(f"{name} has no version {version}: versions {lowest} to {highest} are supported")


@cache
def supported_versions(api_key: int) -> tuple[int, int]:
    """Return the lowest and highest supported version of an API. Raises `UnsupportedFormat` for an unknown key."""
    if api_key in layouts.APIS:
        api = layouts.APIS[api_key]
        return api.lowest, api.highest
    from ottla.wire import schemas

    try:
        versions = schemas.schema_name_map[schemas.api_key_map[api_key]]
    except KeyError as exc:
        raise UnsupportedFormat(f"unknown API key {api_key}") from exc
    return min(versions), max(versions)


@cache
def is_flexible(api_key: int, version: int) -> bool:
    """Whether this version has tagged fields and compact lengths (KIP-482)."""
    _check_version(api_key, version)
    if api_key in layouts.APIS:
        return version >= layouts.APIS[api_key].flexible
    return bool(request_type(api_key, version).__flexible__)  # type: ignore[attr-defined]


@cache
def api_name(api_key: int) -> str:
    """Return Kafka's name of an API, for example ListOffsets."""
    if api_key in layouts.APIS:
        return layouts.APIS[api_key].name
    from ottla.wire import schemas

    name = schemas.api_key_map.get(api_key)
    return f"API {api_key}" if name is None else "".join(word.capitalize() for word in name.split("_"))


@cache
def api_key(name: str) -> int:
    """Return the key of an API by Kafka's name. Raises `UnsupportedFormat` if there is none."""
    from ottla.wire import schemas

    keys = [key for key in schemas.api_key_map if api_name(key).lower() == name.lower()]
    if not keys:
        raise UnsupportedFormat(f"unknown API {name!r}")
    return keys[0]


def _skip_tags(data: memoryview, position: int) -> int:
    count, position = entities.read_varint(data, position)
    for _ in range(count):
        _, position = entities.read_varint(data, position)
        size, position = entities.read_varint(data, position)
        position += size
        if position > len(data):
            raise WireError(f"a response header claims {size} bytes of tags beyond its {len(data)} bytes")
    return position
