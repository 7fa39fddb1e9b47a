"""What the answers of the fleet benchmark amount to: rows, ratios, goals and a table. Pure.

Comes in: what each node of each run has done. Goes out: plain dictionaries that JSON can hold, and lines of text.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.figures import Goals, Row, heading_lines, rate_figures, rate_lines, ratio_lines

GOALS: Goals = {
    "fleet_rate_vs_reader_100_sqlite": (">=", 0.95),
    "fleet_rate_vs_reader_100_redis": (">=", 0.95),
    "two_nodes_vs_one": (">=", 1.85),
    "idle_cpu_percent": ("<=", 1.0),
}
_DEFAULT = "one thread"
"""The defaults of a node: that is what is quoted."""
HANDLER_US = 2.0
"""What a record costs where two nodes are compared with one."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One workload."""

    record_bytes: int
    handler_us: float
    nodes: int

    @property
    def name(self) -> str:
        """In words, for the table."""
        cost = f"{self.handler_us:g} us a record" if self.handler_us else "nothing but reading"
        return f"{self.record_bytes} B, {cost}, {self.nodes} {'node' if self.nodes == 1 else 'nodes'}"


def joined(answers: Sequence[Mapping[str, Any]]) -> Row:
    """One run of several nodes: from the first record of any to the end of the last."""
    wall = max(one["ended"] for one in answers) - min(one["began"] for one in answers)
    return {
        "records": sum(one["records"] for one in answers),
        "time": {"wall": wall, "cpu": sum(one["cpu"] for one in answers)},
        "overheads": [value for one in answers for value in one["overheads"]],
    }


def row(cell: Cell, peer: str, variant: str, answers: Sequence[Mapping[str, Any]]) -> Row:
    """What one way to work reached in one workload."""
    result = {"peer": peer, "variant": variant, **asdict(cell), **rate_figures(answers, cell.record_bytes)}
    overheads = [value for answer in answers for value in answer["overheads"]]
    return result | ({"unit_overhead_ms": round(statistics.median(overheads), 3)} if overheads else {})


def idle_percent(answer: Mapping[str, Any]) -> float:
    """Processor time of a node that waits, of one core."""
    share: float = answer["cpu"] / (answer["ended"] - answer["began"])
    return round(100 * share, 3)


def ratios(rows: Sequence[Row], idle: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The figures that are quoted. What was not measured is left out."""
    rates = {(one["peer"], one["variant"], one["handler_us"], one["nodes"]): one["records_per_second"] for one in rows}
    overheads = {
        one["variant"]: one["unit_overhead_ms"] for one in rows if "unit_overhead_ms" in one and not one["handler_us"]
    }
    result: dict[str, float] = {}

    def compare(name: str, ours: tuple[str, str, float, int], theirs: tuple[str, str, float, int]) -> None:
        if ours in rates and theirs in rates:
            result[name] = round(rates[ours] / rates[theirs], 3)

    for store in ("sqlite", "redis"):
        for threads, name in ((_DEFAULT, store), ("two threads", f"{store}_two_threads")):
            fleet = ("ottla", f"{store}, {threads}", 0.0, 1)
            compare(f"fleet_rate_vs_reader_100_{name}", fleet, ("ottla", "Reader.read", 0.0, 1))
        compare(
            f"fleet_rate_vs_confluent_group_{store}",
            ("ottla", f"{store}, {_DEFAULT}", 0.0, 1),
            ("confluent", "consumer group", 0.0, 1),
        )
        compare(
            f"fleet_rate_vs_confluent_share_group_{store}",
            ("ottla", f"{store}, {_DEFAULT}", 0.0, 1),
            ("confluent", "share group", 0.0, 1),
        )
        if f"{store}, {_DEFAULT}" in overheads:
            result[f"unit_overhead_ms_{store}"] = overheads[f"{store}, {_DEFAULT}"]
    for peer, variant, name in (
        ("ottla", f"redis, {_DEFAULT}", "two_nodes_vs_one"),
        ("confluent", "consumer group", "confluent_two_members_vs_one"),
    ):
        compare(name, (peer, variant, HANDLER_US, 2), (peer, variant, HANDLER_US, 1))
    medians = {store: round(statistics.median(values), 3) for store, values in idle.items() if values}
    result |= {f"idle_cpu_percent_{store}": value for store, value in medians.items()}
    return result | ({"idle_cpu_percent": max(medians.values())} if medians else {})


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """The table, line by line."""
    rows = result["rows"]
    yield from heading_lines(result)
    yield from rate_lines(rows, (Cell(one["record_bytes"], one["handler_us"], one["nodes"]).name for one in rows))
    yield from ratio_lines(result, "six partitions, uncompressed")
