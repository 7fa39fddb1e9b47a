"""`ottla perf produce`: measures sending records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.perf import options
from ottla.cli.perf.peers import check_peers
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
    from ottla.operations.perf.meter import Measured
    from ottla.operations.perf.workload import Workload

_SECONDS = 10.0
"""How long to measure without --records and --duration."""


@click.command()
@options.perf_options(
    options.records_option,
    options.duration_option,
    options.size_option,
    options.rate_option,
    options.threads_option,
    options.codec_option,
    options.acks_option,
    options.batch_option,
    options.linger_option("5ms"),
    options.warmup_option,
    click.option(
        "--api",
        type=click.Choice(["send", "send_many", "send_table"]),
        default="send_many",
        show_default=True,
        help="Call of the producer: one record, lists of up to 1,000, Arrow tables of as many.",
    ),
    options.partitions_option,
    options.replicas_option,
    options.existing_option,
    options.beside_option,
)
def produce(
    topics: tuple[str, ...],
    *,
    bootstrap: str,
    security: Security,
    timeout: float,
    existing: bool,
    beside: tuple[str, ...] | None,
    html: Path | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Measure sending records: rate, processor time of this process, and latency percentiles.

    Latency is the time from handing records in to their acknowledgement. With --rate it counts from the moment a record
    was due, so that a stall counts for every record it delayed. Without --records and --duration it takes ten seconds.

    \b
    Examples:
      ottla perf produce perf-test --records 1000000 --size 1kB --partitions 6
      ottla perf produce perf-test --duration 30s --codec zstd --threads 2 --json
      ottla perf produce perf-test --rate 50k/s --duration 1m --html report.html
      ottla perf produce perf-test --records 1000000 --beside confluent,java
    """
    from ottla.admin import Admin
    from ottla.operations.perf.produce import LATENCY
    from ottla.operations.perf.topics import prepared

    check_page(html)
    workload = workload_of(topics, seconds_if_endless=_SECONDS, **settings)
    peers = check_peers(beside, workload, security)
    brokers = brokers_of(bootstrap, security, timeout)
    with Admin(brokers) as admin, stopping() as stopped:
        refuse_existing(admin, workload, existing)
        with prepared(admin, workload, writes=True, existing_too=existing) as topics_of_run:
            say_created(topics_of_run.created)
            runs = measure(_entrants(workload, brokers, peers), stopped)
            shown = workload.settings() | {"partitions": topics_of_run.partitions}
    finish(Test("produce", LATENCY, shown), runs, Outputs(as_json, html), stopped)


def workload_of(topics: tuple[str, ...], *, seconds_if_endless: float | None, **settings: Any) -> Workload:
    """Return the workload that the options describe. Raises `ConfigError` if there can be none."""
    from ottla.operations.perf.workload import Workload, without_empty

    given = without_empty(settings)
    if seconds_if_endless is not None and "records" not in given and "seconds" not in given:
        given["seconds"] = seconds_if_endless
    return Workload(topics=topics, **given)


def refuse_existing(admin: Any, workload: Workload, existing: bool) -> None:
    """Raise `UsageError` for a topic that exists, unless it may be written to."""
    from ottla.cli.errors import UsageError
    from ottla.operations.perf.topics import existing as existing_of

    there = [] if existing else existing_of(admin, workload.topics)
    if there:
        raise UsageError(
            f"topic {there[0]} exists: pass --existing to add records to it, or name one that does not exist, which is"
            " created and removed"
        )


def _entrants(workload: Workload, brokers: Brokers, peers: tuple[str, ...]) -> list[Entrant]:
    from ottla.operations.perf.produce import OttlaSending, Producing

    def ours(_: Sequence[Measured]) -> Run:
        return Producing(workload, lambda: OttlaSending(workload, brokers))

    makers = {"confluent": _confluent, "java": _java}
    others = [
        Entrant(peer, lambda measured, make=makers[peer]: make(workload, brokers, measured[0]))  # type: ignore[misc]
        for peer in peers
    ]
    return [Entrant("ottla", ours), *others]


def _confluent(workload: Workload, brokers: Brokers, ours: Measured) -> Run:
    from dataclasses import replace

    from ottla.operations.perf.confluent import ConfluentSending
    from ottla.operations.perf.produce import Producing

    same = replace(workload, records=max(1, ours.records), seconds=None)
    return Producing(same, lambda: ConfluentSending(same, brokers.bootstrap), client="confluent")


def _java(workload: Workload, brokers: Brokers, ours: Measured) -> Run:
    from ottla.cli.perf.java import JavaRun

    return JavaRun("produce", workload, brokers, records=max(1, ours.records))
