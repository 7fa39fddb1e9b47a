"""The start benchmark: from the start of a process to its first record, and what memory that took.

Every figure is of a new process; they take turns. See README.md for what the clock covers.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import ottla
from bench import harness
from bench.figures import Goals, Row, heading_lines, ratio_lines, rotated, verdicts
from bench.harness import ROOT, Effort
from bench.stage import Stage, versions

GOALS: Goals = {
    "start_vs_pyarrow": ("<=", 1.6),
    "memory_vs_pyarrow": ("<=", 1.6),
    "help_vs_click": ("<=", 2.0),
    "first_query_vs_jvm": ("<=", 1.5),
}
_REPEATS = 5
"""In each round: a start takes a fraction of a second, and others use the processors now and then."""
_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Contender:
    """A program to be started."""

    name: str
    command: tuple[str, ...]
    needs_topic: bool = True
    is_slow: bool = False
    speaks: bool = True
    """Whether it says when it is there; if not, it is there when it ends."""


def _program(name: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"bench.programs.{name}", *arguments)


CONTENDERS = (
    Contender("import numpy, pyarrow", _program("imports"), needs_topic=False),
    Contender("ottla, read a record", _program("reads")),
    Contender("confluent, read a record", _program("confluent_reads")),
    Contender("ottla, send a record", _program("sends")),
    Contender("confluent, send a record", _program("confluent_sends")),
    Contender("import click", (sys.executable, "-c", "import click"), needs_topic=False, speaks=False),
    Contender(
        "ottla consume --help",
        (sys.executable, "-m", "ottla.cli", "consume", "--help"),
        needs_topic=False,
        speaks=False,
    ),
    Contender("ottla, first query", _program("first_query", "ottla"), is_slow=True),
    Contender("jvm, first query", _program("first_query", "jvm"), is_slow=True),
)

_COMPARED: Mapping[str, tuple[str, str, str]] = {
    "start_vs_pyarrow": ("seconds", "ottla, read a record", "import numpy, pyarrow"),
    "memory_vs_pyarrow": ("memory_mb", "ottla, read a record", "import numpy, pyarrow"),
    "start_vs_confluent": ("seconds", "ottla, read a record", "confluent, read a record"),
    "memory_vs_confluent": ("memory_mb", "ottla, read a record", "confluent, read a record"),
    "send_start_vs_confluent": ("seconds", "ottla, send a record", "confluent, send a record"),
    "help_vs_click": ("seconds", "ottla consume --help", "import click"),
    "first_query_vs_jvm": ("seconds", "ottla, first query", "jvm, first query"),
}
"""By name of the ratio: the figure, ours, theirs."""


def run(effort: Effort) -> dict[str, Any]:
    """Measure everything; about three minutes with full effort."""
    machine = harness.machine()
    found: dict[str, list[Row]] = {}
    with Stage.open() as stage, stage.topic() as topic, stage.topic() as target:
        with ottla.Producer(stage.bootstrap) as producer:
            producer.send(topic, b"one").result(30.0)
        for turn in range(effort.rounds):
            harness.progress(f"round {turn + 1} of {effort.rounds}")
            for contender in rotated([one for one in CONTENDERS if effort.rounds > 1 or not one.is_slow], turn):
                place = (stage.bootstrap, target if "send" in contender.name else topic)
                for _ in range(1 if contender.is_slow or effort.rounds == 1 else _REPEATS):
                    found.setdefault(contender.name, []).append(_started(contender, place))
    rows = [_row(contender.name, found[contender.name]) for contender in CONTENDERS if contender.name in found]
    quoted = ratios(rows)
    return {"bench": "start", "date": harness.today(), "machine": machine, "versions": versions()} | {
        "effort": asdict(effort),
        "rows": rows,
        "skipped": {},
        "ratios": quoted,
        "goals": verdicts(quoted, GOALS),
    }


def _started(contender: Contender, place: tuple[str, str]) -> Row:
    command = [*contender.command, *(place if contender.needs_topic else ())]
    began = time.perf_counter()
    with subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE if contender.speaks else None
    ) as process:
        assert process.stdout is not None
        if contender.speaks:
            line = process.stdout.readline()
            seconds = time.perf_counter() - began
            _, errors = process.communicate(timeout=_SECONDS)
        else:
            line, errors = "{}", ""
            process.communicate(timeout=_SECONDS)
            seconds = time.perf_counter() - began
    if process.returncode or not line:
        raise RuntimeError(f"{contender.name} ended with {process.returncode}: {errors}")
    answer: Row = {"seconds": seconds} | json.loads(line)
    if contender.needs_topic and answer["found"] != 1:
        raise AssertionError(f"{contender.name} found {answer['found']} records instead of one")
    return answer


def _row(name: str, answers: Sequence[Row]) -> Row:
    seconds = [answer["seconds"] for answer in answers]
    row: Row = {
        "name": name,
        "seconds": round(statistics.median(seconds), 3),
        "seconds_spread": {"min": round(min(seconds), 3), "max": round(max(seconds), 3)},
        "samples": len(answers),
    }
    memory = [answer["memory_bytes"] for answer in answers if "memory_bytes" in answer]
    return row | ({"memory_mb": round(statistics.median(memory) / 1e6, 1)} if memory else {})


def ratios(rows: Sequence[Row]) -> dict[str, float]:
    """Ours divided by theirs."""
    found = {row["name"]: row for row in rows}
    return {
        name: round(found[ours][figure] / found[theirs][figure], 3)
        for name, (figure, ours, theirs) in _COMPARED.items()
        if ours in found and theirs in found
    }


def table(result: dict[str, Any]) -> str:
    """For people: time and memory of each program, and the ratios with their goals."""
    return "\n".join(_lines(result))


def _lines(result: Mapping[str, Any]) -> Iterator[str]:
    yield from heading_lines(result)
    yield ""
    yield f"{'from the start of the process':<34}{'seconds':>9}{'of runs':>18}{'memory MB':>11}"
    for row in result["rows"]:
        spread = row["seconds_spread"]
        runs = f"{spread['min']:.2f} - {spread['max']:.2f}"
        yield f"  {row['name']:<32}{row['seconds']:>9.2f}{runs:>18}{row.get('memory_mb', '-'):>11}"
    yield from ratio_lines(result, "ours divided by theirs")
