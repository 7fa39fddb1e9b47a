"""`ottla archive --engine spark`: archives with the tasks of a Spark session.

Existing records are archived in rounds, as with the local engine. With `--follow`, a streaming query archives new ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, TypeVar

from ottla.cli.archive.task import Shown, Task
from ottla.cli.terminal.progress import LiveLine
from ottla.cli.terminal.spark import spark_session
from ottla.engines import spark as engine
from ottla.errors import OttlaError
from ottla.jobs.archive_topics import is_outage
from ottla.lake.values import Entry
from ottla.model import OffsetRange
from ottla.spark.archiving import ArchiveQuery, start_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
_POLL_SECONDS = 0.3
_RESTART_SECONDS = 2.0


def archive_by_spark(task: Task, *, master: str | None, checkpoint: str | None, every: float | None) -> None:
    """Archive. Raises `Interrupted` after a signal, with nothing left running."""
    with spark_session("ottla archive", master) as spark:
        if every is None:
            task.run(_tasks(spark), name="spark", every=None)
        else:
            _follow(task, spark, checkpoint=checkpoint, every=every)


def _tasks(spark: SparkSession) -> Callable[..., Generator[object, None, None]]:
    def run(job: Callable[[OffsetRange], T], ranges: Iterable[OffsetRange], /) -> Generator[T, None, None]:
        return engine.run(job, ranges, spark=spark)

    return run


def _follow(task: Task, spark: SparkSession, *, checkpoint: str | None, every: float) -> None:
    def count(entry: Entry) -> None:
        task.progress.recorded(entry)
        task.progress.passed += sum(len(receipt.range) for receipt in entry.receipts)

    def start() -> ArchiveQuery:
        return start_query(
            spark,
            task.lake,
            task.job,
            task.wanted,
            cutting=task.cutting,
            every=every,
            checkpoint=checkpoint,
            on_entry=count,
        )

    with LiveLine(Shown(task.progress).line) as live:
        query: ArchiveQuery | None = start()
        while True:
            try:
                query = query or start()
                _wait(task, query)
                return
            except OttlaError as error:
                if not is_outage(error):
                    raise
                live.say(f"waiting for brokers: {error}")
                query = None
            task.interruption.wait(lambda: time.sleep(_RESTART_SECONDS))


def _wait(task: Task, query: ArchiveQuery) -> None:
    try:
        while not task.interruption.wait(lambda: query.wait(_POLL_SECONDS)):
            task.progress.expected = max(task.progress.expected, task.progress.passed + query.behind)
            task.failures = dict(query.troubles)
    finally:
        query.stop()
