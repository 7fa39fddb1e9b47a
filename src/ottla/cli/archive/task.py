"""One run of `ottla archive`: the archive, the job and the progress, run by an engine that runs jobs over ranges."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.output.pace import Pace, progress_line, records_rate
from ottla.cli.terminal.interruption import Interruption
from ottla.cli.terminal.progress import LiveLine

if TYPE_CHECKING:
    from ottla.events.values import Event
    from ottla.jobs.archive_plan import Cutting
    from ottla.jobs.archive_range import ArchiveRange
    from ottla.jobs.archiving import ArchiveRequest, Progress
    from ottla.lake.lake import Lake


@dataclass(slots=True)
class Task:
    """What an archive run does, and how far it is."""

    lake: Lake
    job: ArchiveRange
    wanted: ArchiveRequest
    cutting: Cutting
    interruption: Interruption
    progress: Progress
    failures: dict[str, str] = field(default_factory=dict)
    """Topics that could not be archived, and why."""

    def run(self, engine: Any, *, name: str = "local", every: float | None) -> None:
        """Archive up to the stop, or every `every` seconds until a signal; `engine` runs a job over ranges."""
        from ottla.jobs.archiving import Archiving

        outputs: list[Callable[[str], None]] = []

        def report(event: Event) -> None:
            for output in outputs[-1:] or [lambda text: click.echo(text, err=True)]:
                output(f"{event}")

        archiving = Archiving(
            self.lake,
            replace(self.job, seen=self.progress.seen) if name == "local" else self.job,
            self.wanted,
            engine=engine,
            cutting=self.cutting,
            name=name,
            waiting=self.interruption.wait,
            progress=self.progress,
            events=[report],
        )
        entries = archiving.until_now() if every is None else archiving.follow(every=every)
        try:
            with LiveLine(Shown(self.progress).line) as live, closing(entries):
                outputs.append(live.say)
                for _ in entries:
                    self.interruption.check()
        finally:
            self.failures = {topic: str(error) for topic, error in archiving.troubles.items()}


class Shown:
    """The live line of an archive run: it moves with the records that are read, not only with entries."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._pace = Pace()

    def line(self) -> str:
        """Return the progress as a line."""
        progress = self._progress
        if not progress.expected:  # not looked yet, or there is nothing
            return "looking at the logs"
        self._pace.observe(time.monotonic(), progress.reached)
        return progress_line(
            f"{progress.reached:,} records read",
            f"{progress.records:,} archived",
            records_rate(self._pace),
            pace=self._pace,
            total=progress.expected,
        )
