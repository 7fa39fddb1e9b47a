"""What the answers of the producer benchmark amount to: rows, ratios, goals and a table. Pure.

Comes in: what each run wrote and how long it took. Goes out: plain dictionaries that JSON can hold, and lines of text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
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
    "send_cpu_vs_confluent_produce_100": ("<=", 0.55),
    "send_cpu_vs_confluent_produce_1000": ("<=", 0.65),
    "send_rate_vs_confluent_produce_100": (">=", 1.4),
    "send_rate_vs_confluent_produce_1000": (">=", 1.1),
    "send_many_cpu_vs_confluent_produce_batch_100": ("<=", 0.4),
    "send_many_cpu_vs_confluent_produce_batch_1000": ("<=", 0.6),
    "table_cpu_vs_confluent_produce_batch_100": ("<=", 0.2),
    "table_rate_vs_java_100": (">=", 3.0),
    "table_rate_vs_wire_limit_1000": (">=", 0.85),
    "latency_p99_vs_confluent": ("<=", 1.0),
    "write_ahead_rate_vs_without": (">=", 0.5),
}

_SEND, _MANY, _TABLE = ("ottla", "send"), ("ottla", "send_many"), ("ottla", "send_table")
_WRITE_AHEAD = ("ottla", "send_table, write-ahead")
_PRODUCE, _PRODUCE_BATCH = ("confluent", "produce"), ("confluent", "produce_batch")
_ON_DELIVERY = ("confluent", "produce, on_delivery")
_SEND_BATCH = ("aiokafka", "send_batch")
_JAVA = (("java", "default batches"), ("java", "large batches"))
_LIMIT = (("wire_limit", "same batch"),)

_COMPARED: Compared = {
    "send_cpu_vs_confluent_produce": ("cpu_ns", _SEND, (_PRODUCE,)),
    "send_cpu_vs_confluent_on_delivery": ("cpu_ns", _SEND, (_ON_DELIVERY,)),
    "send_many_cpu_vs_confluent_produce_batch": ("cpu_ns", _MANY, (_PRODUCE_BATCH,)),
    "table_cpu_vs_confluent_produce_batch": ("cpu_ns", _TABLE, (_PRODUCE_BATCH,)),
    "table_cpu_vs_aiokafka_send_batch": ("cpu_ns", _TABLE, (_SEND_BATCH,)),
    "send_rate_vs_confluent_produce": ("records_per_second", _SEND, (_PRODUCE,)),
    "send_many_rate_vs_confluent_produce_batch": ("records_per_second", _MANY, (_PRODUCE_BATCH,)),
    "table_rate_vs_confluent_produce_batch": ("records_per_second", _TABLE, (_PRODUCE_BATCH,)),
    "send_rate_vs_java": ("records_per_second", _SEND, _JAVA),
    "table_rate_vs_java": ("records_per_second", _TABLE, _JAVA),
    "table_rate_vs_wire_limit": ("records_per_second", _TABLE, _LIMIT),
    "write_ahead_rate_vs_without": ("records_per_second", _WRITE_AHEAD, (_TABLE,)),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One workload of the matrix."""

    record_bytes: int
    acks: str
    codec: str

    @property
    def name(self) -> str:
        """In words, for the table."""
        return f"{self.record_bytes:,} B, acks={self.acks}, {self.codec}"

    @property
    def quoted(self) -> bool:
        """Whether `ratios` come from this one: everything acknowledged by all, nothing compressed."""
        return (self.acks, self.codec) == ("all", "none")


def row(cell: Cell, peer: str, variant: str, answers: Sequence[Mapping[str, Any]]) -> Row:
    """What one way to send reached in one workload."""
    return {"peer": peer, "variant": variant, **asdict(cell), **rate_figures(answers, cell.record_bytes)}


def ratios(rows: Sequence[Row], latency: Sequence[Row]) -> dict[str, float]:
    """The figures that are quoted: acks=all, uncompressed. What was not measured is left out."""
    result: dict[str, float] = {}
    for size in (100, 1000):
        result |= {f"{name}_{size}": value for name, value in _of_cell(rows, Cell(size, "all", "none")).items()}
    both = [value for name, value in result.items() if name.startswith("write_ahead_rate_vs_without")]
    if both:
        result["write_ahead_rate_vs_without"] = min(both)
    p99 = {row["peer"]: row["p99_ms"] for row in latency}
    if {"ottla", "confluent"} <= p99.keys():
        result["latency_p99_vs_confluent"] = round(p99["ottla"] / p99["confluent"], 3)
    return result


def ratios_by_cell(rows: Sequence[Row], cells: Iterable[Cell]) -> dict[str, dict[str, float]]:
    """The same ratios for every workload."""
    return {cell.name: _of_cell(rows, cell) for cell in cells}


def _of_cell(rows: Sequence[Row], cell: Cell) -> dict[str, float]:
    return compare((row for row in rows if asdict(cell).items() <= row.items()), _COMPARED)


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """The table, line by line."""
    rows = result["rows"]
    yield from heading_lines(result)
    yield from rate_lines(rows, (Cell(row["record_bytes"], row["acks"], row["codec"]).name for row in rows))
    yield from latency_lines(result["latency"], "latency, 1,000 records a second, 100 B, acks=all")
    yield from ratio_lines(result, "acks=all, uncompressed")
