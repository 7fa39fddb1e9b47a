"""The fleet benchmark: the work on a topic as units, against a plain reader and against groups of another client.

A topic is written once; every node is a process of its own, and all of a run start together. See README.md for what is
done, what the clock covers and whom it favours.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from bench import harness
from bench.figures import rotated, verdicts
from bench.fleet_figures import GOALS, HANDLER_US, Cell, idle_percent, joined, lines, ratios, row
from bench.harness import Effort
from bench.peers.fleet import Job
from bench.stage import Peer, Stage, open_peers, told, versions
from bench.writing import fill
from ottla.cluster.ports import HOST, free_ports
from ottla.cluster.process import end
from ottla.cluster.redis import find_redis, password, start_redis, wait_for_redis

MODULE = "bench.peers.fleet"
PARTITIONS = 6
RECORD_BYTES = 100
_RECORDS = 6_000_000
_FEWER_RECORDS = 1_200_000
"""Where a record costs something, or a peer is slow."""
_FEWEST_RECORDS = 60_000
_IDLE_SECONDS = 10.0
_REDIS_SECONDS = 20.0
STORES = ("sqlite", "redis")


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to do one workload."""

    peer: str
    way: str
    """What the peer is asked for."""
    cell: Cell
    store: str = ""
    is_slow: bool = False

    @property
    def variant(self) -> str:
        """For the table."""
        return f"{self.store}, {self.way}" if self.store else self.way


_PLAIN = Cell(RECORD_BYTES, 0.0, 1)
_COSTLY = tuple(Cell(RECORD_BYTES, HANDLER_US, nodes) for nodes in (1, 2))
CONTENDERS = (
    Contender("ottla", "Reader.read", _PLAIN),
    *(Contender("ottla", way, _PLAIN, store) for store in STORES for way in ("one thread", "two threads")),
    Contender("confluent", "consumer group", _PLAIN),
    Contender("confluent", "share group", _PLAIN, is_slow=True),
    *(Contender("ottla", "one thread", cell, "redis", is_slow=True) for cell in _COSTLY),
    *(Contender("confluent", "consumer group", cell, is_slow=True) for cell in _COSTLY),
)


def run(effort: Effort) -> dict[str, Any]:
    """Measure everything; about seven minutes with full effort."""
    machine = harness.machine()
    found = _Found()
    with Stage.open() as stage, _redis(stage.folder / "redis") as redis, _written(stage, effort.scale) as library:
        for turn in range(effort.rounds):
            harness.progress(f"round {turn + 1} of {effort.rounds}")
            with _crews() as crews:
                measure = _Round(library, redis, crews, found)
                for contender in _turns(turn, effort.rounds):
                    measure.rate(contender)
                for store in STORES:
                    measure.idle(store, max(1.0, _IDLE_SECONDS * min(1.0, effort.scale)))
    rows = [row(one.cell, one.peer, one.variant, found.runs[one]) for one in CONTENDERS if one in found.runs]
    quoted = ratios(rows, found.idle)
    return {"bench": "fleet", "date": harness.today(), "machine": machine, "versions": versions()} | {
        "effort": asdict(effort),
        "rows": rows,
        "idle_cpu_percent": found.idle,
        "skipped": found.skipped,
        "ratios": quoted,
        "goals": verdicts(quoted, GOALS),
    }


def _turns(turn: int, repeats: int) -> Iterator[Contender]:
    """Who runs in a round, one after the other. What is over within a second comes several times: others use the
    processors now and then."""
    for number in range(repeats):
        yield from rotated([one for one in CONTENDERS if not one.is_slow], (turn + number) % 3)
    yield from rotated([one for one in CONTENDERS if one.is_slow], turn)


def table(result: dict[str, Any]) -> str:
    """For people: rates, processor time, and the ratios with their goals."""
    return "\n".join(lines(result))


# What it stands on


@contextmanager
def _redis(folder: Path) -> Iterator[str]:
    """The address of a Redis with an append-only file."""
    (port,) = free_ports(1, random.Random())
    running = start_redis(find_redis(os.environ), folder, port=port, environment=os.environ)
    try:
        wait_for_redis(running, folder, port=port, timeout=_REDIS_SECONDS)
        yield f"redis://:{password(folder)}@{HOST}:{port}"
    finally:
        end([running], grace=_REDIS_SECONDS)


