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
    click.echo(
        f"{report.records:,} records ({show_size(report.size_bytes)}) counted in {report.buckets:,} buckets"
        f" for tier {report.tier}; {report.refreshed:,} partitions unchanged"
    )
