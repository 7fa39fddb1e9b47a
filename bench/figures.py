"""What the figures of all benchmarks with a broker have in common: medians, percentiles, ratios, goals, tables. Pure.

Comes in: what each run did and how long it took. Goes out: plain dictionaries that JSON can hold, and lines of text.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

Place = TypeVar("Place")
Item = TypeVar("Item")
Row = dict[str, Any]
Way = tuple[str, str]
"""A peer and its variant."""
Goals = Mapping[str, tuple[str, float]]
"""By name of the ratio: "<=" or ">=", and the goal."""
Compared = Mapping[str, tuple[str, Way, tuple[Way, ...]]]
"""By name of the ratio: the figure, which of ours, which of theirs. Ours is divided by the best of theirs."""


@dataclass(frozen=True, slots=True)
class Findings(Generic[Place]):
    """What the peers answered over all rounds."""

    rates: dict[Place, list[dict[str, Any]]] = field(default_factory=dict)
    """Runs, by workload and contender."""
    seconds: dict[Way, list[list[float]]] = field(default_factory=dict)
    """Latencies, a list for each round."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Why something has no figure, by its name."""

    def latency_rows(self) -> list[Row]:
        """A row for each peer whose latencies were taken."""
        return [latency_row(peer, variant, rounds) for (peer, variant), rounds in self.seconds.items()]

    def judged(
        self,
        rows: list[Row],
        *,
        ratios: Callable[[Sequence[Row], Sequence[Row]], dict[str, float]],
        by_cell: dict[str, dict[str, float]],
        goals: Goals,
    ) -> Row:
        """What a benchmark tells in the end: rows, latencies, what has no figure, ratios with their goals."""
        latency = self.latency_rows()
        quoted = ratios(rows, latency)
        return {
            "rows": rows,
            "latency": latency,
            "skipped": self.skipped,
            "ratios": quoted,
            "goals": verdicts(quoted, goals),
            "ratios_by_cell": by_cell,
        }


def rotated(contenders: Sequence[Item], turn: int) -> list[Item]:
    """Everybody once; who begins is another one in each round."""
    first = turn * len(contenders) // 3
    return [*contenders[first:], *contenders[:first]]


def rate_figures(answers: Sequence[Mapping[str, Any]], record_bytes: int) -> Row:
    """The median and spread over all runs; without processor time where a peer does not know it."""
    rates = [answer["records"] / answer["time"]["wall"] * 1e9 for answer in answers]
    cpu = [answer["time"]["cpu"] / answer["records"] for answer in answers]
    result: Row = {
        "records": answers[0]["records"],
        "records_per_second": round(statistics.median(rates)),
        "records_per_second_spread": {"min": round(min(rates)), "max": round(max(rates))},
        "mb_per_second": round(statistics.median(rates) * record_bytes / 1e6, 1),
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


def compare(rows: Iterable[Row], compared: Compared) -> dict[str, float]:
    """The ratios of one workload. What was not measured is left out."""
    found = {(row["peer"], row["variant"]): row for row in rows}
    result = {}
    for name, (figure, ours, theirs) in compared.items():
        best = max if figure == "records_per_second" else min
        others = [found[one][figure] for one in theirs if figure in found.get(one, {})]
        if others and figure in found.get(ours, {}):
            result[name] = round(found[ours][figure] / best(others), 3)
    return result


def verdicts(quoted: Mapping[str, float], goals: Goals) -> dict[str, Row]:
    """Each goal with what was reached: met, missed or not measured."""
    result = {}
    for name, (relation, goal) in goals.items():
        value = quoted.get(name)
        if value is None:
            verdict = "not measured"
        else:
            verdict = "met" if (value <= goal if relation == "<=" else value >= goal) else "missed"
        result[name] = {"goal": f"{relation} {goal}", "value": value, "verdict": verdict}
    return result


def heading_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """What was measured, where, and with which versions."""
    machine = result["machine"]
    yield f"{result['bench']}, {result['date']}, {machine['cpu']}, {machine['usable_cores']} cores, {machine['system']}"
    yield ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    yield f"load before: {', '.join(map(str, machine['load_before']))}"


def rate_lines(rows: Iterable[Row], workloads: Iterable[str]) -> Iterator[str]:
    """A table for each workload; `workloads` has the name of that of each row."""
    heading = ""
    for row, workload in zip(rows, workloads, strict=True):
        if workload != heading:
            heading = workload
            yield f"\n{heading:<42}{'records/s':>12}{'of runs':>24}{'MB/s':>8}{'CPU ns a record':>18}"
        spread = "{min:,} - {max:,}".format(**row["records_per_second_spread"])
        cpu = f"{row['cpu_ns']:,.0f}" if "cpu_ns" in row else "-"
        name = f"  {row['peer']}, {row['variant']}"
        yield f"{name:<42}{row['records_per_second']:>12,}{spread:>24}{row['mb_per_second']:>8,.0f}{cpu:>18}"


def latency_lines(rows: Iterable[Row], what: str) -> Iterator[str]:
    """Percentiles, a line for each peer."""
    yield f"\n{what:<56}{'p50 ms':>10}{'p99 ms':>10}{'max ms':>10}"
    for row in rows:
        name = f"  {row['peer']}, {row['variant']}"
        yield f"{name:<56}{row['p50_ms']:>10.2f}{row['p99_ms']:>10.2f}{row['max_ms']:>10.1f}"


def ratio_lines(result: Mapping[str, Any], what: str) -> Iterator[str]:
    """Goals first, then the other ratios, then what has no figure."""
    yield f"\n{what:<56}{'reached':>10}{'goal':>10}"
    for name, verdict in result["goals"].items():
        value = "-" if verdict["value"] is None else f"{verdict['value']:.2f}"
        yield f"  {name:<54}{value:>10}{verdict['goal']:>10}  {verdict['verdict']}"
    for name, value in result["ratios"].items():
        if name not in result["goals"]:
            yield f"  {name:<54}{value:>10.2f}"
    for name, why in result["skipped"].items():
        yield f"not measured: {name}: {why.splitlines()[-1]}"