@dataclass(frozen=True, slots=True)
class _Library:
    """The topics: a large one, one with fewer records, a small one to warm up with, and an empty one."""

    stage: Stage
    large: str
    records: int
    fewer: str
    fewer_records: int
    small: str
    small_records: int
    empty: str

    def job(self, contender: Contender, store: str) -> Job:
        """A run of a contender, in a group of its own."""
        topic, records = (self.fewer, self.fewer_records) if contender.is_slow else (self.large, self.records)
        cell = contender.cell
        return self._job(topic, records, store, nodes=cell.nodes, handler_us=cell.handler_us)

    def nothing(self, store: str, seconds: float) -> Job:
        """Waiting."""
        return self._job(self.empty, 0, store, seconds=seconds)

    def _job(self, topic: str, records: int, store: str, **more: Any) -> Job:
        return Job(
            bootstrap=self.stage.bootstrap,
            topic=topic,
            partitions=PARTITIONS,
            records=records,
            group=f"bench-{uuid4().hex[:12]}",
            store=store,
            small_topic=self.small,
            small_records=self.small_records,
            **more,
        )


@contextmanager
def _written(stage: Stage, scale: float) -> Iterator[_Library]:
    """All topics; they are deleted at the end of the block."""
    with ExitStack() as stack:
        harness.progress("writing")
        large, fewer, empty = (stack.enter_context(stage.topic(PARTITIONS)) for _ in range(3))
        small = stack.enter_context(stage.topic())
        records = _fill(stage, large, PARTITIONS, int(_RECORDS * scale))
        fewer_records = _fill(stage, fewer, PARTITIONS, int(_FEWER_RECORDS * scale))
        small_records = _fill(stage, small, 1, _FEWEST_RECORDS)
        os.sync()  # or the system would write it to the disk while somebody is measured
        yield _Library(stage, large, records, fewer, fewer_records, small, small_records, empty)


def _fill(stage: Stage, topic: str, partitions: int, records: int) -> int:
    return fill(stage, topic, max(records, _FEWEST_RECORDS), record_bytes=RECORD_BYTES, partitions=partitions)


# Who works


@dataclass(frozen=True, slots=True)
class _Found:
    """What the nodes answered over all rounds."""

    runs: dict[Contender, list[dict[str, Any]]] = field(default_factory=dict)
    idle: dict[str, list[float]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


@contextmanager
def _crews() -> Iterator[tuple[Mapping[str, Peer], Mapping[str, Peer]]]:
    """Two processes of each peer, which start when they are first asked."""
    names = list(dict.fromkeys(one.peer for one in CONTENDERS))
    with open_peers(MODULE, names) as first, open_peers(MODULE, names) as second:
        yield first, second


@dataclass(frozen=True, slots=True)
class _Round:
    """One turn of everybody, in processes that live as long as the round."""

    library: _Library
    redis: str
    crews: tuple[Mapping[str, Peer], Mapping[str, Peer]]
    found: _Found

    def rate(self, contender: Contender) -> None:
        """A run of a contender, with as many nodes as it has."""
        job = self.library.job(contender, self._store(contender.store))
        name = f"{contender.peer}, {contender.variant}, {contender.cell.name}"

        def run() -> tuple[dict[str, Any], str | None]:
            answers = self._ask(contender.peer, contender.way, job)
            refused = [str(one["skipped"]) for one in answers if "skipped" in one]
            if refused:
                return {}, refused[0]
            answer = joined(answers)
            wrong = f"{job.records} records were there, {answer['records']} were worked on"
            return answer, None if answer["records"] == job.records else wrong

        answer = told(self.found.skipped, name, run)
        if answer is not None:
            self.found.runs.setdefault(contender, []).append(answer)

    def idle(self, store: str, seconds: float) -> None:
        """A node that waits for records that do not come."""
        job = self.library.nothing(self._store(store), seconds)
        answer = told(self.found.skipped, f"idle, {store}", lambda: (self._ask("ottla", "waiting", job)[0], None))
        if answer is not None:
            self.found.idle.setdefault(store, []).append(idle_percent(answer))

    def _ask(self, peer: str, way: str, job: Job) -> list[dict[str, Any]]:
        request = {"kind": "rate", "variant": way, "job": asdict(job)}
        with ThreadPoolExecutor(job.nodes) as pool:
            return list(pool.map(lambda crew: crew[peer].ask(request), self.crews[: job.nodes]))

    def _store(self, kind: str) -> str:
        if kind == "sqlite":
            return f"sqlite:///{self.library.stage.folder}/fleet-{uuid4().hex[:8]}.db"
        return self.redis if kind == "redis" else ""
