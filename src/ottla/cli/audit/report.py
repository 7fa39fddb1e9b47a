"""Shows what a tally counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ottla.cli.output.json_text import json_text
from ottla.cli.values.quantities import show_size

if TYPE_CHECKING:
    from ottla.jobs.tallies import TallyReport


def print_report(report: TallyReport, topics: Sequence[str], *, as_json: bool) -> None:
    """Print a line for people, or an object for programs."""
    if as_json:
        row = {
            "tier": report.tier,
            "topics": list(topics) or sorted({tally.topic for tally in report.tallies}),
            "records": report.records,
            "bytes": report.size_bytes,
            "buckets": report.buckets,
            "ranges": len(report.tallies),
            "unchanged": report.refreshed,
        }
        click.echo(json_text(row))
        return
    unchanged = counted(report.refreshed, "partition")
    click.echo(
        f"{counted(report.records, 'record')} ({show_size(report.size_bytes)}) counted in"
        f" {counted(report.buckets, 'bucket')} for tier {report.tier}; {unchanged} unchanged"
    )


def counted(number: int, noun: str) -> str:
    """A number with its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
