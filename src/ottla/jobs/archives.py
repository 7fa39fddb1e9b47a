"""`archive`: topics into a folder of Parquet or Delta with one call, for programs. `ottla archive` does the same.

Topics, a folder and brokers come in. The call returns what it archived once everything that was in the topics at the
time of the call is in the archive, exactly once. Threads of this process do the work, or tasks of a Spark session.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ottla.errors import ConfigError
from ottla.fetch.options import OnLost, parse_on_lost
from ottla.jobs import event_time as event_times
from ottla.jobs.archive_plan import Cutting, Start
from ottla.jobs.archive_range import ArchiveRange, Brokers
from ottla.jobs.archiving import ArchiveRequest, Archiving, Progress
from ottla.jobs.engine_choice import choose_engine, engine_name, parallelism
from ottla.lake.lake import Lake
from ottla.lake.layout import Format, LakeSettings, parse_format, parse_partition_by
from ottla.lake.writer import FileOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ottla.jobs.engine_choice import EngineChoice

_FILES = FileOptions()
_DEFAULT = LakeSettings()


def archive(
    topics: str | Iterable[str],
    to: str | os.PathLike[str],
    *,
    brokers: Brokers | str,
    format: Format | str | None = None,  # noqa: A002
    partition_by: str | Iterable[str] | None = None,
    event_time: str | None = None,
    layout: LakeSettings | None = None,
    engine: EngineChoice | None = None,
    spark: SparkSession | None = None,
    workers: int | None = None,
    files: FileOptions = _FILES,
    start: Start = "earliest",
    on_lost: OnLost | str = OnLost.ERROR,
    group: str | None = None,
) -> Progress:
    """Archive what is in the topics now, and return what this call added to the archive.

    A call continues where the last one stopped. `to` is the folder of the archive, `files` says how large files become.
    `format`, `partition_by` and `event_time` (or all three as `layout`)
    count for a new archive; an existing one keeps its own and refuses others. `start` is where topics begin that the
    archive does not have yet: a bound as for `Reader`. With `on_lost="earliest"`, records that retention deleted before
    they were archived become a gap in the ledger. `group` is a consumer group whose offsets follow the archive, for
    tools that show lag.

    Raises `ConfigError` or `InputError` for wrong arguments, `LakeError` if the folder is not an archive, is damaged or
    has another layout, `OffsetsLost` if retention deleted records before they were archived (unless `on_lost` says
    otherwise), `ArchiveIncomplete` if some of several topics could not be archived, and the errors of `Reader` if
    brokers cannot be reached.
    """
    runner = choose_engine(engine, spark=spark, workers=workers)
    setup = set_up(
        topics,
        to,
        brokers=brokers,
        format=format,
        partition_by=partition_by,
        event_time=event_time,
        layout=layout,
        files=files,
        start=start,
        on_lost=on_lost,
        group=group,
    )
    archiving = Archiving(
        *setup,
        engine=runner,
        cutting=Cutting(file_bytes=files.file_bytes, workers=parallelism(spark, workers)),
        name=engine_name(engine, spark),
    )
    for _ in archiving.until_now():
        pass
    return archiving.progress


class ArchiveSetup(NamedTuple):
    """An open archive, the job that archives one range, and what to archive."""

    lake: Lake
    job: ArchiveRange
    request: ArchiveRequest


def set_up(
    topics: str | Iterable[str],
    to: str | os.PathLike[str],
    *,
    brokers: Brokers | str,
    format: Format | str | None,  # noqa: A002
    partition_by: str | Iterable[str] | None,
    event_time: str | None,
    layout: LakeSettings | None,
    files: FileOptions,
    start: Start,
    on_lost: OnLost | str,
    group: str | None,
) -> ArchiveSetup:
    """Check the arguments of an archive and open it, or create it. Raises what `archive` raises before it reads."""
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    # First, because a wrong argument leaves no folder behind.
    request = ArchiveRequest(topics=names, start=start, on_lost=parse_on_lost(on_lost), group=group)
    source = brokers if isinstance(brokers, Brokers) else Brokers(bootstrap=brokers)
    settings = _layout(to, layout, file_format=format, partition_by=partition_by, event_time=event_time)
    lake = open_archive(to, names, source, layout=settings)
    job = ArchiveRange(brokers=source, path=str(lake.path), settings=lake.settings, options=files)
    return ArchiveSetup(lake, job, request)


def open_archive(
    path: str | os.PathLike[str],
    topics: Iterable[str],
    brokers: Brokers,
    *,
    layout: LakeSettings | None = None,
    ask: Callable[[Callable[[], object]], object] = lambda step: step(),
) -> Lake:
    """Open the archive, or create it once the topics are known to exist: a typo leaves no folder behind.

    `ask` runs each step that waits for brokers. Raises `LakeError` if the archive has another layout, and the errors of
    `Reader` if a topic does not exist or brokers cannot be reached.
    """
    existing = Lake.find(path)
    settings = layout or (_DEFAULT if existing is None else existing.settings)
    if settings.format is Format.DELTA:
        from ottla.lake import delta

        delta.require()
    if existing is None:
        with brokers.reader() as reader:
            for topic in topics:
                ask(partial(reader.cluster.topic, topic))
    return Lake.create(path, settings)  # refuses an existing archive with other settings


def _layout(
    path: str | os.PathLike[str],
    layout: LakeSettings | None,
    *,
    file_format: Format | str | None,
    partition_by: str | Iterable[str] | None,
    event_time: str | None,
) -> LakeSettings | None:
    """Return the layout that was asked for; None if nothing was. What was left out is as in the existing archive."""
    if file_format is None and partition_by is None and event_time is None:
        return layout
    if layout is not None:
        raise ConfigError("layout and format, partition_by, event_time are mutually exclusive")
    existing = Lake.find(path)
    base = _DEFAULT if existing is None else existing.settings
    folders = parse_partition_by(partition_by) if isinstance(partition_by, str) else partition_by
    return LakeSettings(
        format=base.format if file_format is None else parse_format(file_format),
        partition_by=base.partition_by if folders is None else tuple(folders),
        event_time=base.event_time if event_time is None else str(event_times.parse(event_time)),
        no_date=base.no_date,
    )
