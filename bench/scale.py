"""The scale benchmark: the same records over 1, 100, 1,000 and 5,000 partitions, produced, read, and by a group of two.

What a client does for each batch, partition and request shows here, where the other benchmarks show what it does for
each record. See README.md for what the clock covers.
"""

from __future__ import annotations

import math
import resource
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import ottla
from bench import harness
from bench.figures import Goals, Row, heading_lines, rate_figures, rate_lines, ratio_lines, rotated, verdicts
from bench.harness import Effort
from bench.peers.scale import Job
from bench.peers.scale.ottla import tables
from bench.stage import Peer, Stage, open_peers, told, versions

MODULE = "bench.peers.scale"
PARTITIONS = (1, 100, 1000, 5000)
QUOTED, BASE, MANY = 1000, 1, 5000
GOALS: Goals = {
    "produce_cpu_vs_confluent_1000": ("<=", 0.6),
    "produce_rate_vs_confluent_1000": (">=", 1.2),
    "read_cpu_vs_confluent_1000": ("<=", 0.7),
    "read_rate_vs_confluent_1000": (">=", 1.2),
    "produce_growth_1000": ("<=", 3.0),
    "read_growth_1000": ("<=", 3.0),
    "idle_cpu_5000": ("<=", 2.0),
}
_RECORDS = 1_000_000
_FEW_PARTITIONS = (1, 20)
_IDLE_SECONDS = 10.0
_HEAP_BYTES = 2 << 30
_SETTINGS = {
    # Two files for each partition are mapped, and take this much each; what is written here needs far less.
    "log.index.size.max.bytes": str(1 << 16),
    # Else it writes the positions of all partitions to the disk again and again.
    "log.flush.offset.checkpoint.interval.ms": "600000",
    "log.flush.start.offset.checkpoint.interval.ms": "600000",
}
_FILES = 20_000
"""That the broker may have open: three for each partition, and its connections."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to do it."""

    what: str
    peer: str
    variant: str


CONTENDERS = (
    Contender("produce", "ottla", "send_table"),
    Contender("produce", "confluent", "produce"),
    Contender("produce", "ottla", "send_many"),
    Contender("produce", "ottla", "send"),
    Contender("read", "ottla", "read"),
    Contender("read", "confluent", "consume"),
    Contender("read", "ottla", "Consumer"),
    Contender("group", "ottla", "group of two"),
    Contender("group", "confluent", "group of two"),
)
_IDLE = (("ottla", "idle"), ("confluent", "idle"))

_COMPARED: Mapping[str, tuple[str, tuple[str, str], tuple[str, str]]] = {
    "produce_cpu_vs_confluent": ("cpu_ns", ("produce", "send_table"), ("produce", "produce")),
    "produce_rate_vs_confluent": ("records_per_second", ("produce", "send_table"), ("produce", "produce")),
    "send_many_cpu_vs_confluent": ("cpu_ns", ("produce", "send_many"), ("produce", "produce")),
    "send_cpu_vs_confluent": ("cpu_ns", ("produce", "send"), ("produce", "produce")),
    "read_cpu_vs_confluent": ("cpu_ns", ("read", "read"), ("read", "consume")),
    "read_rate_vs_confluent": ("records_per_second", ("read", "read"), ("read", "consume")),
    "consumer_cpu_vs_confluent": ("cpu_ns", ("read", "Consumer"), ("read", "consume")),
    "consumer_rate_vs_confluent": ("records_per_second", ("read", "Consumer"), ("read", "consume")),
}
"""By name of the ratio, without the number of partitions: the figure, ours, theirs."""
_GROWING = {
    "produce_growth": ("ottla", "send_table"),
    "read_growth": ("ottla", "read"),
    "consumer_growth": ("ottla", "Consumer"),
    "confluent_produce_growth": ("confluent", "produce"),
    "confluent_read_growth": ("confluent", "consume"),
}


@dataclass(frozen=True, slots=True)
class _Findings:
    rates: dict[tuple[int, Contender], list[Row]] = field(default_factory=dict)
    idle: dict[str, list[float]] = field(default_factory=dict)
    """Percent of a core, by peer."""
    skipped: dict[str, str] = field(default_factory=dict)


def run(effort: Effort) -> dict[str, Any]:
    """Measure everything; about ten minutes with full effort."""
    machine = harness.machine()
    found = _Findings()
    sizes = PARTITIONS if effort.scale >= 1.0 else _FEW_PARTITIONS
    records = max(20_000, int(_RECORDS * effort.scale))
    _allow_files()
    with Stage.open(heap_bytes=_HEAP_BYTES, settings=_SETTINGS) as stage, ExitStack() as stack:
        topics = {}
        for partitions in sizes:
            harness.progress(f"writing: {partitions} partitions")
            topics[partitions] = stack.enter_context(_written(stage, partitions, records))
        for turn in range(effort.rounds):
            with open_peers(MODULE, (one.peer for one in CONTENDERS)) as peers:
                for partitions in sizes:
                    if partitions == MANY and turn:
                        continue  # one round of these takes as long as one of all others
                    harness.progress(f"round {turn + 1} of {effort.rounds}: {partitions} partitions")
                    _round(stage, peers, found, topics[partitions], partitions, records, turn)
                if turn < max(1, effort.rounds - 1):
                    harness.progress(f"round {turn + 1} of {effort.rounds}: idle")
                    seconds = _IDLE_SECONDS if effort.scale >= 1.0 else 1.0
                    _be_idle(peers, found, stage, topics[sizes[-1]], sizes[-1], seconds)
    rows = [
        {"partitions": partitions, "what": one.what, "peer": one.peer, "variant": one.variant}
        | rate_figures(found.rates[partitions, one], 108)
        for partitions in sizes
        for one in CONTENDERS
        if (partitions, one) in found.rates
    ]
    quoted = ratios(rows) | {
        f"{'' if peer == 'ottla' else peer + '_'}idle_cpu_{sizes[-1]}": round(statistics.median(percents), 2)
        for peer, percents in found.idle.items()
    }
    return {"bench": "scale", "date": harness.today(), "machine": machine, "versions": versions()} | {
        "effort": asdict(effort),
        "rows": rows,
        "skipped": found.skipped,
        "ratios": quoted,
        "goals": verdicts(quoted, GOALS),
    }


