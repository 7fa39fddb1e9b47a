"""kio's classes, for the messages that `layouts` does not have, and their fields.

This must stay the only module that imports kio: two threads that need it at once then wait for each other here.
`messages` imports it when it first needs one of its messages, because importing kio takes long.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from importlib.util import find_spec
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

if find_spec("hypothesis") is not None:
    # kio imports hypothesis if it is installed, which looks into a numpy that another thread may be importing.
    import numpy  # noqa: F401

from kio.index import load_entity_schema, load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from ottla.wire.layouts import REQUIRED, Field

__all__ = [
    "api_key_map",
    "data_type",
    "entity_reader",
    "entity_writer",
    "fields_of",
    "load_request_schema",
    "load_response_schema",
    "schema_name_map",
]


def data_type(name: str, version: int) -> type:
    """Return the class of data that is neither request nor response."""
    return load_entity_schema(name, version, EntityType.data)


def fields_of(entity_type: Any) -> tuple[Field, ...]:
    """Return the fields of one of kio's classes."""
    hints = get_type_hints(entity_type)
    return tuple(_field(field, hints[field.name]) for field in fields(entity_type))


def _field(field: Any, hint: Any) -> Field:
    optional = NoneType in get_args(hint)
    if optional:
        hint = next(arg for arg in get_args(hint) if arg is not NoneType)
    is_array = get_origin(hint) is tuple
    kind = field.metadata.get("kafka_type") or (get_args(hint)[0] if is_array else hint)
    default = REQUIRED if field.default is MISSING else field.default
    return Field(field.name, kind, is_array, optional, field.metadata.get("tag"), default)
