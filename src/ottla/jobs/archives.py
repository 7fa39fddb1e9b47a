"""`archive`: topics into a folder of Parquet or Delta with one call, for programs; `ottla archive` does the same.

Topics, a folder and brokers come in; what was archived goes out when everything that was in the topics at the time of
the call is in the archive, exactly once. With a Spark session its tasks do the work, without one threads of this
process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.engines import local
from ottla.fetch.options import OnLost
from ottla.jobs.archive_plan import Cutting, Start
from ottla.jobs.archive_range import ArchiveRange, Brokers
from ottla.jobs.archiving import ArchiveRequest, Archiving, Progress
from ottla.lake.lake import Lake
from ottla.lake.layout import Format, LakeSettings
from ottla.lake.writer import FileOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILES = FileOptions()
_SOME = 8
"""Tasks at a time, about, where nobody tells how many there can be."""


def archive(
    topics: str | Iterable[str],
    to: str | os.PathLike[str],
    *,
    brokers: Brokers | str,
    layout: LakeSettings | None = None,
    spark: SparkSession | None = None,
    workers: int | None = None,
    files: FileOptions = _FILES,
    start: Start = "earliest",
    on_lost: OnLost = OnLost.ERROR,
    group: str | None = None,
) -> Progress:
    """Archives what is in the topics now, and returns what came into the archive.

    A call goes on where the last one stopped, whoever made that. An archive that is there keeps its `layout`; `start`
    is where topics begin that it does not have yet; `group` is told how far it is.
    """
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    reached = brokers if isinstance(brokers, Brokers) else Brokers(bootstrap=brokers)
    lake = open_archive(to, names, reached, layout=layout)
    job = ArchiveRange(brokers=reached, path=str(lake.path), settings=lake.settings, options=files)
    wanted = ArchiveRequest(topics=names, start=start, on_lost=on_lost, group=group)
    archiving = Archiving(
        lake,
        job,
        wanted,
        engine=_engine(spark, workers),
        cutting=Cutting(file_bytes=files.file_bytes, workers=workers or _parallel(spark)),
        name="local" if spark is None else "spark",
    )
    for _ in archiving.until_now():
        pass
    return archiving.progress


def open_archive(
    path: str | os.PathLike[str],
    topics: Iterable[str],
    brokers: Brokers,
    *,
    layout: LakeSettings | None = None,
    ask: Callable[[Callable[[], object]], object] = lambda step: step(),
) -> Lake:
    """The archive, created if it is not there: after the topics were found, so that a typing error leaves nothing.

    `ask` runs every step that waits for brokers.
    """
    there = Lake.find(path)
    settings = layout or (LakeSettings() if there is None else there.settings)
    if settings.format is Format.DELTA:
        from ottla.lake import delta

        delta.require()
    if there is None:
        with brokers.reader() as reader:
            for topic in topics:
                ask(partial(reader.cluster.topic, topic))
    return Lake.create(path, settings)  # one that is there with other settings is refused


def _engine(spark: SparkSession | None, workers: int | None) -> Any:
    if spark is None:
        return partial(local.run, workers=workers)
    from ottla.engines import spark as on_spark

    return partial(on_spark.run, spark=spark)


def _parallel(spark: SparkSession | None) -> int:
    if spark is None:
        return local.default_workers()
    from pyspark.errors import PySparkAttributeError

    try:
        return spark.sparkContext.defaultParallelism
    except PySparkAttributeError:  # Spark Connect does not tell
        return _SOME