def _allow_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextmanager
def _written(stage: Stage, partitions: int, records: int) -> Iterator[str]:
    """A topic to be read: tables of 100,000 rows, each of them on the broker before the next one, so that there are
    batches of 100 records in a thousand partitions."""
    with stage.topic(partitions) as topic:
        with ottla.Producer(stage.bootstrap, acks=1, batching=ottla.Batching(linger=0.2)) as producer:
            for table in tables(records):
                producer.send_table(topic, table)
                producer.flush(120.0)
        written = stage.records(topic, partitions)
        if written != records:
            raise AssertionError(f"{records} records were written, the broker has {written}")
        yield topic


def _round(
    stage: Stage, peers: Mapping[str, Peer], found: _Findings, topic: str, partitions: int, records: int, turn: int
) -> None:
    """Everybody once."""
    with stage.topic(partitions) as target:
        for one in rotated(CONTENDERS, turn):
            if one.what == "group" and partitions == 1:
                continue  # the second member would have nothing
            place = target if one.what == "produce" else topic
            job = Job(bootstrap=stage.bootstrap, topic=place, partitions=partitions, records=records)
            before = stage.records(target, partitions) if one.what == "produce" else 0
            name = f"{one.what}, {partitions} partitions, {one.peer}, {one.variant}"
            answer = _ask(peers, found, one.peer, one.variant, job, name)
            if answer is None:
                continue
            if one.what == "produce":
                arrived = stage.records(target, partitions) - before
                if arrived != answer["records"] + answer["warmup"]:
                    raise AssertionError(f"{name}: {answer} were sent, {arrived} arrived")
            elif answer["records"] != records and one.what == "read":
                raise AssertionError(f"{name}: {records} records were there, {answer['records']} came")
            found.rates.setdefault((partitions, one), []).append(answer)


def _be_idle(
    peers: Mapping[str, Peer], found: _Findings, stage: Stage, topic: str, partitions: int, seconds: float
) -> None:
    job = Job(bootstrap=stage.bootstrap, topic=topic, partitions=partitions, records=0, seconds=seconds)
    for peer, variant in _IDLE:
        answer = _ask(peers, found, peer, variant, job, f"idle, {partitions} partitions, {peer}")
        if answer is not None:
            found.idle.setdefault(peer, []).append(100.0 * answer["time"]["cpu"] / answer["time"]["wall"])


def _ask(
    peers: Mapping[str, Peer], found: _Findings, peer: str, variant: str, job: Job, name: str
) -> dict[str, Any] | None:
    def ask() -> tuple[dict[str, Any], str | None]:
        answer = peers[peer].ask({"kind": "rate", "variant": variant, "job": asdict(job)})
        return answer, answer.get("skipped")

    return told(found.skipped, name, ask)


def ratios(rows: Sequence[Row]) -> dict[str, float]:
    """Ours divided by theirs for each number of partitions, and each way divided by itself with one partition."""
    found = {(row["partitions"], row["what"], row["variant"]): row for row in rows}
    cpu = {(row["partitions"], row["peer"], row["variant"]): row.get("cpu_ns", math.nan) for row in rows}
    result: dict[str, float] = {}
    for partitions in dict.fromkeys(row["partitions"] for row in rows):
        for name, (figure, ours, theirs) in _COMPARED.items():
            if (partitions, *ours) in found and (partitions, *theirs) in found:
                mine, other = found[partitions, *ours][figure], found[partitions, *theirs][figure]
                result[f"{name}_{partitions}"] = round(mine / other, 3)
        for name, way in _GROWING.items():
            if partitions != BASE and (partitions, *way) in cpu and (BASE, *way) in cpu:
                result[f"{name}_{partitions}"] = round(cpu[partitions, *way] / cpu[BASE, *way], 3)
    return result


def table(result: dict[str, Any]) -> str:
    """For people: rates and processor time for each number of partitions, and the ratios with their goals."""
    return "\n".join(_lines(result))


def _lines(result: Mapping[str, Any]) -> Iterator[str]:
    yield from heading_lines(result)
    yield from rate_lines(
        result["rows"], (f"{row['what']}, {row['partitions']:,} partitions" for row in result["rows"])
    )
    yield from ratio_lines(result, "ours divided by theirs; idle: percent of a core")
