"""`ottla perf`: the group and its commands, which are imported when they are used."""

from __future__ import annotations

import click

from ottla.cli.lazy import Entry, LazyGroup

_COMMANDS = {
    "consume": Entry("ottla.cli.perf.consume", "Measure reading topics."),
    "latency": Entry("ottla.cli.perf.latency", "Measure latency from producer to consumer."),
    "mirror": Entry("ottla.cli.perf.mirror", "Measure mirroring to another cluster."),
    "produce": Entry("ottla.cli.perf.produce", "Measure sending records."),
}


@click.group("perf", cls=LazyGroup, entries=_COMMANDS)
def perf() -> None:
    """Measure what this machine and a cluster can do: rates, processor time, latency.

    Topics that do not exist are created, and removed at the end. Nothing is committed, and an existing topic is written
    to with --existing only. --beside runs the same work by other clients, one after the other. Ctrl-C ends a run early
    and reports what was measured. Reports of --json are what 'ottla capacity --rates' takes.

    \b
    Examples:
      ottla perf produce perf-test --records 1000000 --size 1kB --partitions 6
      ottla perf consume clicks --beside confluent,java --html report.html
      ottla perf latency perf-test --rate 1000/s --duration 30s
      ottla perf mirror clicks --from edge:9092 --to hub:9092
    """
