"""What the answers of the Spark benchmark amount to: rows, ratios, goals and a table. Pure.

Comes in: how many records each run moved and how long it took. Goes out: plain dictionaries that JSON can hold, and
lines of text.
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
    "read_noop_vs_jvm_100": (">=", 3.0),
    "read_noop_vs_jvm_1000": (">=", 1.8),
    "archive_parquet_vs_jvm_100": (">=", 5.0),
    "archive_parquet_vs_jvm_1000": (">=", 2.5),
    "write_vs_jvm_100": (">=", 1.5),
    "microbatch_overhead_vs_jvm": ("<=", 1.5),
}

_RATE = "records_per_second"
_COMPARED: Compared = {
    "read_noop_vs_jvm": (_RATE, ("ottla", "read to noop"), (("jvm", "read to noop"),)),
    "limit_of_python_vs_jvm": (_RATE, ("ottla", "read nothing to noop"), (("jvm", "read to noop"),)),
    "archive_parquet_vs_jvm": (_RATE, ("ottla", "archive"), (("jvm", "archive"), ("jvm", "archive, snappy"))),
    "archive_locally_vs_jvm": (
        _RATE,
        ("ottla", "archive, without Spark"),
        (("jvm", "archive"), ("jvm", "archive, snappy")),
    ),
    "write_vs_jvm": (_RATE, ("ottla", "write"), (("jvm", "write"),)),
    "write_exactly_once_vs_jvm": (_RATE, ("ottla", "write, exactly once"), (("jvm", "write"),)),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One workload."""

    record_bytes: int

    @property
    def name(self) -> str:
        """In words, for the table."""
        return f"{self.record_bytes:,} B, 4 partitions"


def row(cell: Cell, peer: str, variant: str, answers: Sequence[Mapping[str, Any]]) -> Row:
    """What one way reached in one workload."""
    return {"peer": peer, "variant": variant, **asdict(cell), **rate_figures(answers, cell.record_bytes)}


def ratios(rows: Sequence[Row], latency: Sequence[Row]) -> dict[str, float]:
    """The figures that are quoted. What was not measured is left out."""
    found = {f"{name}_{size}": value for size in (100, 1000) for name, value in _of_cell(rows, Cell(size)).items()}
    medians = {(row["peer"], row["variant"]): row["p50_ms"] for row in latency}
    theirs = [value for (peer, _), value in medians.items() if peer == "jvm"]
    ours = medians.get(("ottla", "micro-batches"))
    if ours is not None and theirs:
        found["microbatch_overhead_vs_jvm"] = round(ours / min(theirs), 3)
    return found


def ratios_by_cell(rows: Sequence[Row], cells: Iterable[Cell]) -> dict[str, dict[str, float]]:
    """All ratios for every workload."""
    return {cell.name: _of_cell(rows, cell) for cell in cells}


def _of_cell(rows: Sequence[Row], cell: Cell) -> dict[str, float]:
    return compare((row for row in rows if row["record_bytes"] == cell.record_bytes), _COMPARED)


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """The table, line by line."""
    rows = result["rows"]
    yield from heading_lines(result)
    yield from rate_lines(rows, (Cell(row["record_bytes"]).name for row in rows))
    yield from latency_lines(result["latency"], "a micro-batch of 10 records")
    yield from ratio_lines(result, "against the best of the connector's rows")
