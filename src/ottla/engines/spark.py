"""Runs a job over ranges as tasks of Spark, one for each range.

A job that can be pickled, ranges and a session come in; results go out when all tasks are done. No record crosses into
the JVM: a task is told its range and hands back what the job returns. Spark repeats a task whose worker has died, so a
job must bear to run twice; an error of Ottla's own is final, and raised here as it was there.
"""

from __future__ import annotations

import pickle
import re
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from ottla.engines.gc_freeze import settle
from ottla.errors import EngineFailed, OttlaError
from ottla.model import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
_SCHEMA = "result binary"
_OURS = re.compile(r"ottla\.errors\.\w+: (.*)")
_PYTHON = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Exit): .*$", re.MULTILINE)


def run(
    job: Callable[[OffsetRange], T], ranges: Iterable[OffsetRange], *, spark: SparkSession
) -> Generator[T, None, None]:
    """What the job returns for each range, in the order of the ranges."""
    wanted = list(ranges)
    if not wanted:
        return
    # As many partitions as numbers: each task gets one, whatever Spark thinks of its size.
    tasks = spark.range(0, len(wanted), 1, len(wanted)).mapInArrow(_Task(job, wanted), _SCHEMA)
    tag = f"ottla-{uuid.uuid4().hex}"
    spark.addTag(tag)
    try:
        results: list[Any] = [pickle.loads(row.result) for row in tasks.collect()]  # noqa: S301 - from our own workers
    except (PySparkException, Py4JError) as error:
        raise EngineFailed(cause(error)) from error
    except BaseException:
        spark.interruptTag(tag)
        raise
    finally:
        spark.removeTag(tag)
    failures = [one for one in results if isinstance(one, BaseException)]
    if failures:
        _undo(job, [one for one in results if not isinstance(one, BaseException)])
        raise failures[0]
    yield from cast(list[T], results)


def cause(error: BaseException) -> str:
    """What a report of Spark says of the cause, without its many lines about Java."""
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1])
    python = _PYTHON.findall(text)
    return f"Spark: {python[-1] if python else text.partition(chr(10) + chr(9) + 'at ')[0]}"


class _Task:
    """What a worker runs: numbers of ranges come in, pickled results go out."""

    def __init__(self, job: Callable[[OffsetRange], Any], ranges: list[OffsetRange]) -> None:
        self._job = job
        self._ranges = ranges

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield pa.record_batch({"result": pa.array([self._result(self._ranges[number])], pa.binary())})
        settle()

    def _result(self, one: OffsetRange) -> bytes:
        try:
            return pickle.dumps(self._job(one))
        except OttlaError as error:
            error.add_note(f"while {one} was worked on")
            return pickle.dumps(error)


def _undo(job: Callable[[OffsetRange], Any], results: list[Any]) -> None:
    undo = getattr(job, "undo", None)
    for result in results:
        if undo is not None:
            undo(result)
