"""`ottla archive`: topics into a folder of Parquet files or a Delta table, exactly once, here, by a fleet or by Spark.

It parses, checks everything that can be wrong before anything is written, runs the archiver and reports.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ottla.cli import Failure, Misuse
from ottla.cli.options.bootstrap import bootstrap_option
from ottla.cli.options.connecting import meet
from ottla.cli.options.fleet import STORE_VARIABLE, find_store
from ottla.cli.options.general import json_option
from ottla.cli.options.reading import isolation_option, max_batch_bytes_option, parsed, topics_argument
from ottla.cli.options.security import security_options
from ottla.cli.terminal.interrupting import Interrupted, Interruption
from ottla.cli.terminal.progress import LiveLine
from ottla.cli.values.times import ACCEPTED, parse_time
from ottla.cli.values.units import DURATIONS, SIZES, parse_duration, parse_size, show_size
from ottla.errors import ArchiveIncomplete

if TYPE_CHECKING:
    from ottla.config import Security
    from ottla.events.values import Event
    from ottla.jobs.archive_plan import Cutting
    from ottla.jobs.archive_range import ArchiveRange
    from ottla.jobs.archiving import ArchiveRequest, Progress
    from ottla.jobs.brokers import Brokers
    from ottla.lake.lake import Lake
    from ottla.model import OffsetRange

T = TypeVar("T")
_BAR = 24
_SMALLEST_FILE = 1 << 16
_EVERY = 60.0
"""How often files are written, in seconds, unless something else is said."""


def _partition_by(text: str) -> tuple[str, ...]:
    from ottla.lake.layout import LakeSettings, parse_partition_by

    return LakeSettings(partition_by=parse_partition_by(text)).partition_by


def _event_time(text: str) -> str:
    from ottla.jobs import event_time

    return str(event_time.parse(text))


def _file_size(text: str) -> int:
    size = parse_size(text)
    if size < _SMALLEST_FILE:
        raise ValueError(f"{text!r} is too small for a file of an archive: at least {show_size(_SMALLEST_FILE)}")
    return size


def _start(text: str) -> str | datetime:
    if text in ("earliest", "latest"):
        return text
    try:
        return parse_time(text, now=datetime.now(UTC))
    except ValueError as error:
        raise ValueError(f"{text!r} is nowhere to begin: earliest, latest, or a time ({ACCEPTED})") from error


@click.command()
@topics_argument
@click.option("--to", "path", required=True, metavar="PATH", help="A folder: a new or empty one, or an archive.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["parquet", "delta"]),
    help="A folder of Parquet files, or a Delta table as well.  [default: parquet]",
)
@click.option(
    "--partition-by",
    metavar="NAMES",
    callback=parsed(_partition_by),
    help="Folders: topic, partition, date, hour, in this order, or none.  [default: topic,date]",
)
@click.option(
    "--event-time",
    metavar="WHERE",
    callback=parsed(_event_time),
    help="The time that date and hour are of: record, header:NAME, json:FIELD or json:FIELD.FIELD.  [default: record]",
)
@click.option("--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option("--until-now", is_flag=True, help="End where the topics end now. What is done without --follow.")
@click.option(
    "--every",
    metavar="DURATION",
    callback=parsed(parse_duration),
    help=f"With --follow: how often files are written; {DURATIONS}.  [default: {_EVERY:.0f}s]",
)
@click.option(
    "--start",
    default="earliest",
    show_default=True,
    metavar="PLACE",
    callback=parsed(_start),
    help="earliest, latest or a time: where to begin with topics that the archive does not have yet.",
)
@click.option(
    "--on-lost",
    type=click.Choice(["error", "earliest"]),
    default="error",
    show_default=True,
    help="When retention has deleted records that were not archived yet: fail, or go on and record the gap.",
)
@click.option("--group", metavar="NAME", help="Commit how far the archive is as the offsets of this consumer group.")
@click.option(
    "--file-size",
    "file_bytes",
    default="128MiB",
    show_default=True,
    metavar="SIZE",
    callback=parsed(_file_size),
    help=f"How large a file should become, about; {SIZES}.",
)
@click.option(
    "--batch-size",
    "batch_bytes",
    metavar="SIZE",
    callback=parsed(_file_size),
    help="How much is recorded at once, about.  [default: four files for each worker]",
)
@click.option(
    "--max-folders",
    type=click.IntRange(1, 1 << 20),
    default=400,
    show_default=True,
    metavar="N",
    help="Folders that a range may be divided into; records beyond are with those that have no readable time.",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "spark", "fleet"]),
    default="local",
    show_default=True,
    help="Who does the work: this process, Spark, or the nodes of a fleet ('ottla work serve').",
)
@click.option("--workers", type=click.IntRange(1, 1024), metavar="N", help="Ranges at a time.  [default: processors]")
@click.option("--master", metavar="URL", help="With --engine spark: where Spark runs.  [default: local[*]]")
@click.option("--checkpoint", metavar="PATH", help="With --engine spark: its own folder.  [default: in the archive]")
@click.option(
    "--store",
    metavar="URL",
    help=f"With --engine fleet: where its nodes meet, as redis://HOST. Without it: {STORE_VARIABLE}, else the Redis of"
    " the running local cluster.",
)
@isolation_option
@max_batch_bytes_option
@bootstrap_option
@security_options
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=60.0,
    show_default=True,
    help="Seconds that brokers may be away before it fails; with --follow, only when it begins.",
)
@json_option
@click.pass_context
def archive(
    context: click.Context,
    /,
    topics: tuple[str, ...],
    *,
    path: str,
    follow: bool,
    until_now: bool,
    every: float | None,
    start: str | datetime,
    on_lost: str,
    group: str | None,
    file_bytes: int,
    batch_bytes: int | None,
    max_folders: int,
    engine: str,
    workers: int | None,
    master: str | None,
    checkpoint: str | None,
    store: str | None,
    isolation: str,
    max_batch_bytes: int,
    bootstrap: str,
    security: Security,
    timeout: float,
    as_json: bool,
    **layout: Any,
) -> None:
    """Archive TOPICs into PATH: every record exactly once, whatever is killed on the way.

    Ends where the topics end now, or with --follow never. Another run goes on where the last one stopped. Readers of
    Parquet (Spark, DuckDB, Polars, pandas) need nothing of Ottla; 'ottla lake verify' proves that all is there. Ends
    with 0 when done, 1 when something failed, 2 when used wrongly, 130 after Ctrl-C, with what was recorded in order.

    \b
    Examples:
      ottla archive clicks --to /data/clicks                                  what is there now
      ottla archive clicks users --to /data/lake --partition-by topic,date,hour --event-time json:ts
      ottla archive clicks --to /data/clicks --follow --every 5m --group archiver
      ottla archive clicks --to /data/table --format delta --engine spark --master spark://host:7077
      ottla archive clicks --to /shared/clicks --engine fleet --store redis://host     with 'ottla work serve' elsewhere
    """
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
    from ottla.lake.writer import FileOptions

    if follow and until_now:
        raise Misuse("--follow and --until-now exclude one another")
    if every is not None and not follow:
        raise Misuse("--every is for --follow")
    pace = (every or _EVERY) if follow else None
    if engine != "spark" and (master or checkpoint):
        raise Misuse(f"{'--master' if master else '--checkpoint'} is for --engine spark")
    if engine != "fleet" and store is not None:
        raise Misuse("--store is for --engine fleet")
    if engine == "fleet":
        store = store or find_store()
    nodes = None if store is None else open_store(store, JOBS)
    brokers = Brokers(
        bootstrap=bootstrap,
        security=security,
        timeouts=Timeouts(total=timeout),
        isolation=parse_isolation(isolation),
        fetching=Fetching(max_batch_bytes=max_batch_bytes),
    )
    wanted = ArchiveRequest(topics=topics, start=start, on_lost=OnLost(on_lost), group=group)
    with Interruption() as interruption:
        lake: Lake | None = None
        task: Task | None = None
        progress = Progress()
        with suppress(Interrupted, ArchiveIncomplete):
            lake = prepared(path, topics, brokers, interruption, timeout=timeout, **layout)
            job = ArchiveRange(
                brokers=brokers,
                path=str(lake.path),
                settings=lake.settings,
                options=FileOptions(file_bytes=file_bytes, max_folders=max_folders),
            )
            cutting = Cutting(
                file_bytes=file_bytes, workers=workers or local.default_workers(), batch_bytes=batch_bytes or 0
            )
            task = Task(lake, job, wanted, cutting, interruption, progress)
            if engine == "local":
                task.run(_threads(cutting.workers), every=pace)
            elif nodes is not None:
                with closing(nodes):
                    by_fleet = partial(jobs.run, kind=ArchiveKind(brokers), store=nodes, threads=cutting.workers)
                    task.run(by_fleet, name="fleet", every=pace)
            else:
                _spark_engine()(task, master=master, checkpoint=checkpoint, every=pace)
    troubles = {} if task is None else task.troubles
    if lake is not None:
        _report(lake, progress, topics, troubles, as_json=as_json, is_interrupted=bool(interruption.asked))
    context.exit(interruption.exit_code or (1 if troubles else 0))


def prepared(
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
    """The archive; what of its layout no option names is as it is there."""
    from ottla.jobs.archives import open_archive
    from ottla.lake.lake import Lake
    from ottla.lake.layout import Format, LakeSettings

    there = Lake.find(path)
    base = LakeSettings() if there is None else there.settings
    layout = LakeSettings(
        format=base.format if form is None else Format(form),
        partition_by=base.partition_by if partition_by is None else partition_by,
        event_time=base.event_time if event_time is None else event_time,
    )
    interruption.wait(lambda: meet(brokers.bootstrap, brokers.security, timeout=timeout))
    return open_archive(path, topics, brokers, layout=layout, ask=interruption.wait)


@dataclass(slots=True)
class Task:
    """What the command was asked to do."""

    lake: Lake
    job: ArchiveRange
    wanted: ArchiveRequest
    cutting: Cutting
    interruption: Interruption
    progress: Progress
    troubles: dict[str, str] = field(default_factory=dict)
    """Topics that could not be archived, and why."""

    def run(self, engine: Any, *, name: str = "local", every: float | None) -> None:
        """By an engine that runs a job over ranges."""
        from ottla.jobs.archiving import Archiving

        said: list[Callable[[str], None]] = []

        def tell(event: Event) -> None:
            for say in said[-1:] or [lambda text: click.echo(text, err=True)]:
                say(f"{event}")

        archiving = Archiving(
            self.lake,
            self.job,
            self.wanted,
            engine=engine,
            cutting=self.cutting,
            name=name,
            waiting=self.interruption.wait,
            progress=self.progress,
            events=[tell],
        )
        entries = archiving.until_now() if every is None else archiving.follow(every=every)
        try:
            with LiveLine(lambda: show(self.progress)) as live, closing(entries):
                said.append(live.say)
                for _ in entries:
                    self.interruption.check()
        finally:
            self.troubles = {topic: str(error) for topic, error in archiving.troubles.items()}


def show(progress: Progress) -> str:
    """How things stand, in a line."""
    share = min(1.0, progress.passed / progress.expected) if progress.expected else 1.0
    rate = progress.size_bytes / progress.seconds / 1e6
    return (
        f"[{'#' * int(share * _BAR):-<{_BAR}}] {share:4.0%}  {progress.records:,} records archived,"
        f" {rate:,.1f} MB/s, lag {progress.lag:,}"
    )


def _spark_engine() -> Any:
    try:
        from ottla.cli.archive_spark import archive_by_spark
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyspark":
            raise
        raise Failure("--engine spark needs the extra packages: pip install 'ottla[spark]'") from error
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
    troubles: Mapping[str, str],
    *,
    as_json: bool,
    is_interrupted: bool,
) -> None:
    positions = {str(at): offset for at, offset in sorted(lake.positions().items()) if at.topic in topics}
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
            "not_archived": dict(troubles),
            "positions": positions,
        }
        click.echo(json.dumps(row))
        return
    if progress.records:
        click.echo(
            f"{progress.records:,} records ({show_size(progress.size_bytes)}) archived in {progress.seconds:.1f} s:"
            f" {progress.files:,} file{'s' if progress.files != 1 else ''} of together {show_size(progress.file_bytes)}"
            f" in {lake.path}"
        )
    else:
        whole = ", ".join(topic for topic in topics if topic not in troubles)
        click.echo(f"nothing new: {lake.path} has all of {whole}" if not is_interrupted and whole else "nothing")
    for topic, reason in sorted(troubles.items()):
        click.echo(f"not archived: topic {topic}: {reason}", err=True)
    if progress.untimed:
        click.echo(
            f"{progress.untimed:,} records have no readable event time: they are in the folder for that", err=True
        )
    if progress.lost:
        click.echo(
            f"{progress.lost:,} offsets were deleted by retention before they were archived; the ledger names them",
            err=True,
        )
