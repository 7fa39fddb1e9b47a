"""kio's side of a comparison: entities to bytes, and to trees of plain values that are compared across classes."""

from __future__ import annotations

import io
from typing import Any

from kio.serial import entity_writer

from ottla.wire import entities


def written(entity: Any) -> bytes:
    """The bytes of one of kio's entities, by kio."""
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def plain(value: Any) -> Any:
    """An entity, of kio's or of ours, as a tree of its values."""
    if isinstance(value, tuple):
        return [plain(one) for one in value]
    entity_type: Any = type(value)
    if not hasattr(entity_type, "__flexible__"):
        return value
    return {field.name: plain(getattr(value, field.name)) for field in entities.fields_of(entity_type)}
