"""The consumer benchmark: reading what a real broker has, against other clients.

Every workload has a topic that is written once; every peer gets a process of its own in each round, and must receive
every record. See README.md for what is read, what the clock covers and whom it favours.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import ottla
from bench import harness
from bench.consume_figures import GOALS, SMALL_BATCH, Cell, lines, ratios, ratios_by_cell, row
from bench.figures import Findings, rotated
from bench.harness import Effort
from bench.peers.consume import Job
from bench.stage import Peer, Stage, open_peers, told, versions
from bench.writing import fill

MODULE = "bench.peers.consume"
CELLS = (
    *(Cell(parts, size, codec) for codec in ("none", "zstd") for size in (100, 1000) for parts in (1, 6)),
    Cell(1, 100, "none", SMALL_BATCH),
)
QUOTED = tuple(cell for cell in CELLS if cell.quoted)

_FEW_CELLS = (*(cell for cell in QUOTED if cell != Cell(6, 1000, "none")), Cell(1, 100, "zstd"))
# All of the topics are there at the same time: 2.9 GB.
_RECORDS = {100: 4_000_000, 1000: 600_000}
_RECORDS_IN_SMALL_BATCHES = 2_000_000
_MOST_RUNS = 2
_FEWEST_RECORDS = 60_000
_PACED_RECORDS = 8_500
_PACED_WARMUP = 500


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to read. `rates` is what to expect in records a second, of 100 and of 1,000 bytes: it decides how many
    records of the topic are read, and how often, and nothing else. Without it, all are, once."""

    peer: str
    variant: str
    rates: tuple[int, int] | None
    cells: tuple[Cell, ...] = CELLS

    def records(self, cell: Cell, available: int) -> int:
        """Of one run: about a second and a half, but not more than there are; as many of each partition."""
        if self.rates is None:
            return available
        wanted = min(max(_FEWEST_RECORDS, self._wanted(cell)), available)
        return wanted // cell.partitions * cell.partitions

    def runs(self, cell: Cell, available: int) -> int:
        """In one round: several where the topic is too small for one."""
        if self.rates is None or not cell.quoted or available < _RECORDS[cell.record_bytes]:
            return 1
        return min(_MOST_RUNS, max(1, round(self._wanted(cell) / available)))

    def _wanted(self, cell: Cell) -> int:
        assert self.rates is not None
        return self.rates[0 if cell.record_bytes == 100 else 1] * 3 // 2


CONTENDERS = (
    Contender("wire_limit", "one connection", (12_000_000, 1_500_000)),
    Contender("wire_limit", "two connections", (12_000_000, 1_500_000)),
    Contender("ottla", "read", (8_000_000, 1_200_000)),
    Contender("ottla", "read value", (8_000_000, 1_200_000)),
    Contender("ottla", "read value, as bytes", (4_000_000, 600_000)),
    Contender("ottla", "count", (12_000_000, 1_500_000)),
    Contender("ottla", "Consumer", (5_000_000, 800_000)),
    Contender("ottla", "Consumer.records", (500_000, 300_000)),
    Contender("confluent", "consume", (1_500_000, 600_000)),
    Contender("confluent", "consume, 10,000 at once", (600_000, 250_000), QUOTED),
    Contender("aiokafka", "getmany", (500_000, 200_000)),
    Contender("kafka_python", "poll", (120_000, 90_000)),
    # A Java process takes some seconds to start and to join. With six partitions its default fetches are large, too.
    Contender("java", "default fetches", None, tuple(cell for cell in QUOTED if cell.partitions == 1)),
    Contender("java", "large fetches", None),
)
PACED = (
    ("ottla", "Consumer"),
    ("ottla", "Reader, following"),
    ("confluent", "poll"),
    ("ottla", "Consumer, busy program"),
    ("confluent", "poll, busy program"),
)


def run(effort: Effort) -> dict[str, Any]:
    """Measure everything; about twelve minutes with full effort."""
    machine = harness.machine()
    found: Findings[tuple[Cell, Contender]] = Findings()
    cells = CELLS if effort.scale >= 1.0 else _FEW_CELLS
    with Stage.open() as stage, _written(stage, cells, effort.scale) as library:
        for turn in range(effort.rounds):
            with open_peers(MODULE, (contender.peer for contender in CONTENDERS)) as peers:
                measure = _Round(library, peers, found)
                for cell in cells:
                    harness.progress(f"round {turn + 1} of {effort.rounds}: {cell.name}")
                    measure.rates(cell, turn)
                harness.progress(f"round {turn + 1} of {effort.rounds}: latency")
                measure.latencies(effort.scale)
        stored = library.stored_bytes()
    return {"bench": "consume", "date": harness.today(), "machine": machine, "versions": versions()} | {
        "effort": asdict(effort),
        "stored_bytes": stored,
        **_judged(found),
    }


# What is read


