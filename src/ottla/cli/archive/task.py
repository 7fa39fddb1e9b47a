"""One run of `ottla archive`: the archive, the job and the progress, run by an engine that runs jobs over ranges."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.output.bars import bar
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
            self.job,
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
            with LiveLine(lambda: show(self.progress)) as live, closing(entries):
                outputs.append(live.say)
                for _ in entries:
                    self.interruption.check()
        finally:
            self.failures = {topic: str(error) for topic, error in archiving.troubles.items()}


def show(progress: Progress) -> str:
    """Return the progress as a line."""
    share = min(1.0, progress.passed / progress.expected) if progress.expected else 1.0
    rate = progress.size_bytes / progress.seconds / 1e6
    return f"{bar(share)}  {progress.records:,} records archived, {rate:,.1f} MB/s, lag {progress.lag:,}"
