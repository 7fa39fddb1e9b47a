"""The mirror benchmark: topics from one real broker to another, by our mirror and by MirrorMaker 2.

Both brokers, the data and the machine are the same for everybody; every run is a process of its own with a target topic
of its own. The clock runs from the first record that the target has to the last, so that starting a JVM costs nobody
anything; processor time is that of the copying process in the same span. See README.md.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from bench import harness
from bench.figures import Goals, rotated, verdicts
from bench.harness import ROOT, Effort
from bench.peers.mirror import Job, mirrormaker
from bench.stage import Stage, versions
from bench.writing import fill
from ottla.admin import Admin, OffsetSpec
from ottla.errors import OttlaError
from ottla.model import TopicPartition

GOALS: Goals = {
    "mirror_cpu_vs_mm2": ("<=", 0.05),
    "mirror_rate_vs_mm2": (">=", 4.0),
    "zstd_mirror_cpu_vs_mm2": ("<=", 0.05),
    "mirror_rate_vs_wire_limit": (">=", 0.7),
    "spark_mirror_rate_vs_local": (">=", 0.8),
}
_SECONDS = 240.0
_PAUSE = 0.01
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cell:
    """One topic to copy."""

    record_bytes: int
    codec: str
    partitions: int = 1

    @property
    def name(self) -> str:
        """In words, for the table."""
        parts = "" if self.partitions == 1 else f", {self.partitions} partitions"
        return f"{self.record_bytes:,} B, {self.codec}{parts}"


CELLS = (Cell(100, "none"), Cell(1000, "none"), Cell(1000, "zstd"))
_FOR_SPARK = Cell(1000, "none", 2)
_BYTES = 600_000_000
_PEERS = ("wire_limit", "ottla", "mirrormaker")


def run(effort: Effort) -> dict[str, Any]:
    """Measure everything; about ten minutes with full effort."""
    machine = harness.machine()
    mirrormaker.jars()
    runs: dict[tuple[Cell, str], list[dict[str, float]]] = {}
    with Stage.open() as source, Stage.open() as target, tempfile.TemporaryDirectory() as folder:
        for cell in (*CELLS, _FOR_SPARK):
            peers = ("ottla", "spark") if cell is _FOR_SPARK else _PEERS
            with _written(source, cell, effort.scale) as (topic, records, size):
                for turn in range(effort.rounds):
                    for peer in rotated(peers, turn):
                        harness.progress(f"{cell.name}, round {turn + 1} of {effort.rounds}: {peer}")
                        job = Job(
                            source=source.bootstrap,
                            target=target.bootstrap,
                            topic=topic,
                            prefix=f"{peer[:5].replace('_', '-')}{uuid4().hex[:8]}",
                            codec=cell.codec,
                            partitions=cell.partitions,
                            folder=folder,
                        )
                        figures = _copied(peer, job, records, size)
                        runs.setdefault((cell, peer), []).append(figures)
    rows = [_row(cell, peer, figures) for (cell, peer), figures in runs.items()]
    quoted = ratios(rows)
    return {"bench": "mirror", "date": harness.today(), "machine": machine} | {
        "versions": versions() | {"mirrormaker": mirrormaker.VERSION},
        "effort": asdict(effort),
        "rows": rows,
        "ratios": quoted,
        "goals": verdicts(quoted, GOALS),
    }


def ratios(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The figures that are quoted: the worse of both record sizes for what is not compressed."""
    by_place = {(row["record_bytes"], row["codec"], row["partitions"], row["peer"]): row for row in rows}

    def compared(figure: str, ours: str, theirs: str, *cell: object) -> float | None:
        left, right = by_place.get((*cell, ours)), by_place.get((*cell, theirs))  # type: ignore[arg-type]
        return None if left is None or right is None else left[figure] / right[figure]

    plain = ((100, "none", 1), (1000, "none", 1))
    result: dict[str, float | None] = {}
    for size, *rest in plain:
        result[f"mirror_cpu_vs_mm2_{size}"] = compared("cpu_s_per_gb", "ottla", "mirrormaker", size, *rest)
        result[f"mirror_rate_vs_mm2_{size}"] = compared("mb_per_second", "ottla", "mirrormaker", size, *rest)
        result[f"mirror_rate_vs_wire_limit_{size}"] = compared("mb_per_second", "ottla", "wire_limit", size, *rest)
    for name, worst in (("mirror_cpu_vs_mm2", max), ("mirror_rate_vs_mm2", min), ("mirror_rate_vs_wire_limit", min)):
        values = [value for size, *_ in plain if (value := result[f"{name}_{size}"]) is not None]
        result[name] = worst(values) if values else None
    result["zstd_mirror_cpu_vs_mm2"] = compared("cpu_s_per_gb", "ottla", "mirrormaker", 1000, "zstd", 1)
    result["zstd_mirror_rate_vs_mm2"] = compared("mb_per_second", "ottla", "mirrormaker", 1000, "zstd", 1)
    result["spark_mirror_rate_vs_local"] = compared("mb_per_second", "spark", "ottla", 1000, "none", 2)
    return {name: round(value, 3) for name, value in result.items() if value is not None}