@dataclass(frozen=True, slots=True)
class _Library:
    """The topics that are read: one for each workload, and a small one for each codec."""

    stage: Stage
    topics: Mapping[Cell, str]
    available: Mapping[Cell, int]
    """How many records they have."""
    small_topics: Mapping[str, str]
    small_records: int

    def job(self, cell: Cell, records: int) -> Job:
        """The last `records` of the topic of a workload."""
        start = (self.available[cell] - records) // cell.partitions
        return self._job(self.topics[cell], cell, start=start, records=records)

    @contextmanager
    def empty(self, records: int) -> Iterator[Job]:
        """A new topic for so many records that are still to come."""
        with self.stage.topic() as topic:
            yield self._job(topic, Cell(1, 100, "none"), start=0, records=records)

    def stored_bytes(self) -> dict[str, dict[str, int]]:
        """What the topics have, by name of the workload."""
        with ottla.Reader(self.stage.bootstrap) as reader:
            return {cell.name: _stored(reader, topic) for cell, topic in self.topics.items()}

    def _job(self, topic: str, cell: Cell, *, start: int, records: int) -> Job:
        return Job(
            bootstrap=self.stage.bootstrap,
            topic=topic,
            partitions=cell.partitions,
            start=start,
            records=records,
            small_topic=self.small_topics[cell.codec],
            small_records=self.small_records,
        )


def _stored(reader: ottla.Reader, topic: str) -> dict[str, int]:
    profiles = reader.profile(topic)
    names = ("records", "batches", "bytes")
    return {name: sum(getattr(profile, name) for profile in profiles) for name in names}


@contextmanager
def _written(stage: Stage, cells: tuple[Cell, ...], scale: float) -> Iterator[_Library]:
    """All topics, written by our producer; they are deleted at the end of the block."""
    with ExitStack() as stack:
        topics, available, small_records = {}, {}, 0
        for cell in cells:
            harness.progress(f"writing: {cell.name}")
            topics[cell] = stack.enter_context(stage.topic(cell.partitions))
            available[cell] = _fill(stage, topics[cell], cell, _wanted_records(cell, scale))
        small = {}
        for codec in dict.fromkeys(cell.codec for cell in cells):
            small[codec] = stack.enter_context(stage.topic())
            small_records = _fill(stage, small[codec], Cell(1, 100, codec), _FEWEST_RECORDS)
        os.sync()  # or the system would write it to the disk while somebody is measured
        yield _Library(stage, topics, available, small, small_records)


def _wanted_records(cell: Cell, scale: float) -> int:
    whole = _RECORDS[cell.record_bytes] if cell.batch_bytes != SMALL_BATCH else _RECORDS_IN_SMALL_BATCHES
    return max(_FEWEST_RECORDS, int(whole * scale))


def _fill(stage: Stage, topic: str, cell: Cell, records: int) -> int:
    return fill(
        stage,
        topic,
        records,
        record_bytes=cell.record_bytes,
        partitions=cell.partitions,
        codec=cell.codec,
        batch_bytes=cell.batch_bytes,
    )


# Who reads it


@dataclass(frozen=True, slots=True)
class _Round:
    """One turn of every peer, in processes that live as long as the round."""

    library: _Library
    peers: Mapping[str, Peer]
    found: Findings[tuple[Cell, Contender]]

    def rates(self, cell: Cell, turn: int) -> None:
        """Everybody that takes part in this workload, in turn."""
        available = self.library.available[cell]
        for contender in rotated([one for one in CONTENDERS if cell in one.cells], turn):
            job = self.library.job(cell, contender.records(cell, available))
            for _ in range(contender.runs(cell, available)):
                answer = self._ask(job, contender.peer, contender.variant, f"rate, {cell.name}")
                if answer is not None:
                    self.found.rates.setdefault((cell, contender), []).append(answer)

    def latencies(self, scale: float) -> None:
        """Everybody once, a thousand records a second."""
        records = max(2 * _PACED_WARMUP, int(_PACED_RECORDS * scale))
        for peer, variant in PACED:
            with self.library.empty(records) as job:
                answer = self._ask(job, peer, variant, "latency")
            if answer is not None:
                self.found.seconds.setdefault((peer, variant), []).append(answer["seconds"][_PACED_WARMUP:])

    def _ask(self, job: Job, peer: str, variant: str, what: str) -> dict[str, Any] | None:
        def run() -> tuple[dict[str, Any], str | None]:
            kind = what.partition(",")[0]
            answer = self.peers[peer].ask({"kind": kind, "variant": variant, "job": asdict(job)})
            return answer, _objection(answer, peer, job.records)

        return told(self.found.skipped, f"{what}, {peer}, {variant}", run)


def _objection(answer: dict[str, Any], peer: str, asked: int) -> str | None:
    """Why an answer does not count, or None."""
    if "skipped" in answer:
        return str(answer["skipped"])
    received = len(answer["seconds"]) if "seconds" in answer else answer["records"]
    if peer == "java":
        return None  # it has read them all, or it fails; its figure is about a part of them
    return None if received == asked else f"{asked} records were asked for, {received} were received"


def _judged(found: Findings[tuple[Cell, Contender]]) -> dict[str, Any]:
    places = [(cell, one) for cell in CELLS for one in CONTENDERS if (cell, one) in found.rates]
    rows = [row(cell, one.peer, one.variant, found.rates[cell, one]) for cell, one in places]
    return found.judged(rows, ratios=ratios, by_cell=ratios_by_cell(rows, CELLS), goals=GOALS)


def table(result: dict[str, Any]) -> str:
    """For people: rates, processor time, latency, and the ratios with their goals."""
    return "\n".join(lines(result))
