"""The audit benchmark: what tallies cost a producer, and how fast topics are counted and compared.

See README.md for what the clock covers. `audit_cpu_share` is the processor time that tallies add to a producer of
tables, divided by what it needs without them: the largest of all sizes and codecs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import ottla
from bench import harness
from bench.figures import Goals, Row, heading_lines, rate_figures, rate_lines, ratio_lines, rotated, verdicts
from bench.harness import Effort
from bench.peers.audit import Job
from bench.peers.audit.ottla import table as rows_of
from bench.stage import Peer, Stage, open_peers, told, versions

MODULE = "bench.peers.audit"
PEER = "ottla"
GOALS: Goals = {"audit_cpu_share": ("<=", 0.1)}
PRODUCING = ("tables", "tables, zstd")
COUNTED = "{}, counted"
COUNTING = ("count by headers", "count by records", "fingerprint")
COMPARING = "compare on Spark"
_RECORDS = {100: 10_000_000, 1000: 2_000_000}
_COMPARED = 10_000_000


@dataclass(frozen=True, slots=True)
class _Findings:
    rates: dict[tuple[int, str], list[Row]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


def run(effort: Effort) -> dict[str, Any]:
    """Measure everything; about five minutes with full effort."""
    machine = harness.machine()
    found = _Findings()
    with Stage.open() as stage, ExitStack() as stack:
        topics = {size: stack.enter_context(_written(stage, size, _scaled(size, effort))) for size in _RECORDS}
        for turn in range(effort.rounds):
            harness.progress(f"round {turn + 1} of {effort.rounds}")
            with open_peers(MODULE, (PEER,)) as peers:
                for size, topic in topics.items():
                    _round(stage, peers[PEER], found, topic, size, _scaled(size, effort), turn)
        harness.progress("comparing")
        records = max(100_000, int(_COMPARED * effort.scale))
        with (
            _written(stage, 100, records) as left,
            _written(stage, 100, records) as right,
            open_peers(MODULE, (PEER,)) as peers,
        ):
            job = Job(bootstrap=stage.bootstrap, topic=left, records=records, record_bytes=100, other=right)
            _ask(peers[PEER], found, COMPARING, job)
    rows = [
        {"record_bytes": size, "peer": PEER, "variant": variant} | rate_figures(answers, size)
        for (size, variant), answers in found.rates.items()
    ]
    quoted = ratios(rows)
    return {"bench": "audit", "date": harness.today(), "machine": machine, "versions": versions()} | {
        "effort": asdict(effort),
        "rows": rows,
        "skipped": found.skipped,
        "ratios": quoted,
        "goals": verdicts(quoted, GOALS),
    }


def _scaled(record_bytes: int, effort: Effort) -> int:
    return max(100_000, int(_RECORDS[record_bytes] * effort.scale))


@contextmanager
def _written(stage: Stage, record_bytes: int, records: int) -> Iterator[str]:
    """A topic to be counted."""
    rows = rows_of(record_bytes)
    with stage.topic() as topic:
        with ottla.Producer(stage.bootstrap, acks=1) as producer:
            for _ in range(max(1, records // len(rows))):
                producer.send_table(topic, rows)
        yield topic


def _round(stage: Stage, peer: Peer, found: _Findings, topic: str, record_bytes: int, records: int, turn: int) -> None:
    producing = (*PRODUCING, *map(COUNTED.format, PRODUCING))
    for variant in rotated((*producing, *COUNTING), turn):
        job = Job(bootstrap=stage.bootstrap, topic=topic, records=records, record_bytes=record_bytes)
        if variant not in producing:
            _ask(peer, found, variant, job)
            continue
        with stage.topic() as target:
            answer = _ask(peer, found, variant, Job(**asdict(job) | {"topic": target}))
            if answer is not None and stage.records(target) != answer["records"] + answer["warmup"]:
                raise AssertionError(f"{variant}: {answer} were sent, {stage.records(target)} arrived")


def _ask(peer: Peer, found: _Findings, variant: str, job: Job) -> dict[str, Any] | None:
    def ask() -> tuple[dict[str, Any], str | None]:
        answer = peer.ask({"kind": "rate", "variant": variant, "job": asdict(job)})
        return answer, answer.get("skipped")

    answer = told(found.skipped, f"{variant}, {job.record_bytes} B", ask)
    if answer is not None:
        found.rates.setdefault((job.record_bytes, variant), []).append(answer)
    return answer


def ratios(rows: Sequence[Row]) -> dict[str, float]:
    """What tallies add to a producer, and how counting compares with reading fingerprints."""
    cpu = {(row["record_bytes"], row["variant"]): row["cpu_ns"] for row in rows if "cpu_ns" in row}
    result: dict[str, float] = {}
    for size in _RECORDS:
        for variant in PRODUCING:
            plain, counted = cpu.get((size, variant)), cpu.get((size, COUNTED.format(variant)))
            if plain and counted:
                codec = variant.removeprefix("tables").replace(", ", "_")
                result[f"audit_cpu_share{codec}_{size}"] = round((counted - plain) / plain, 3)
        whole = cpu.get((size, "fingerprint"))
        for variant, name in (("count by headers", "headers"), ("count by records", "records")):
            if whole and (size, variant) in cpu:
                result[f"count_{name}_cpu_vs_fingerprint_{size}"] = round(cpu[size, variant] / whole, 3)
    shares = [value for name, value in result.items() if name.startswith("audit_cpu_share")]
    return {"audit_cpu_share": max(shares), **result} if shares else result


def table(result: dict[str, Any]) -> str:
    """For people: rates and processor time, and the ratios with their goals."""
    return "\n".join(_lines(result))


def _lines(result: Mapping[str, Any]) -> Iterator[str]:
    yield from heading_lines(result)
    yield from rate_lines(result["rows"], (f"{row['record_bytes']:,} B" for row in result["rows"]))
    yield from ratio_lines(result, "shares of the producer's own processor time; counting divided by fingerprinting")
