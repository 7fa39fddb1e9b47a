"""`archive_stream`: topics into a folder with a streaming query, with one call, for programs.

A session, topics, a folder and brokers come in; a running query goes out. `ottla.jobs.archive` with a session does the
same up to the current ends and returns. The query itself is in `archiving.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ottla.errors import ConfigError
from ottla.fetch.options import OnLost
from ottla.jobs.archive_plan import Cutting, Start
from ottla.jobs.archives import set_up
from ottla.jobs.brokers import Brokers
from ottla.jobs.engine_choice import parallelism
from ottla.lake.layout import Format, LakeSettings
from ottla.lake.values import Entry
from ottla.lake.writer import FileOptions
from ottla.spark.archiving import ArchiveQuery, start_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILES = FileOptions()
_EVERY_SECONDS = 60.0


def archive_stream(
    spark: SparkSession,
    topics: str | Iterable[str],
    to: str | os.PathLike[str],
    *,
    brokers: Brokers | str,
    every: float | None = _EVERY_SECONDS,
    checkpoint: str | os.PathLike[str] | None = None,
    format: Format | str | None = None,  # noqa: A002
    partition_by: str | Iterable[str] | None = None,
    event_time: str | None = None,
    layout: LakeSettings | None = None,
    files: FileOptions = _FILES,
    start: Start = "earliest",
    on_lost: OnLost | str = OnLost.ERROR,
    group: str | None = None,
    on_entry: Callable[[Entry], None] | None = None,
) -> ArchiveQuery:
    """Start a streaming query that archives the topics: a batch `every` seconds, without an end.

    With `every=None` the query ends at the current ends of the topics. Spark keeps its offsets in `checkpoint`, a
    folder in the archive by default; what is archived is decided by the archive alone. `on_entry` gets every ledger
    entry, on another thread. The other arguments (`to`, `format`, `partition_by`,
    `event_time`, `layout`, `files`, `start`, `on_lost`, `group`) are those of `ottla.jobs.archive`.

    Raises `ConfigError` or `InputError` for wrong arguments, `ConfigError` for the checkpoint of another query,
    `LakeError` if the folder is not an archive, is damaged or has another layout, `OffsetsLost` if retention deleted
    records before they were archived (unless `on_lost` says otherwise), and the errors of `Reader` if brokers cannot be
    reached. Later errors are raised by `ArchiveQuery.wait`.
    """
    if every is not None and not _is_positive(every):
        raise ConfigError(f"every must be seconds above 0, or None for a query that ends, got {every!r}")
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
    return start_query(
        spark,
        setup.lake,
        setup.job,
        setup.request,
        cutting=Cutting(file_bytes=files.file_bytes, workers=parallelism(spark)),
        every=every,
        checkpoint=None if checkpoint is None else os.fspath(checkpoint),
        on_entry=on_entry,
    )


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and value > 0
