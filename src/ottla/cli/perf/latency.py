"""`ottla perf latency`: measures the time from a producer to a consumer, at a rate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.options.types import parsed
from ottla.cli.perf import options
from ottla.cli.perf.produce import refuse_existing, workload_of
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
from ottla.cli.values.rates import parse_record_rate

if TYPE_CHECKING:
    from ottla.config import Security

_SECONDS = 10.0


@click.command()
@options.perf_options(
    click.option(
        "--rate",
        metavar="RATE",
        callback=parsed(parse_record_rate),
        default="1000/s",
        show_default=True,
        help="Records per second, as 1000 or 50k/s.",
    ),
    options.records_option,
    options.duration_option,
    options.size_option,
    options.codec_option,
    options.acks_option,
    options.batch_option,
    options.linger_option("0s"),
    options.warmup_option,
    options.partitions_option,
    options.replicas_option,
    options.existing_option,
)
def latency(
    topics: tuple[str, ...],
    *,
    bootstrap: str,
    security: Security,
    timeout: float,
    existing: bool,
    html: Path | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Measure the time from when a record is due to when a program has read it.

    Records are sent at --rate and read at the same time, by this process, whose monotonic clock measures both. Latency
    counts from the moment a record was due, so that a stall counts for every record it delayed. Each record is checked:
    what does not arrive is an error (exit code 1).

    \b
    Examples:
      ottla perf latency perf-test
      ottla perf latency perf-test --rate 10k/s --duration 1m --partitions 6 --html report.html
      ottla perf latency perf-test --acks 1 --size 1kB --json
    """
    from ottla.admin import Admin
    from ottla.operations.perf.latency import LATENCY, Latencies
    from ottla.operations.perf.topics import prepared

    check_page(html)
    workload = workload_of(topics, seconds_if_endless=_SECONDS, **settings)
    brokers = brokers_of(bootstrap, security, timeout)
    run = Latencies(workload, brokers)
    with Admin(brokers) as admin, stopping() as stopped:
        refuse_existing(admin, workload, existing)
        with prepared(admin, workload, writes=True, existing_too=existing) as topics_of_run:
            say_created(topics_of_run.created)
            runs = measure([Entrant("ottla", lambda _: run)], stopped)
            shown = workload.settings() | {"partitions": topics_of_run.partitions}
    finish(Test("latency", LATENCY, shown), runs, Outputs(as_json, html), stopped)
