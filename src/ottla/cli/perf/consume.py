"""`ottla perf consume`: measures reading topics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.errors import CommandFailed
from ottla.cli.perf import options
from ottla.cli.perf.peers import check_peers
from ottla.cli.perf.produce import workload_of
from ottla.cli.perf.running import (
    Entrant,
    Outputs,
    Test,
    brokers_of,
    check_page,
    finish,
    measure,
    say_created,
    stopping,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.cli.perf.running import Run
    from ottla.config import Security
    from ottla.jobs.brokers import Brokers
    from ottla.model import OffsetRange
    from ottla.operations.perf.meter import Measured
    from ottla.operations.perf.workload import Workload

_FILLED = 1_000_000
"""Records that a topic gets if it does not exist and --records is not given."""


@click.command()
@options.perf_options(
    options.records_option,
    options.duration_option,
    options.threads_option,
    options.warmup_option,
    options.size_option,
    options.codec_option,
    options.partitions_option,
    options.replicas_option,
    options.beside_option,
)
def consume(
    topics: tuple[str, ...],
    *,
    bootstrap: str,
    security: Security,
    timeout: float,
    beside: tuple[str, ...] | None,
    html: Path | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Measure reading topics from their beginning to where they end now.

    Partitions are divided among the threads. Nothing is committed, and no group is joined. With --duration, reading
    starts again at the beginning until the time is over. A topic that does not exist is created, filled with --records
    records of --size, and removed at the end.

    \b
    Examples:
      ottla perf consume clicks
      ottla perf consume clicks --threads 4 --duration 30s --json
      ottla perf consume perf-test --records 1000000 --size 1kB --beside confluent,java --html report.html
    """
    from ottla.admin import Admin
    from ottla.operations.perf.consume import LATENCY
    from ottla.operations.perf.topics import prepared

    check_page(html)
    workload = workload_of(topics, seconds_if_endless=None, **settings)
    peers = check_peers(beside, workload, security)
    brokers = brokers_of(bootstrap, security, timeout)
    with Admin(brokers) as admin, stopping() as stopped, prepared(admin, workload, writes=False) as topics_of_run:
        say_created(topics_of_run.created)
        fill(topics_of_run.created, workload, brokers, is_stopped=lambda: bool(stopped.asked))
        if stopped.asked:
            click.get_current_context().exit(stopped.exit_code)
        ranges = _ranges(brokers, workload)
        runs = measure(_entrants(workload, ranges, brokers, peers), stopped)
        shown = workload.settings() | {"partitions": topics_of_run.partitions}
        if not topics_of_run.created and runs[0].records:
            shown["record_bytes"] = round(runs[0].size_bytes / runs[0].records)
    finish(Test("consume", LATENCY, shown), runs, Outputs(as_json, html), stopped)


def fill(topics: tuple[str, ...], workload: Workload, brokers: Brokers, *, is_stopped: Any) -> None:
    """Write records into topics that were created for the test."""
    from dataclasses import replace

    from ottla.operations.perf.produce import OttlaSending, Producing

    if topics:
        records = (workload.records or _FILLED) * len(topics)
        filling = replace(workload, topics=topics, records=records, seconds=None, rate=None, warmup=0.0, threads=1)
        Producing(filling, lambda: OttlaSending(filling, brokers)).run(is_stopped)


def _ranges(brokers: Brokers, workload: Workload) -> list[OffsetRange]:
    with brokers.reader() as reader:
        ranges = [unit for unit in reader.ranges(workload.topics) if len(unit)]
    if not ranges:
        raise CommandFailed(f"there is nothing to read: no records in {', '.join(workload.topics)}")
    return ranges


def _entrants(workload: Workload, ranges: list[OffsetRange], brokers: Brokers, peers: tuple[str, ...]) -> list[Entrant]:
    from ottla.operations.perf.consume import Consuming, ottla_reading

    def ours(_: Sequence[Measured]) -> Run:
        return Consuming(workload, ranges, ottla_reading(brokers))

    def confluent(_: Sequence[Measured]) -> Run:
        from ottla.operations.perf.confluent import confluent_reading

        return Consuming(workload, ranges, confluent_reading(brokers.bootstrap), client="confluent")

    def java(measured: Sequence[Measured]) -> Run:
        from ottla.cli.perf.java import JavaRun

        # The tool reads a topic once.
        return JavaRun("consume", workload, brokers, records=min(measured[0].records, sum(map(len, ranges))))

    makers = {"confluent": confluent, "java": java}
    return [Entrant("ottla", ours), *(Entrant(peer, makers[peer]) for peer in peers)]
