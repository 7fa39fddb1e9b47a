"""What of an event can be counted, timed or drawn as a level: one rule for all metric sinks and all events.

Events come in, readings and labels go out. The rule goes by the names of fields, so that an event that somebody adds
tomorrow is measured without a change here; it knows no metric library.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

from ottla.events.event import Event


class Measure(Enum):
    """How a number is to be summed up over time."""

    COUNT = "added up"
    TIME = "a duration in seconds, kept as a distribution"
    GAUGE = "the last value counts"


class Reading(NamedTuple):
    """One number of one event; `name` is `kind.field`."""

    name: str
    measure: Measure
    value: float


def measure_of(kind: type[Event], field: str) -> Measure | None:
    """How a field is measured: `records`, `attempts` and `*_bytes` are counted, `seconds` is timed, the rest is not."""
    if field in kind.gauges:
        return Measure.GAUGE
    if field in ("records", "attempts") or field.endswith(("_records", "_bytes")):
        return Measure.COUNT
    if field == "seconds" or field.endswith("_seconds"):
        return Measure.TIME
    return None


def readings(event: Event, fields: Mapping[str, Any]) -> Iterator[Reading]:
    """The numbers in an event. What is no finite number is left out, and so is a negative count or duration."""
    for field, value in fields.items():
        measure = measure_of(type(event), field)
        if measure is not None and _usable(value) and (value >= 0 or measure is Measure.GAUGE):
            yield Reading(f"{event.kind}.{field}", measure, float(value))
    for name, value in event.sets.items():
        yield Reading(name, Measure.GAUGE, value)


def _usable(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def label_names(fields: Iterable[str]) -> tuple[str, ...]:
    """Which of the labels topic, partition and broker an event with these fields has."""
    names = set(fields)
    found = {"topic": "topic" in names, "partition": "partition" in names, "broker": not names.isdisjoint(_BROKER)}
    return tuple(name for name, present in found.items() if present)


def labels_of(fields: Mapping[str, Any]) -> dict[str, str]:
    """The labels of an event; a broker is its id, or its address where the id is not known."""
    values = {"topic": fields.get("topic"), "partition": fields.get("partition"), "broker": fields.get("broker_id")}
    if values["broker"] is None:
        values["broker"] = fields.get("address")
    return {name: "" if values[name] is None else str(values[name]) for name in label_names(fields)}


_BROKER = ("broker_id", "address")
