"""What an event is: a frozen value that says what happened to a batch, a connection, the buffer or the spool.

Times are seconds, moments are seconds since the epoch, sizes end in `_bytes`. An event is about a batch or larger,
never about a record. They carry no behaviour beyond a line of text; what is measured of them is in `measures.py`. The
events themselves are in one module for each subject, so that a client imports those that it emits.
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
    """Something that happened. Subclass it, as a frozen dataclass, for events of your own: every sink takes them.

    `kind` is the name in logs and metrics, the class name in snake case unless the class sets another. `gauges` names
    fields that are levels (how much there is) and not amounts (how much was added). `sets` gives gauges of
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
        """One line: `flushed topic=clicks partition=0 ...`, with quotes where a value has spaces."""
        return " ".join([self.kind, *(f"{name}={_quoted(value)}" for name, value in fields_of(self).items())])


def fields_of(event: Event) -> dict[str, Any]:
    """All fields of an event by name, also of a subclass that is no dataclass."""
    found = {name: getattr(event, name) for name in field_names(type(event))}
    found.update((name, value) for name, value in getattr(event, "__dict__", {}).items() if not name.startswith("_"))
    return found


def field_names(kind: type[Any]) -> tuple[str, ...]:
    """The fields that all events of a class have; none if it is no dataclass."""
    return tuple(one.name for one in fields(kind)) if is_dataclass(kind) else ()


def text_of(value: object) -> str:
    """A value as text; an exception with its type, since the text alone is often empty."""
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    return f"{value:.6g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)


def _quoted(value: object) -> str:
    text = text_of(value)
    # The text of a broker's error must not forge a line of the log, or steer the terminal that shows it.
    if _BARE.fullmatch(text) and not CONTROL.search(text):
        return text
    import json  # few events have such a text, and a client begins without it

    return escaped_in_json(json.dumps(text, ensure_ascii=False))
