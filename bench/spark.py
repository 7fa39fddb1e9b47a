"""The Spark benchmark: Kafka in Spark by our data source and pipelines, against Spark's own Kafka connector.

Each of the two has a process with one Spark session for the whole benchmark, and they take turns on the same broker;
after each run that writes, the broker or the archive is asked whether everything is there. See README.md for what is
moved, what the clock covers and whom it favours.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

import ottla
from bench import harness
from bench.figures import Findings, rotated
from bench.harness import Effort
from bench.peers.spark import SMALL_BATCH_RECORDS, Job
from bench.spark_figures import GOALS, Cell, lines, ratios, ratios_by_cell, row
from bench.stage import Peer, Stage, open_peers, told, versions
from bench.writing import fill

MODULE = "bench.peers.spark"
CELLS = (Cell(100), Cell(1000))
_RECORDS = {100: 5_000_000, 1000: 1_000_000}
_SMALL_RECORDS = 240_000
_PARTITIONS = 4
_SMALL_BATCHES = 45
_FEWEST_BATCHES = 12


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to move records."""

    peer: str
    variant: str

    @property
    def kind(self) -> str:
        """What it does, in one word."""
        return self.variant.partition(" ")[0].rstrip(",")


CONTENDERS = (
    Contender("ottla", "read to noop"),
    Contender("ottla", "read nothing to noop"),
    Contender("jvm", "read to noop"),
    Contender("ottla", "archive"),
    Contender("ottla", "archive, without Spark"),
    Contender("jvm", "archive"),
    Contender("jvm", "archive, snappy"),
    Contender("ottla", "write"),
    Contender("ottla", "write, exactly once"),
    Contender("jvm", "write"),
)
PACED = (
    ("ottla", "micro-batches"),
    ("jvm", "micro-batches"),
    ("jvm", "micro-batches, simple checkpoint files"),
)


def run(effort: Effort) -> dict[str, Any]:
    """Measure everything; about ten minutes with full effort."""
    machine = harness.machine()
    found: Findings[tuple[Cell, Contender]] = Findings()
    with (
        Stage.open() as stage,
        _written(stage, effort.scale) as library,
        open_peers(MODULE, (contender.peer for contender in CONTENDERS)) as peers,
    ):
        measure = _Round(library, peers, found)
        for turn in range(effort.rounds):
            for cell in CELLS:
                harness.progress(f"round {turn + 1} of {effort.rounds}: {cell.name}")
                measure.rates(cell, turn)
            harness.progress(f"round {turn + 1} of {effort.rounds}: micro-batches")
            measure.micro_batches(effort.scale)
    places = [(cell, one) for cell in CELLS for one in CONTENDERS if (cell, one) in found.rates]
    rows = [row(cell, one.peer, one.variant, found.rates[cell, one]) for cell, one in places]
    return {"bench": "spark", "date": harness.today(), "machine": machine, "versions": _versions()} | {
        "effort": asdict(effort),
        **found.judged(rows, ratios=ratios, by_cell=ratios_by_cell(rows, CELLS), goals=GOALS),
    }


def _versions() -> dict[str, str]:
    return versions() | harness.versions("pyspark")


# What is moved


@dataclass(frozen=True, slots=True)
class _Library:
    """The topics that are read."""

    stage: Stage
    topics: Mapping[Cell, str]
    available: Mapping[Cell, int]
    small_topic: str
    small_records: int

    def job(self, topic: str, cell: Cell, *, records: int, folder: Path) -> Job:
        """A run on this topic."""
        return Job(
            bootstrap=self.stage.bootstrap,
            topic=topic,
            records=records,
            record_bytes=cell.record_bytes,
            folder=str(folder),
            small_topic=self.small_topic,
            small_records=self.small_records,
        )


