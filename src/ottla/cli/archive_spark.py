"""`ottla archive --engine spark`: starts a session, archives by its tasks, and ends it in order.

What is there now is archived round by round, as the local engine does it, with the tasks on Spark: the ledger says
where to go on. What comes is archived by a streaming query.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, TypeVar

from ottla.cli.archive import Task, show
from ottla.cli.terminal.progress import LiveLine
from ottla.cli.terminal.sparks import spark_session
from ottla.engines import spark as engine
from ottla.errors import OttlaError
from ottla.jobs.archive_topics import is_outage
from ottla.lake.values import Entry
from ottla.model import OffsetRange
from ottla.spark.archiving import ArchiveQuery, archive_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
_LOOK_SECONDS = 0.3
_AGAIN_SECONDS = 2.0


def archive_by_spark(task: Task, *, master: str | None, checkpoint: str | None, every: float | None) -> None:
    """Returns when all is archived; raises `Interrupted` after a signal, with nothing left running."""
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
    def told(entry: Entry) -> None:
        task.progress.recorded(entry)
        task.progress.passed += sum(len(receipt.range) for receipt in entry.receipts)

    def start() -> ArchiveQuery:
        return archive_stream(
            spark,
            task.lake,
            task.job,
            task.wanted,
            cutting=task.cutting,
            every=every,
            checkpoint=checkpoint,
            told=told,
        )

    with LiveLine(lambda: show(task.progress)) as live:
        query: ArchiveQuery | None = start()
        while True:
            try:
                query = query or start()
                _wait(task, query)
                return
            except OttlaError as error:
                if not is_outage(error):
                    raise
                live.say(f"held up: {error}")
                query = None
            task.interruption.wait(lambda: time.sleep(_AGAIN_SECONDS))


def _wait(task: Task, query: ArchiveQuery) -> None:
    try:
        while not task.interruption.wait(lambda: query.wait(_LOOK_SECONDS)):
            task.progress.expected = max(task.progress.expected, task.progress.passed + query.behind)
            task.troubles = dict(query.troubles)
    finally:
        query.stop()