def table(result: dict[str, Any]) -> str:
    """For people: rates, processor time, and the ratios with their goals."""
    lines = [f"{'topic':<28}{'peer':<14}{'MB/s':>8}{'CPU s/GB':>10}"]
    for row in result["rows"]:
        figures = f"{row['mb_per_second']:>8.0f}{row['cpu_s_per_gb']:>10.2f}"
        lines.append(f"{row['cell']:<28}{row['peer']:<14}{figures}")
    lines += [f"{name} = {value}" for name, value in result["ratios"].items()]
    lines += [f"{name}: {goal['verdict']} ({goal['goal']})" for name, goal in result["goals"].items()]
    return "\n".join(lines)


@contextmanager
def _written(source: Stage, cell: Cell, scale: float) -> Iterator[tuple[str, int, int]]:
    """A topic of the source with its records and its size, and a small one beside it for those who warm up."""
    wanted = int(_BYTES * scale) // cell.record_bytes
    with source.topic(cell.partitions) as topic, Admin(source.bootstrap) as admin:
        admin.create_topic(f"{topic}-small", partitions=cell.partitions, replicas=1)
        options = {"record_bytes": cell.record_bytes, "partitions": cell.partitions, "codec": cell.codec}
        fill(source, f"{topic}-small", 1000, **options)  # type: ignore[arg-type]
        records = fill(source, topic, wanted, batch_bytes=500_000, **options)  # type: ignore[arg-type]
        size = sum(path.stat().st_size for path in source.folder.glob(f"clusters/**/{topic}-[0-9]/*.log"))
        yield topic, records, size
        admin.delete_topics(f"{topic}-small")


def _copied(peer: str, job: Job, records: int, size: int) -> dict[str, float]:
    """Start a peer and watch the target until everything is there."""
    name = f"{job.prefix}.{job.topic}"
    log = Path(job.folder) / f"{job.prefix}.log"
    command = [sys.executable, "-m", "bench.peers.mirror", peer, json.dumps(asdict(job))]
    with log.open("wb") as output, Admin(job.target) as admin:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
        try:
            first = last = None
            deadline = time.monotonic() + _SECONDS
            while last is None:
                there = _end(admin, name, job.partitions)
                now, cpu = time.monotonic(), _cpu(process.pid)
                if there > job.partitions and first is None:
                    first = now, cpu, there
                if there >= records:
                    last = now, cpu
                failed = process.poll() not in (None, 0)
                if failed or now > deadline:
                    raise RuntimeError(f"{peer}: {there:,} of {records:,} records\n{log.read_text()[-2000:]}")
                time.sleep(_PAUSE)
            assert first is not None
        finally:
            process.terminate()
            process.wait(30)
            if name in admin.topic_names():
                admin.delete_topics(name)
    share = max(0.0, (records - first[2]) / records)
    seconds = max(last[0] - first[0], _PAUSE)
    return {"mb_per_second": size * share / seconds / 1e6, "cpu_s_per_gb": (last[1] - first[1]) / (size * share / 1e9)}


def _end(admin: Admin, topic: str, partitions: int) -> int:
    """How many offsets the target has; 0 before the topic exists."""
    try:
        ends = admin.list_offsets([TopicPartition(topic, n) for n in range(partitions)], OffsetSpec.LATEST, timeout=1)
    except OttlaError:
        return 0
    return sum(end.offset for end in ends.values())


def _cpu(pid: int) -> float:
    """The processor time of a process and its ended children, and of those that Spark has started, in seconds."""
    total = 0.0
    for process in _family(pid):
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15])) / _TICKS
    return total


def _family(pid: int) -> list[int]:
    """A process and its descendants: a JVM starts children from any of its threads."""
    try:
        files = list(Path(f"/proc/{pid}/task").glob("*/children"))
        children = [int(child) for file in files for child in file.read_text().split()]
    except OSError:
        return [pid]
    return [pid, *(member for child in children for member in _family(child))]


def _row(cell: Cell, peer: str, figures: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    row: dict[str, Any] = {"cell": cell.name, "peer": peer, **asdict(cell), "samples": len(figures)}
    for name in ("mb_per_second", "cpu_s_per_gb"):
        values = [run[name] for run in figures]
        row[name] = round(statistics.median(values), 3)
        row[f"{name}_spread"] = {"min": round(min(values), 3), "max": round(max(values), 3)}
    return row