@contextmanager
def _written(stage: Stage, scale: float) -> Iterator[_Library]:
    with ExitStack() as stack:
        topics, available = {}, {}
        for cell in CELLS:
            harness.progress(f"writing: {cell.name}")
            topics[cell] = stack.enter_context(stage.topic(_PARTITIONS))
            wanted = int(_RECORDS[cell.record_bytes] * scale)
            available[cell] = fill(stage, topics[cell], wanted, record_bytes=cell.record_bytes, partitions=_PARTITIONS)
        small = stack.enter_context(stage.topic(_PARTITIONS))
        there = fill(stage, small, _SMALL_RECORDS, record_bytes=100, partitions=_PARTITIONS)
        yield _Library(stage, topics, available, small, there)


# Who moves it


@dataclass(frozen=True, slots=True)
class _Round:
    """One turn of both."""

    library: _Library
    peers: Mapping[str, Peer]
    found: Findings[tuple[Cell, Contender]]

    def rates(self, cell: Cell, turn: int) -> None:
        """Everybody once, in turn."""
        for contender in rotated(CONTENDERS, turn):
            run = self._writing if contender.kind == "write" else self._reading
            name = f"{cell.name}, {contender.peer}, {contender.variant}"
            answer = told(self.found.skipped, name, lambda run=run, one=contender: run(one, cell))  # type: ignore[misc]
            if answer is not None:
                self.found.rates.setdefault((cell, contender), []).append(answer)

    def micro_batches(self, scale: float) -> None:
        """A topic of some records, ten of them in each batch."""
        batches = max(_FEWEST_BATCHES, int(_SMALL_BATCHES * scale))
        with self.library.stage.topic() as topic:
            with ottla.Producer(self.library.stage.bootstrap) as producer:
                producer.send_many(topic, [b"%0100d" % i for i in range(batches * SMALL_BATCH_RECORDS)])
            for peer, variant in PACED:
                with self._folder() as folder:
                    job = self.library.job(topic, Cell(100), records=batches * SMALL_BATCH_RECORDS, folder=folder)
                    request = {"kind": "latency", "variant": variant, "job": asdict(job)}
                    answer = told(
                        self.found.skipped,
                        f"{peer}, {variant}",
                        lambda peer=peer, request=request: (self.peers[peer].ask(request), None),  # type: ignore[misc]
                    )
                if answer is not None:
                    self.found.seconds.setdefault((peer, variant), []).append(answer["seconds"])

    def _reading(self, contender: Contender, cell: Cell) -> tuple[dict[str, Any], str | None]:
        records = self.library.available[cell]
        with self._folder() as folder:
            job = self.library.job(self.library.topics[cell], cell, records=records, folder=folder)
            answer = self._ask(contender, job)
            moved = answer["records"] if contender.kind == "read" else _archived(folder)
        return answer, None if moved == records else f"{records} records were to be moved, {moved} were"

    def _writing(self, contender: Contender, cell: Cell) -> tuple[dict[str, Any], str | None]:
        records = self.library.available[cell]
        with self.library.stage.topic(_PARTITIONS) as topic, self._folder() as folder:
            answer = self._ask(contender, self.library.job(topic, cell, records=records, folder=folder))
            with ottla.Reader(self.library.stage.bootstrap, isolation="read_committed") as reader:
                written = reader.count(topic)
        return answer, None if written == records else f"{records} records were to be written, {written} were"

    def _ask(self, contender: Contender, job: Job) -> dict[str, Any]:
        answer = self.peers[contender.peer].ask({"kind": "rate", "variant": contender.variant, "job": asdict(job)})
        if "skipped" in answer:
            raise AssertionError(answer["skipped"])
        return answer

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        folder = self.library.stage.folder / "job"
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder)


def _archived(folder: Path) -> int:
    """The rows of the archive in a folder, as anybody would read them."""
    (archive,) = (path for path in folder.iterdir() if path.name != "small")
    return int(ds.dataset(archive, format="parquet", exclude_invalid_files=False).count_rows())


def table(result: dict[str, Any]) -> str:
    """For people: rates, micro-batches, and the ratios with their goals."""
    return "\n".join(lines(result))
