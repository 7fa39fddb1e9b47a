"""What of an event can be counted, timed or shown as a gauge: one rule for all metric sinks and all events.

Comes in: events. Goes out: readings and labels. The rule goes by the names of fields, so a new event is measured
without a change here. It must not know any metric library.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

from ottla.events.event import Event


class Measure(Enum):
    """How a number is aggregated over time."""

    COUNT = "added up"
    TIME = "a duration in seconds, kept as a distribution"
    GAUGE = "the last value counts"


class Reading(NamedTuple):
    """A number of an event. `name` is `kind.field`."""

    name: str
    measure: Measure
    value: float


def measure_of(kind: type[Event], field: str) -> Measure | None:
    """Return how a field is measured: `records`, `attempts` and `*_bytes` are counted, `seconds` is timed."""
    if field in kind.gauges:
        return Measure.GAUGE
    if field in ("records", "attempts") or field.endswith(("_records", "_bytes")):
        return Measure.COUNT
    if field == "seconds" or field.endswith("_seconds"):
        return Measure.TIME
    return None


def readings(event: Event, fields: Mapping[str, Any]) -> Iterator[Reading]:
    """Yield the numbers in an event, without infinite numbers and NaN, and without negative counts and durations."""
    for field, value in fields.items():
        measure = measure_of(type(event), field)
        if measure is not None and _usable(value) and (value >= 0 or measure is Measure.GAUGE):
            yield Reading(f"{event.kind}.{field}", measure, float(value))
    for name, value in event.sets.items():
        yield Reading(name, Measure.GAUGE, value)


def _usable(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def label_names(fields: Iterable[str]) -> tuple[str, ...]:
    """Return which of the labels link, topic, partition and broker an event with these fields has."""
    names = set(fields)
    plain = [name for name in ("link", "topic", "partition") if name in names]
    return (*plain, *(("broker",) if not names.isdisjoint(_BROKER) else ()))


def labels_of(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of an event. A broker is its id, or its address if the id is unknown."""
    values = {name: fields.get(name) for name in ("link", "topic", "partition")}
    values["broker"] = fields.get("broker_id")
    if values["broker"] is None:
        values["broker"] = fields.get("address")
    return {name: "" if values[name] is None else str(values[name]) for name in label_names(fields)}


_BROKER = ("broker_id", "address")
