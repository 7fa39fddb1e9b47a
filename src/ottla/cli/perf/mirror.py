"""`ottla perf mirror`: measures mirroring topics to another cluster, or to the same one under other names."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.mirror.sides import side_option
from ottla.cli.perf import options
from ottla.cli.perf.consume import fill
from ottla.cli.perf.produce import workload_of
from ottla.cli.perf.running import Entrant, Outputs, Test, check_page, finish, measure, say_created, stopping

if TYPE_CHECKING:
    from ottla.jobs.brokers import Brokers


@click.command()
@side_option("from")
@side_option("to", required=False, note="[default: the source itself]")
@options.sides_options(
    options.records_option,
    options.duration_option,
    options.size_option,
    options.codec_option,
    options.partitions_option,
    options.replicas_option,
)
def mirror(
    topics: tuple[str, ...],
    *,
    source: Brokers,
    target: Brokers | None,
    timeout: float,
    html: Path | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Measure mirroring topics: rate and processor time of this process.

    Copies get names of their own at the target and are removed at the end, with the journal of the link. The clock runs
    from the first acknowledged records to the last. A topic that does not exist at the source is created, filled with
    --records records of --size, and removed, too.

    \b
    Examples:
      ottla perf mirror clicks --from edge:9092 --to hub:9092
      ottla perf mirror perf-test --records 1000000 --size 1kB --codec zstd --from localhost:9092
      ottla perf mirror clicks --from edge:9092 --to hub:9092 --duration 30s --json
    """
    from dataclasses import replace

    from ottla.admin import Admin
    from ottla.config import Timeouts
    from ottla.operations.perf.mirroring import LATENCY, MirrorRun, Route
    from ottla.operations.perf.topics import prepared, remove

    check_page(html)
    workload = workload_of(topics, seconds_if_endless=None, warmup=0.0, **settings)
    limits = Timeouts(total=timeout)
    source = replace(source, timeouts=limits)
    route = Route(
        source=source,
        target=source if target is None else replace(target, timeouts=limits),
        name=f"ottla-perf-{secrets.token_hex(4)}",
        replicas=settings["replicas"] or -1,
    )
    with (
        Admin(route.source) as admin,
        Admin(route.target) as target_admin,
        stopping() as stopped,
        prepared(admin, workload, writes=False) as topics_of_run,
    ):
        say_created(topics_of_run.created)
        fill(topics_of_run.created, workload, route.source, is_stopped=lambda: bool(stopped.asked))
        if stopped.asked:
            click.get_current_context().exit(stopped.exit_code)
        expected = sum(map(len, admin.log_ranges(workload.topics).values()))
        run = MirrorRun(workload, route, expected=expected)
        try:
            runs = measure([Entrant("ottla", lambda _: run)], stopped)
        finally:
            remove(target_admin, [*map(route.copy_of, workload.topics), route.journal])
        shown = workload.settings() | {"partitions": topics_of_run.partitions}
        if runs[0].records:
            shown["record_bytes"] = round(runs[0].size_bytes / runs[0].records)
    finish(Test("mirror", LATENCY, shown), runs, Outputs(as_json, html), stopped)
