"""Says what a tally counted, and what a comparison leaves open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ottla.cli.output.json_text import json_text
from ottla.cli.values.quantities import show_size

if TYPE_CHECKING:
    from ottla.jobs.comparisons import Comparison
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


def gaps(comparison: Comparison) -> list[str]:
    """Return why a comparison cannot say that all of it arrived, apart from faults. Each is worth an exit code."""
    from ottla.audit.compare import Verdict

    texts = []
    unknown = comparison.verdicts[Verdict.UNKNOWN]
    if len(comparison.tiers) < 2:
        texts.append(f"nothing was compared: {' '.join(comparison.tiers)} is the only tier")
    if comparison.problems:
        texts.append(f"{counted(len(comparison.problems), 'topic')} could not be compared")
    if unknown:
        texts.append(f"{unknown:,} of {len(comparison.rows):,} buckets are unknown")
    if comparison.silent:
        silent = counted(len(comparison.silent), "tier")
        texts.append(f"{silent} did not count lately: run the tally, or compare --until then")
    return texts


def counted(number: int, noun: str) -> str:
    """A number with its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
