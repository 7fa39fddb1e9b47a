"""The producer benchmark: from the call to the last acknowledgement of a real broker, against other clients.

Every peer gets a process of its own in each round and a new topic for each run; the broker is asked afterwards whether
it has every record. See README.md for what is sent, what the clock covers and whom it favours.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import harness
from bench.figures import Findings, rotated
from bench.harness import Effort
from bench.peers.produce import Job
from bench.produce_figures import GOALS, Cell, lines, ratios, ratios_by_cell, row
from bench.records import Case, values
from bench.stage import Peer, Stage, open_peers, told, versions

MODULE = "bench.peers.produce"
CELLS = tuple(Cell(size, acks, codec) for codec in ("none", "zstd") for acks in ("all", "1") for size in (100, 1000))
QUOTED = tuple(cell for cell in CELLS if cell.quoted)

_FEW_CELLS = (*QUOTED, Cell(100, "1", "zstd"))
_VALUES = {100: 100_000, 1000: 20_000}
# Beyond 600 MB everybody got slower, without any writing to the disk: who sends more must not look worse for that.
_LARGEST_RUN_BYTES = 500_000_000
_MOST_RUNS = 3
_FEWEST_RECORDS = 2000
_PACED_RECORDS = 10_500
_PACED_WARMUP = 500
_WARM_RUNS = 16


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to send. `rates` is what to expect in records a second, of 100 and of 1,000 bytes: it decides how many
    records a run has, and nothing else."""

    peer: str
    variant: str
    rates: tuple[int, int]
    cells: tuple[Cell, ...] = CELLS

    def records(self, cell: Cell, scale: float) -> int:
        """Of one run: two seconds' worth in the cells that are quoted, one in the others, unless that is too much."""
        most = _LARGEST_RUN_BYTES // (cell.record_bytes + 10)
        return max(_FEWEST_RECORDS, int(min(self._wanted(cell), most) * scale))

    def runs(self, cell: Cell, scale: float) -> int:
        """In one round: several short ones where one would be too large."""
        if not cell.quoted or scale < 1.0:
            return 1
        return min(_MOST_RUNS, max(1, round(self._wanted(cell) / self.records(cell, scale))))

    def _wanted(self, cell: Cell) -> int:
        return self.rates[0 if cell.record_bytes == 100 else 1] * (2 if cell.quoted else 1)


CONTENDERS = (
    Contender("wire_limit", "same batch", (7_000_000, 900_000)),
    Contender("ottla", "send", (1_500_000, 500_000)),
    Contender("ottla", "send_many", (2_500_000, 600_000)),
    Contender("ottla", "send_table", (4_000_000, 800_000)),
    Contender("ottla", "send_table, 1,000 rows", (2_500_000, 700_000)),
    Contender("ottla", "send_table, write-ahead", (2_500_000, 600_000)),
    Contender("confluent", "produce", (1_500_000, 600_000)),
    Contender("confluent", "produce, on_delivery", (1_000_000, 500_000), QUOTED),
    Contender("confluent", "produce_batch", (1_500_000, 600_000)),
    Contender("aiokafka", "send", (100_000, 80_000)),
    Contender("aiokafka", "send_batch", (1_500_000, 300_000)),
    Contender("kafka_python", "send", (40_000, 30_000)),
    # Far behind the other one everywhere, and slow: only where its figure is quoted.
    Contender("java", "default batches", (200_000, 60_000), QUOTED),
    Contender("java", "large batches", (1_000_000, 150_000)),
)
PACED = (("ottla", "send"), ("confluent", "produce"), ("wire_limit", "one record"))


def run(effort: Effort) -> dict[str, Any]:
    """Measure everything; about twelve minutes with full effort."""
    machine = harness.machine()
    found: Findings[tuple[Cell, Contender]] = Findings()
    with Stage.open() as stage:
        payloads = {size: _payload(stage.folder, size) for size in _VALUES}
        for turn in range(effort.rounds):
            with open_peers(MODULE, (contender.peer for contender in CONTENDERS)) as peers:
                measure = _Round(stage, peers, payloads, effort.scale, found)
                if turn == 0:
                    measure.warm_broker()
                for cell in CELLS if effort.scale >= 1.0 else _FEW_CELLS:
                    harness.progress(f"round {turn + 1} of {effort.rounds}: {cell.name}")
                    measure.rates(cell, turn)
                harness.progress(f"round {turn + 1} of {effort.rounds}: latency")
                measure.latencies()
    return {"bench": "produce", "date": harness.today(), "machine": machine, "versions": versions()} | {
        "effort": asdict(effort),
        **_judged(found),
    }


