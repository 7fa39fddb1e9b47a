"""Jobs for the nodes of a fleet, and a node: `python -m tests.engines.fleet.job_play URL GROUP`."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from ottla.engines.fleet import jobs
from ottla.engines.fleet.job_notes import Row
from ottla.engines.fleet.store import open_store
from ottla.errors import InputError
from ottla.model import OffsetRange


@dataclass(frozen=True)
class Slow:
    """Takes a moment for each range, and says which process did it."""

    folder: str
    seconds: float = 0.0

    def __call__(self, unit: OffsetRange) -> tuple[OffsetRange, int]:
        if unit.topic == "refused":
            raise InputError("nobody can do this")
        if unit.topic == "hard" and not (Path(self.folder) / "tried").exists():
            (Path(self.folder) / "tried").touch()
            raise ValueError("the first time it fails")
        if unit.topic == "exits":
            sys.exit("no more")
        if unit.topic == "impossible":
            raise ValueError("it always fails")
        time.sleep(self.seconds)
        return unit, os.getpid()

    def undo(self, done: tuple[OffsetRange, int]) -> None:
        (Path(self.folder) / f"undone-{done[0].partition}-{done[0].start}").touch()


@dataclass(frozen=True)
class Killing(Slow):
    """Kills a process in its first range."""

    pid: int = 0

    def __call__(self, unit: OffsetRange) -> tuple[OffsetRange, int]:
        try:
            (Path(self.folder) / "killed").touch(exist_ok=False)
        except FileExistsError:
            return super().__call__(unit)
        os.kill(self.pid, signal.SIGKILL)
        return super().__call__(unit)


class Play:
    """How these jobs travel."""

    name = "play"

    def job_row(self, job: Slow, /) -> Row:
        return asdict(job)

    def job(self, row: Row, /) -> Slow:
        return Killing(**row) if "pid" in row else Slow(**row)

    def result_row(self, result: tuple[OffsetRange, int], /) -> Row:
        return {"range": asdict(result[0]), "pid": result[1]}

    def result(self, row: Row, /) -> tuple[OffsetRange, int]:
        return OffsetRange(**row["range"]), row["pid"]


if __name__ == "__main__":
    with closing(open_store(sys.argv[1], sys.argv[2])) as store:
        jobs.serve(store, kinds=[Play()], is_stopped=lambda: False)
