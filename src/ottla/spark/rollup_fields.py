"""Fields of a roll-up: turns `json:user.id`, `header:site` and the like into Spark columns.

Texts come in; checked values go out, and Spark columns made from them: the time of a record, its groups, its numbers,
and whether it could be read. Spark evaluates the columns; nothing runs here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # the customary name
from pyspark.sql.types import DataType, StringType, StructField, StructType

from ottla.errors import ConfigError

ACCEPTED = "json:FIELD, json:FIELD.FIELD, header:NAME, column:NAME, key, topic or partition"
ACCEPTED_TIMES = "json:FIELD, json:FIELD.FIELD, header:NAME, column:NAME or record"
_PATH = re.compile(r"[^.\s]+(?:\.[^.\s]+)*")
_OWN = ("key", "topic", "partition")
_CORRUPT = "_corrupt_record"
_ZONE = r"(?:Z|z|[+-]\d\d:?\d\d)$"
_DATE = r"^\d{4}-\d\d-\d\d$"


@dataclass(frozen=True, slots=True)
class FieldOf:
    """A field of a record."""

    kind: str
    path: str = ""

    @property
    def name(self) -> str:
        """Its name in the results."""
        return re.sub(r"\W", "_", self.path) if self.path else self.kind

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the source that it needs."""
        return {
            "json": ("value",),
            "header": ("headers",),
            "column": (),
            "record": ("timestamp",),
        }.get(self.kind, (self.kind,))

    def text(self, parsed: Column | None) -> Column:
        """The field as text. `parsed` has the used fields of the JSON value."""
        if self.kind == "json":
            assert parsed is not None
            column = parsed
            for name in self.path.split("."):
                column = column.getField(name)
            return column
        if self.kind == "header":
            matching = F.filter("headers", lambda header: header["key"] == F.lit(self.path))
            return F.try_element_at(matching, F.lit(-1))["value"].cast("string")
        return F.col(f"`{self.path}`" if self.kind == "column" else self.kind).cast("string")

    def moment(self, parsed: Column | None) -> Column:
        """The field as a timestamp; null if it cannot be read."""
        if self.kind == "record":
            return F.col("timestamp")
        return _moment(self.text(parsed))


class Kind(Enum):
    """The kind of an aggregate."""

    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    DISTINCT = "distinct"


@dataclass(frozen=True, slots=True)
class Measure:
    """An aggregate: one number of the result."""

    kind: Kind
    field: FieldOf | None = None

    @property
    def name(self) -> str:
        """Its name in the results."""
        return self.kind.value if self.field is None else f"{self.kind.value}_{self.field.name}"

    @property
    def is_number(self) -> bool:
        """Whether it needs numbers. A record with anything else is unreadable."""
        return self.kind in (Kind.SUM, Kind.MIN, Kind.MAX)

    def over(self, column: str) -> Column:
        """The aggregate of a column of values."""
        match self.kind:
            case Kind.COUNT:
                return F.count(F.lit(1))
            case Kind.SUM:
                return F.sum(column)
            case Kind.MIN:
                return F.min(column)
            case Kind.MAX:
                return F.max(column)
            case Kind.DISTINCT:
                return F.approx_count_distinct(column)


def field(text: str) -> FieldOf:
    """Parse `json:user.id` and the like. Raises `ConfigError` for anything else."""
    if text in _OWN:
        return FieldOf(text)
    return _named(text, ACCEPTED)


def time_field(text: str) -> FieldOf:
    """Parse the field of the event time; `record` is Kafka's timestamp. Raises `ConfigError` for anything else."""
    return FieldOf("record") if text == "record" else _named(text, ACCEPTED_TIMES)


def measure(text: str) -> Measure:
    """Parse `count`, `sum(json:amount)`, `min(...)`, `max(...)` or `distinct(...)`. Raises `ConfigError` otherwise."""
    match = re.fullmatch(r"\s*(\w+)\s*(?:\(\s*(.*?)\s*\))?\s*", text)
    kinds = {kind.value: kind for kind in Kind}
    if match is None or match[1] not in kinds or (match[1] == "count") != (not match[2]):
        raise ConfigError(
            f"{text!r} is not a measure; accepted are count, sum(FIELD), min(FIELD), max(FIELD) and"
            f" distinct(FIELD), with FIELD one of {ACCEPTED}"
        )
    return Measure(kinds[match[1]], field(match[2]) if match[2] else None)


def parsed_json(fields: Iterable[FieldOf]) -> Column | None:
    """The JSON value with only these fields, as texts; None if no field is in JSON.

    Raises `ConfigError` if a field is used both as a value and as an object.
    """
    paths = [field.path.split(".") for field in fields if field.kind == "json"]
    if not paths:
        return None
    inner = _struct(paths)
    schema = StructType([*inner.fields, StructField(_CORRUPT, StringType())])
    return F.from_json(F.col("value").cast("string"), schema, {"columnNameOfCorruptRecord": _CORRUPT})


def is_corrupt(parsed: Column) -> Column:
    """Whether the value is not a JSON object."""
    return parsed.isNull() | parsed.getField(_CORRUPT).isNotNull()


def _named(text: str, accepted: str) -> FieldOf:
    kind, _, path = text.partition(":")
    if kind in ("header", "column") and path:
        return FieldOf(kind, path)
    if kind == "json" and _PATH.fullmatch(path):
        return FieldOf(kind, path)
    raise ConfigError(f"{text!r} is not a field of a record; accepted are {accepted}")


def _struct(paths: Sequence[Sequence[str]]) -> StructType:
    tree: dict[str, list[Sequence[str]]] = {}
    for first, *rest in paths:
        tree.setdefault(first, []).append(rest)
    fields = []
    for name, rests in tree.items():
        deeper = [rest for rest in rests if rest]
        if deeper and len(deeper) != len(rests):
            raise ConfigError(f"json:{name} is used as a value and as an object with fields")
        kind: DataType = _struct(deeper) if deeper else StringType()
        fields.append(StructField(name, kind))
    return StructType(fields)


def _moment(text: Column) -> Column:
    """The time that a text means: ISO 8601 (UTC if it has no zone), or a number since 1970.

    The size of the number decides whether it is in seconds, milliseconds, microseconds or nanoseconds.
    """
    number = text.try_cast("double")
    micros = (
        F.when(number < 1e11, number * 1e6)
        .when(number < 1e14, number * 1e3)
        .when(number < 1e17, number)
        .otherwise(number / 1e3)
    )
    iso = (
        F.when(text.rlike(_ZONE), text)
        .when(text.rlike(_DATE), F.concat(text, F.lit("T00:00:00Z")))
        .otherwise(F.concat(text, F.lit("Z")))
    )
    return F.when(number.isNull(), iso.try_cast("timestamp")).when(
        (number >= 0) & (number < 4e18), F.timestamp_micros(micros.cast("long"))
    )
