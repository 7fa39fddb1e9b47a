"""Runs a performance test for a command: the live line, Ctrl-C, other clients afterwards, and the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import click

from ottla.cli.errors import CommandFailed
from ottla.cli.output.json_text import json_text
from ottla.cli.output.tables import terminal_width
from ottla.cli.perf.view import progress_text, report_text
from ottla.cli.terminal.progress import LiveLine
from ottla.cli.terminal.stopping import Stopping

if TYPE_CHECKING:
    from ottla.config import Security
    from ottla.jobs.brokers import Brokers
    from ottla.operations.perf.meter import Measured
    from ottla.operations.perf.running import IsStopped, Progress

CLIENT_ID = "ottla-perf"
_NOTICE = "stopping, and reporting what was measured; press Ctrl-C again to abort"


class Run(Protocol):
    """A run of one client."""

    progress: Progress

    def run(self, is_stopped: IsStopped) -> Measured:
        """Run it, and return what was measured."""


class Entrant(NamedTuple):
    """A client, and how its run is made once it is its turn; the run gets what was measured before it."""

    client: str
    make: Callable[[Sequence[Measured]], Run]


class Outputs(NamedTuple):
    """Where the report goes."""

    as_json: bool
    html: Path | None


class Test(NamedTuple):
    """What the report says beside the figures."""

    kind: str
    latency: str
    settings: Mapping[str, Any]
    notes: tuple[str, ...] = ()


def brokers_of(bootstrap: str, security: Security, timeout: float) -> Brokers:
    """Return how the clients of a test reach the cluster."""
    from ottla.cli.options.connection import few_retries
    from ottla.config import Timeouts
    from ottla.jobs.brokers import Brokers

    return Brokers(
        bootstrap=bootstrap,
        security=security,
        client_id=CLIENT_ID,
        timeouts=Timeouts(total=timeout),
        retry=few_retries(),
    )


def check_page(html: Path | None) -> None:
    """Raise `CommandFailed` if the page could not be written at the end."""
    if html is not None and not html.absolute().parent.is_dir():
        raise CommandFailed(f"--html {html}: there is no folder {html.absolute().parent}")


def measure(entrants: Sequence[Entrant], stopping: Stopping) -> list[Measured]:
    """Run one client after the other. After Ctrl-C, none is begun."""
    measured: list[Measured] = []
    for entrant in entrants:
        if stopping.asked and measured:
            break
        run = entrant.make(measured)
        with LiveLine(lambda run=run, entrant=entrant: progress_text(entrant.client, run.progress, time.monotonic())):  # type: ignore[misc]
            measured.append(run.run(lambda: bool(stopping.asked)))
    return measured


def stopping() -> Stopping:
    """Return the handler of Ctrl-C for a test."""
    return Stopping(_NOTICE)


def say_created(topics: Sequence[str]) -> None:
    """Say which topics exist for the test only."""
    if topics:
        click.echo(f"created {', '.join(topics)} for this test: removed at its end", err=True)


def finish(test: Test, runs: Sequence[Measured], outputs: Outputs, stopped: Stopping) -> None:
    """Print and write the report. Raises `CommandFailed` if records were lost, and exits after Ctrl-C."""
    from ottla.operations.perf.machine import machine, versions
    from ottla.operations.perf.report import Report

    report = Report(
        kind=test.kind,
        date=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        settings=test.settings,
        machine=machine(),
        versions=versions("confluent-kafka") if any(run.client == "confluent" for run in runs) else versions(),
        runs=runs,
        latency=test.latency,
        notes=test.notes,
    )
    click.echo(json_text(report.to_json()) if outputs.as_json else report_text(report, width=terminal_width()))
    if outputs.html is not None:
        from ottla.cli.perf.page import write_page

        write_page(outputs.html, report)
    if stopped.asked:
        click.get_current_context().exit(stopped.exit_code)
    lost = [run for run in runs if run.failed]
    if lost:
        raise CommandFailed(f"{lost[0].client}: {lost[0].failed:,} records did not arrive")
