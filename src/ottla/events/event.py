"""The base of all events: a frozen value that says what happened to a batch, a connection, the buffer or the spool.

Durations are seconds, times are seconds since 1970, sizes end in `_bytes`. An event is about a batch or larger, never
about a record. Events must have no behavior except a line of text; `measures.py` says what is measured. The events
themselves are in a module per subject, so that a client imports only those it emits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from ottla.text import CONTROL, escaped_in_json

__all__ = ["Event", "field_names", "fields_of", "text_of"]

_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_BARE = re.compile(r"[^\s\"=\\]+")


class Event:
    """Something that happened. Subclass it, as a frozen dataclass, for your own events: every sink accepts them.

    `kind` is the name in logs and metrics: the class name in snake case, unless the class sets another. `gauges` has
    the fields that are levels (how much there is) rather than amounts (how much was added). `sets` gives gauges of
    other names a fixed value: what this event says about a state that another event began.
    """

    __slots__ = ()

    kind: ClassVar[str] = "event"
    gauges: ClassVar[frozenset[str]] = frozenset()
    sets: ClassVar[Mapping[str, float]] = MappingProxyType({})

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "kind" not in cls.__dict__:
            cls.kind = _WORD_START.sub("_", cls.__name__).lower()

    def __str__(self) -> str:
        """Return one line: `flushed topic=clicks partition=0 ...`, with quotes if a value has spaces."""
        return " ".join([self.kind, *(f"{name}={_quoted(value)}" for name, value in fields_of(self).items())])


def fields_of(event: Event) -> dict[str, Any]:
    """Return all fields of an event by name, also for a subclass that is not a dataclass."""
    values = {name: getattr(event, name) for name in field_names(type(event))}
    values.update((name, value) for name, value in getattr(event, "__dict__", {}).items() if not name.startswith("_"))
    return values


def field_names(kind: type[Any]) -> tuple[str, ...]:
    """Return the fields that all events of a class have; none if it is not a dataclass."""
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()


def text_of(value: object) -> str:
    """Return a value as text. An exception includes its type, because its text alone is often empty."""
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    return f"{value:.6g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)


def _quoted(value: object) -> str:
    text = text_of(value)
    # The text of a broker's error must not forge a log line, or control the terminal that shows it.
    if _BARE.fullmatch(text) and not CONTROL.search(text):
        return text
    import json  # few events have such a text, and clients start faster without it

    return escaped_in_json(json.dumps(text, ensure_ascii=False))
