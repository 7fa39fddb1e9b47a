"""`ottla archive`: topics into Parquet files or a Delta table, exactly once; locally, on a fleet, or with Spark.

The command checks everything before it writes anything, runs the archiver and reports.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing, suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ottla._lazy import EXTRAS
from ottla.cli.completion.values import complete_groups
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.options.bootstrap import bootstrap_option
from ottla.cli.options.common import (
    follow_option,
    isolation_option,
    json_option,
    max_batch_size_option,
    timeout_option,
    topics_argument,
    workers_option,
)
from ottla.cli.options.connection import require_brokers
from ottla.cli.options.old import old_flag, old_spelling
from ottla.cli.options.places import from_option, require_order, until_option
from ottla.cli.options.security import security_options
from ottla.cli.options.store import STORE_VARIABLE, find_store
from ottla.cli.options.types import Duration, Integer, Size, parsed
from ottla.cli.terminal.interruption import Interrupted, Interruption
from ottla.cli.values.places import Place
from ottla.cli.values.quantities import show_size
from ottla.errors import ArchiveIncomplete

if TYPE_CHECKING:
    from ottla.cli.archive.task import Task
    from ottla.config import Security
    from ottla.fetch import bounds as fetch
    from ottla.jobs.archiving import Progress
    from ottla.jobs.brokers import Brokers
    from ottla.lake.lake import Lake
    from ottla.model import OffsetRange

T = TypeVar("T")
_SMALLEST_FILE = 1 << 16
_EVERY = 60.0
"""How often files are written by default, in seconds."""


def _partition_by(text: str) -> tuple[str, ...]:
    from ottla.lake.layout import LakeSettings, parse_partition_by

    return LakeSettings(partition_by=parse_partition_by(text)).partition_by


def _event_time(text: str) -> str:
    from ottla.jobs import event_time

    return str(event_time.parse(text))


@click.command()
@topics_argument
@click.option("--to", "path", required=True, metavar="PATH", help="Folder of the archive; a new one is created.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["parquet", "delta"]),
    help="Parquet files, or also a Delta table.  [default: parquet]",
)
@click.option(
    "--partition-by",
    metavar="NAMES",
    callback=parsed(_partition_by),
    help="Subfolders: topic, partition, date, hour, in this order, or none.  [default: topic,date]",
)
@click.option(
    "--event-time",
    metavar="WHERE",
    callback=parsed(_event_time),
    help="Time for date and hour: record, header:NAME, json:FIELD or json:FIELD.FIELD.  [default: record]",
)
@from_option("Where to start topics that are new to the archive")
@old_spelling("--start", "--from", metavar="PLACE")
@until_option()
@old_flag("--until-now", "--until", "latest")
@follow_option
@click.option("--every", type=Duration(0.1), help=f"With --follow: how often to write files.  [default: {_EVERY:.0f}s]")
@click.option(
    "--on-lost",
    type=click.Choice(["error", "earliest"]),
    default="error",
    show_default=True,
    help="If records were deleted before they were archived: fail, or continue and record the gap.",
)
@click.option(
    "--commit-group",
    metavar="NAME",
    shell_complete=complete_groups,
    help="Keep the offsets of this consumer group up to date with the archive.",
)
@old_spelling("--group", "--commit-group", metavar="NAME")
@click.option(
    "--file-size",
    type=Size(_SMALLEST_FILE),
    default="128MiB",
    show_default=True,
    help="Approximate size of a file.",
)
@click.option(
    "--entry-size",
    type=Size(_SMALLEST_FILE),
    help="Approximate amount of data in an entry of the ledger.  [default: four files for each worker]",
)
@old_spelling("--batch-size", "--entry-size", metavar="SIZE")
@click.option(
    "--max-folders",
    type=Integer(1, 1 << 20),
    default=400,
    show_default=True,
    help="Maximum number of subfolders for a range; further records go to those without a readable time.",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "spark", "fleet"]),
    default="local",
    show_default=True,
    help="What does the work: this process, Spark, or nodes of a fleet ('ottla work serve').",
)
@workers_option("--workers", "Ranges at a time.  [default: processors]")
@click.option("--master", metavar="URL", help="With --engine spark: where Spark runs.  [default: local[*]]")
@click.option("--checkpoint", metavar="PATH", help="With --engine spark: its checkpoint.  [default: in the archive]")
@click.option(
    "--store",
    metavar="URL",
    help=f"With --engine fleet: the store of its nodes, as redis://HOST.  [default: {STORE_VARIABLE}, then the Redis of"
    " the running local cluster]",
)
@isolation_option
@max_batch_size_option
@bootstrap_option
@security_options
@timeout_option("60s", note="With --follow, only at the start.")
@json_option
@click.pass_context
def archive(
    context: click.Context,
    /,
    topics: tuple[str, ...],
    *,
    path: str,
    follow: bool,
    every: float | None,
    start: Place,
    stop: Place | None,
    on_lost: str,
    commit_group: str | None,
    file_size: int,
    entry_size: int | None,
    max_folders: int,
    engine: str,
    workers: int | None,
    master: str | None,
    checkpoint: str | None,
    store: str | None,
    isolation: str,
    max_batch_size: int,
    bootstrap: str,
    security: Security,
    timeout: float,
    as_json: bool,
    **layout: Any,
) -> None:
    """Archive TOPICs into PATH: every record exactly once, even if the archiver is killed.

    Ends where the topics end now, unless --until or --follow says otherwise. The next run continues where the last one
    stopped. Spark, DuckDB, Polars and pandas read the files without Ottla; 'ottla lake verify' proves that they are
    complete. Exit codes: 0 success, 1 failure, 2 usage error, 130 after Ctrl-C, with the archive in a valid state.

    \b
    Examples:
      ottla archive clicks --to /data/clicks                                  existing records
      ottla archive clicks users --to /data/lake --partition-by topic,date,hour --event-time json:ts
      ottla archive clicks --to /data/clicks --follow --every 5m --commit-group archiver
      ottla archive clicks --to /data/table --format delta --engine spark --master spark://host:7077
      ottla archive clicks --to /shared/clicks --engine fleet --store redis://host     on 'ottla work serve' nodes
    """
    from ottla.cli.archive.task import Task
    from ottla.config import Timeouts
    from ottla.engines import local
    from ottla.engines.fleet import jobs
    from ottla.engines.fleet.jobs import JOBS
    from ottla.engines.fleet.store import open_store
    from ottla.fetch.options import Fetching, OnLost, parse_isolation
    from ottla.jobs.archive_kind import ArchiveKind
    from ottla.jobs.archive_plan import Cutting
    from ottla.jobs.archive_range import ArchiveRange
    from ottla.jobs.archiving import ArchiveRequest, Progress
    from ottla.jobs.brokers import Brokers
    from ottla.lake import delta
    from ottla.lake.writer import FileOptions

    if follow and stop is not None:
        raise UsageError("--follow and --until are mutually exclusive")
    require_order(start, stop)
    if every is not None and not follow:
        raise UsageError("--every needs --follow")
    if commit_group == "":
        raise UsageError("--commit-group needs a name")
    interval = (every or _EVERY) if follow else None
    if engine != "spark" and (master or checkpoint):
        raise UsageError(f"{'--master' if master else '--checkpoint'} needs --engine spark")
    if engine != "fleet" and store is not None:
        raise UsageError("--store needs --engine fleet")
    if engine == "spark":
        _spark_engine()
    if layout["form"] == "delta":
        delta.require()
    if engine == "fleet":
        store = store or find_store()
    nodes = None if store is None else open_store(store, JOBS)
    brokers = Brokers(
        bootstrap=bootstrap,
        security=security,
        timeouts=Timeouts(total=timeout),
        isolation=parse_isolation(isolation),
        fetching=Fetching(max_batch_bytes=max_batch_size),
    )
    with Interruption() as interruption:
        lake: Lake | None = None
        task: Task | None = None
        progress = Progress()
        with suppress(Interrupted, ArchiveIncomplete):
            lake = _prepare(path, topics, brokers, interruption, timeout=timeout, **layout)
            wanted = ArchiveRequest(
                topics=topics,
                start=interruption.wait(lambda: _resolved(start, topics, brokers, timeout)),
                stop=None if stop is None else interruption.wait(lambda: _resolved(stop, topics, brokers, timeout)),
                on_lost=OnLost(on_lost),
                group=commit_group,
            )
            job = ArchiveRange(
                brokers=brokers,
                path=str(lake.path),
                settings=lake.settings,
                options=FileOptions(file_bytes=file_size, max_folders=max_folders),
            )
            cutting = Cutting(
                file_bytes=file_size, workers=workers or local.default_workers(), batch_bytes=entry_size or 0
            )
            task = Task(lake, job, wanted, cutting, interruption, progress)
            if engine == "local":
                task.run(_threads(cutting.workers), every=interval)
            elif nodes is not None:
                with closing(nodes):
                    by_fleet = partial(jobs.run, kind=ArchiveKind(brokers), store=nodes, threads=cutting.workers)
                    task.run(by_fleet, name="fleet", every=interval)
            else:
                _spark_engine()(task, master=master, checkpoint=checkpoint, every=interval)
    failures = {} if task is None else task.failures
    if lake is not None:
        _report(
            lake,
            progress,
            topics,
            failures,
            as_json=as_json,
            is_interrupted=bool(interruption.asked),
            is_limited=stop not in (None, "latest"),
        )
    context.exit(interruption.exit_code or (1 if failures else 0))


def _prepare(
    path: str,
    topics: tuple[str, ...],
    brokers: Brokers,
    interruption: Interruption,
    *,
    timeout: float,
    form: str | None,
    partition_by: tuple[str, ...] | None,
    event_time: str | None,
) -> Lake:
    """Open or create the archive; options that are not given keep the layout of an existing one."""
    from ottla.jobs.archives import open_archive
    from ottla.lake.lake import Lake
    from ottla.lake.layout import Format, LakeSettings

    existing = Lake.find(path)
    base = LakeSettings() if existing is None else existing.settings
    layout = LakeSettings(
        format=base.format if form is None else Format(form),
        partition_by=base.partition_by if partition_by is None else partition_by,
        event_time=base.event_time if event_time is None else event_time,
    )
    interruption.wait(lambda: require_brokers(brokers.bootstrap, brokers.resolved_security(), timeout=timeout))
    return open_archive(path, topics, brokers, layout=layout, ask=interruption.wait)


def _resolved(place: Place, topics: tuple[str, ...], brokers: Brokers, timeout: float) -> fetch.Bound:
    """Return the place in a form that the library understands."""
    from ottla.cli.ranges import ReadPlan

    if isinstance(place, str | int | datetime):
        return place
    plan = ReadPlan(topics=topics, start=place, timeout=timeout)
    with brokers.reader() as reader:
        return plan.resolve_start(reader)


def _spark_engine() -> Any:
    try:
        from ottla.cli.archive.spark import archive_by_spark
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRAS["spark"]:
            raise
        raise CommandFailed("--engine spark needs extra packages: pip install 'ottla[spark]'") from error
    return archive_by_spark


def _threads(workers: int) -> Any:
    from ottla.engines import local

    def engine(job: Callable[[OffsetRange], T], ranges: Iterable[OffsetRange], /) -> Generator[T, None, None]:
        return local.run(job, ranges, workers=workers)

    return engine


def _report(
    lake: Lake,
    progress: Progress,
    topics: tuple[str, ...],
    failures: Mapping[str, str],
    *,
    as_json: bool,
    is_interrupted: bool,
    is_limited: bool,
) -> None:
    positions = {str(tp): offset for tp, offset in sorted(lake.positions().items()) if tp.topic in topics}
    if as_json:
        row = {
            "path": str(lake.path),
            "format": lake.settings.format.value,
            "topics": list(topics),
            "records": progress.records,
            "bytes": progress.size_bytes,
            "files": progress.files,
            "file_bytes": progress.file_bytes,
            "entries": progress.entries,
            "without_time": progress.untimed,
            "lost": progress.lost,
            "lag": progress.lag,
            "seconds": round(progress.seconds, 3),
            "interrupted": is_interrupted,
            "not_archived": dict(failures),
            "positions": positions,
        }
        click.echo(json.dumps(row))
        return
    if progress.records:
        click.echo(
            f"{progress.records:,} records ({show_size(progress.size_bytes)}) archived in {progress.seconds:.1f} s:"
            f" {progress.files:,} file{'s' if progress.files != 1 else ''}, {show_size(progress.file_bytes)},"
            f" in {lake.path}"
        )
    else:
        complete = ", ".join(topic for topic in topics if topic not in failures)
        is_complete = not is_interrupted and complete
        limit = " up to --until" if is_limited else ""
        click.echo(f"nothing new: {lake.path} has all of {complete}{limit}" if is_complete else "nothing archived")
    for topic, reason in sorted(failures.items()):
        click.echo(f"not archived: topic {topic}: {reason}", err=True)
    if progress.untimed:
        click.echo(
            f"{progress.untimed:,} records have no readable event time: they are in a folder of their own", err=True
        )
    if progress.lost:
        click.echo(
            f"{progress.lost:,} offsets were deleted before they were archived; 'ottla lake status' lists them",
            err=True,
        )
