"""What the answers of the producer benchmark amount to: rows, ratios, goals and a table. Pure.

Comes in: what each run wrote and how long it took. Goes out: plain dictionaries that JSON can hold, and lines of text.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

Row = dict[str, Any]

GOALS = {
    "send_cpu_vs_confluent_produce_100": ("<=", 0.35),
    "table_cpu_vs_confluent_produce_batch_100": ("<=", 0.2),
    "table_rate_vs_java_100": (">=", 3.0),
    "send_rate_vs_java_100": (">=", 2.0),
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

_COMPARED = {
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
"""Ours divided by the best of theirs, for a name: the figure, which of ours, which of theirs."""


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
    """The median and spread over all rounds; without processor time where a peer does not know it."""
    rates = [answer["records"] / answer["time"]["wall"] * 1e9 for answer in answers]
    cpu = [answer["time"]["cpu"] / answer["records"] for answer in answers]
    result = {"peer": peer, "variant": variant, **asdict(cell), "records": answers[0]["records"]}
    result |= {
        "records_per_second": round(statistics.median(rates)),
        "records_per_second_spread": {"min": round(min(rates)), "max": round(max(rates))},
        "mb_per_second": round(statistics.median(rates) * cell.record_bytes / 1e6, 1),
    }
    if all(cpu):
        result["cpu_ns"] = round(statistics.median(cpu), 1)
        result["cpu_ns_spread"] = {"min": round(min(cpu), 1), "max": round(max(cpu), 1)}
    return result | {"samples": len(answers)}


def latency_row(peer: str, variant: str, rounds: Sequence[Sequence[float]]) -> Row:
    """Milliseconds: the medians of the rounds' percentiles, and the worst record of all."""
    percentiles = [statistics.quantiles(seconds, n=100, method="inclusive") for seconds in rounds]
    return {
        "peer": peer,
        "variant": variant,
        "p50_ms": round(statistics.median(p[49] for p in percentiles) * 1000, 3),
        "p99_ms": round(statistics.median(p[98] for p in percentiles) * 1000, 3),
        "p99_ms_of_rounds": [round(p[98] * 1000, 3) for p in percentiles],
        "max_ms": round(max(map(max, rounds)) * 1000, 3),
        "samples": sum(map(len, rounds)),
    }


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
    found = {(row["peer"], row["variant"]): row for row in rows if asdict(cell).items() <= row.items()}
    result = {}
    for name, (figure, ours, theirs) in _COMPARED.items():
        best = max if figure == "records_per_second" else min
        others = [found[one][figure] for one in theirs if figure in found.get(one, {})]
        if others and figure in found.get(ours, {}):
            result[name] = round(found[ours][figure] / best(others), 3)
    return result


def verdicts(quoted: Mapping[str, float]) -> dict[str, Row]:
    """Each goal with what was reached: met, missed or not measured."""
    result = {}
    for name, (relation, goal) in GOALS.items():
        value = quoted.get(name)
        if value is None:
            verdict = "not measured"
        else:
            verdict = "met" if (value <= goal if relation == "<=" else value >= goal) else "missed"
        result[name] = {"goal": f"{relation} {goal}", "value": value, "verdict": verdict}
    return result


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """The table, line by line."""
    machine = result["machine"]
    yield f"produce, {result['date']}, {machine['cpu']}, {machine['usable_cores']} cores, {machine['system']}"
    yield ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    yield f"load before: {', '.join(map(str, machine['load_before']))}"
    yield from _rate_lines(result["rows"])
    yield f"\n{'latency, 1,000 records a second, 100 B, acks=all':<52}{'p50 ms':>10}{'p99 ms':>10}{'max ms':>10}"
    for row in result["latency"]:
        name = f"  {row['peer']}, {row['variant']}"
        yield f"{name:<52}{row['p50_ms']:>10.2f}{row['p99_ms']:>10.2f}{row['max_ms']:>10.1f}"
    yield f"\n{'acks=all, uncompressed':<52}{'reached':>10}{'goal':>10}"
    for name, verdict in result["goals"].items():
        value = "-" if verdict["value"] is None else f"{verdict['value']:.2f}"
        yield f"  {name:<50}{value:>10}{verdict['goal']:>10}  {verdict['verdict']}"
    for name, value in result["ratios"].items():
        if name not in result["goals"]:
            yield f"  {name:<50}{value:>10.2f}"
    for name, why in result["skipped"].items():
        yield f"not measured: {name}: {why.splitlines()[-1]}"


def _rate_lines(rows: Sequence[Row]) -> Iterator[str]:
    heading = ""
    for row in rows:
        cell = Cell(row["record_bytes"], row["acks"], row["codec"])
        if cell.name != heading:
            heading = cell.name
            yield f"\n{heading:<36}{'records/s':>12}{'of rounds':>24}{'MB/s':>8}{'CPU ns a record':>18}"
        spread = "{min:,} - {max:,}".format(**row["records_per_second_spread"])
        cpu = f"{row['cpu_ns']:,.0f}" if "cpu_ns" in row else "-"
        name = f"  {row['peer']}, {row['variant']}"
        yield f"{name:<36}{row['records_per_second']:>12,}{spread:>24}{row['mb_per_second']:>8,.0f}{cpu:>18}"