def _payload(folder: Path, size: int) -> str:
    """The file with the values of one size, the same ones on every day."""
    case = Case(record_bytes=size, codec="none", batch_bytes=0, shape="value", records=_VALUES[size])
    path = folder / f"{size}.lines"
    path.write_bytes(b"\n".join(values(case)) + b"\n")
    return str(path)


@dataclass(frozen=True, slots=True)
class _Round:
    """One turn of every peer, in processes that live as long as the round."""

    stage: Stage
    peers: Mapping[str, Peer]
    payloads: Mapping[int, str]
    scale: float
    found: Findings[tuple[Cell, Contender]]

    def warm_broker(self) -> None:
        """Its compiler needs some seconds of work; without them the first peer would pay."""
        harness.progress("warming up the broker")
        for i in range(max(1, int(_WARM_RUNS * self.scale))):
            cell = CELLS[i % len(CELLS)]
            self._ask(cell, "wire_limit", "same batch", records=CONTENDERS[0].records(cell, self.scale))

    def rates(self, cell: Cell, turn: int) -> None:
        """Everybody that takes part in this workload, in turn."""
        for contender in rotated([one for one in CONTENDERS if cell in one.cells], turn):
            records = contender.records(cell, self.scale)
            for _ in range(contender.runs(cell, self.scale)):
                answer = self._ask(cell, contender.peer, contender.variant, records=records)
                if answer is not None:
                    self.found.rates.setdefault((cell, contender), []).append(answer)

    def latencies(self) -> None:
        """Everybody once, a thousand records a second."""
        records = max(2 * _PACED_WARMUP, int(_PACED_RECORDS * self.scale))
        for peer, variant in PACED:
            answer = self._ask(Cell(100, "all", "none"), peer, variant, records=records, kind="latency")
            if answer is not None:
                self.found.seconds.setdefault((peer, variant), []).append(answer["seconds"][_PACED_WARMUP:])

    def _ask(self, cell: Cell, peer: str, variant: str, *, records: int, kind: str = "rate") -> dict[str, Any] | None:
        def run() -> tuple[dict[str, Any], str | None]:
            with self.stage.topic() as topic, self._folder() as folder:
                job = Job(
                    bootstrap=self.stage.bootstrap,
                    topic=topic,
                    acks=cell.acks,
                    codec=cell.codec,
                    records=records,
                    payload=self.payloads[cell.record_bytes],
                    folder=str(folder),
                )
                answer = self.peers[peer].ask({"kind": kind, "variant": variant, "job": asdict(job)})
                return answer, _objection(answer, records, self.stage.records(topic))

        return told(self.found.skipped, f"{kind}, {cell.name}, {peer}, {variant}", run)

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        folder = self.stage.folder / "job"
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder)


def _objection(answer: dict[str, Any], asked: int, in_topic: int) -> str | None:
    """Why an answer does not count, or None."""
    if "skipped" in answer:
        return str(answer["skipped"])
    if "seconds" in answer:
        sent, counted = len(answer["seconds"]), len(answer["seconds"])
    else:
        sent, counted = answer["records"], answer["records"] + answer["warmup"]
    if sent < asked:
        return f"{asked} records were asked for, {sent} were sent"
    return None if in_topic == counted else f"{counted} records were sent, the broker has {in_topic}"


def _judged(found: Findings[tuple[Cell, Contender]]) -> dict[str, Any]:
    places = [(cell, one) for cell in CELLS for one in CONTENDERS if (cell, one) in found.rates]
    rows = [row(cell, one.peer, one.variant, found.rates[cell, one]) for cell, one in places]
    return found.judged(rows, ratios=ratios, by_cell=ratios_by_cell(rows, CELLS), goals=GOALS)


def table(result: dict[str, Any]) -> str:
    """For people: rates, processor time, latency, and the ratios with their goals."""
    return "\n".join(lines(result))
