"""What the answers of the consumer benchmark amount to: rows, ratios, goals and a table. Pure.

Comes in: how many records each run received and how long it took. Goes out: plain dictionaries that JSON can hold, and
lines of text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from bench.figures import (
    Compared,
    Goals,
    Row,
    compare,
    heading_lines,
    latency_lines,
    rate_figures,
    rate_lines,
    ratio_lines,
)

GOALS: Goals = {
    "read_rate_vs_java_100": (">=", 4.0),
    "read_cpu_vs_confluent_100": ("<=", 0.2),
    "read_cpu_vs_confluent_1000": ("<=", 0.7),
    "read_rate_vs_confluent_1000": (">=", 1.3),
    "records_cpu_vs_confluent_100": ("<=", 0.7),
    "records_rate_vs_confluent_100": (">=", 1.3),
    "read_rate_vs_java_1000": (">=", 1.1),
    "read_rate_vs_wire_limit_1000": (">=", 0.7),
    "count_rate_vs_read_rate_100": (">=", 2.0),
    "zstd_read_cpu_vs_confluent_100": ("<=", 0.5),
    "latency_p99_vs_confluent": ("<=", 1.0),
    "latency_p50_vs_confluent": ("<=", 1.3),
}

LARGE_BATCH, SMALL_BATCH = 64_000, 16_000
"""Bytes before compression: what a busy producer with some patience makes, and the Java producer's default."""

_READ, _VALUE, _BYTES = ("ottla", "read"), ("ottla", "read value"), ("ottla", "read value, as bytes")
_COUNT, _CONSUMER, _SINGLE = ("ottla", "count"), ("ottla", "Consumer"), ("ottla", "Consumer.records")
_CONFLUENT, _AIOKAFKA, _KAFKA_PYTHON = ("confluent", "consume"), ("aiokafka", "getmany"), ("kafka_python", "poll")
_JAVA = (("java", "default fetches"), ("java", "large fetches"))
_LIMIT = (("wire_limit", "one connection"), ("wire_limit", "two connections"))
_RATE, _CPU = "records_per_second", "cpu_ns"

_COMPARED: Compared = {
    "read_rate_vs_java": (_RATE, _READ, _JAVA),
    "read_rate_vs_confluent": (_RATE, _READ, (_CONFLUENT,)),
    "read_rate_vs_wire_limit": (_RATE, _READ, _LIMIT),
    "read_cpu_vs_confluent": (_CPU, _READ, (_CONFLUENT,)),
    "read_cpu_vs_aiokafka": (_CPU, _READ, (_AIOKAFKA,)),
    "read_cpu_vs_kafka_python": (_CPU, _READ, (_KAFKA_PYTHON,)),
    "value_rate_vs_java": (_RATE, _VALUE, _JAVA),
    "value_cpu_vs_confluent": (_CPU, _VALUE, (_CONFLUENT,)),
    "bytes_rate_vs_confluent": (_RATE, _BYTES, (_CONFLUENT,)),
    "bytes_cpu_vs_confluent": (_CPU, _BYTES, (_CONFLUENT,)),
    "count_rate_vs_read_rate": (_RATE, _COUNT, (_READ,)),
    "consumer_rate_vs_java": (_RATE, _CONSUMER, _JAVA),
    "consumer_rate_vs_read_rate": (_RATE, _CONSUMER, (_READ,)),
    "consumer_cpu_vs_confluent": (_CPU, _CONSUMER, (_CONFLUENT,)),
    "records_rate_vs_confluent": (_RATE, _SINGLE, (_CONFLUENT,)),
    "records_cpu_vs_confluent": (_CPU, _SINGLE, (_CONFLUENT,)),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One workload of the matrix."""

    partitions: int
    record_bytes: int
    codec: str
    batch_bytes: int = LARGE_BATCH

    @property
    def name(self) -> str:
        """In words, for the table."""
        parts = "1 partition" if self.partitions == 1 else f"{self.partitions} partitions"
        return f"{self.record_bytes:,} B, {parts}, {self.codec}, {self.batch_bytes // 1000} kB"

    @property
    def quoted(self) -> bool:
        """Whether goals without a codec in their name are about it."""
        return self.codec == "none" and self.batch_bytes == LARGE_BATCH


_PLACES = {1: "one_partition", 6: "six_partitions"}


def cell_of(row: Row) -> Cell:
    """The workload of a row."""
    return Cell(**{field.name: row[field.name] for field in fields(Cell)})


def row(cell: Cell, peer: str, variant: str, answers: Sequence[Mapping[str, Any]]) -> Row:
    """What one way to read reached in one workload."""
    return {"peer": peer, "variant": variant, **asdict(cell), **rate_figures(answers, cell.record_bytes)}


def ratios(rows: Sequence[Row], latency: Sequence[Row]) -> dict[str, float]:
    """The figures that are quoted: the worse one of one partition and six; those with goals also for each."""
    result: dict[str, float] = {}
    for codec, prefix in (("none", ""), ("zstd", "zstd_")):
        for size in (100, 1000):
            for name in _COMPARED:
                full = f"{prefix}{name}_{size}"
                if codec == "none" or full in GOALS:
                    result |= _of_both(rows, full, name, size=size, codec=codec)
    return result | _latency_ratios(latency)


def _of_both(rows: Sequence[Row], full: str, name: str, *, size: int, codec: str) -> dict[str, float]:
    found = {
        place: value
        for partitions, place in _PLACES.items()
        if (value := _of_cell(rows, Cell(partitions, size, codec)).get(name)) is not None
    }
    if not found:
        return {}
    worse = min if _COMPARED[name][0] == _RATE else max
    each = {f"{full}_{place}": value for place, value in found.items()} if full in GOALS else {}
    return {full: worse(found.values()), **each}


def _latency_ratios(latency: Sequence[Row]) -> dict[str, float]:
    found = {(row["peer"], row["variant"]): row for row in latency}
    result: dict[str, float] = {}
    for name, ours, theirs in (
        ("", "Consumer", "poll"),
        ("_following", "Reader, following", "poll"),
        ("_busy", "Consumer, busy program", "poll, busy program"),
    ):
        mine, other = found.get(("ottla", ours)), found.get(("confluent", theirs))
        if mine is not None and other is not None:
            for figure in ("p99", "p50"):
                ratio = mine[f"{figure}_ms"] / other[f"{figure}_ms"]
                result[f"latency_{figure}{name}_vs_confluent"] = round(ratio, 3)
    return result


def ratios_by_cell(rows: Sequence[Row], cells: Iterable[Cell]) -> dict[str, dict[str, float]]:
    """All ratios for every workload."""
    return {cell.name: _of_cell(rows, cell) for cell in cells}


def _of_cell(rows: Sequence[Row], cell: Cell) -> dict[str, float]:
    return compare((row for row in rows if cell_of(row) == cell), _COMPARED)


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """The table, line by line."""
    rows = result["rows"]
    yield from heading_lines(result)
    yield from rate_lines(rows, (cell_of(row).name for row in rows))
    yield from latency_lines(result["latency"], "latency, 1,000 records a second, 100 B, send to receipt")
    yield from ratio_lines(result, "batches of 64 kB; the worse of one partition and six")
