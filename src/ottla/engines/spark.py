"""Runs a job over ranges as Spark tasks, one per range.

A job that can be pickled, ranges and a session come in; results go out when all tasks are done. No record enters the
JVM: a task receives its range and returns what the job returned. Spark repeats a task whose worker died, so a job must
tolerate running twice. An error of Ottla's own is final: the task returns it as a value, and it is raised here.
"""

from __future__ import annotations

import pickle
import re
import uuid
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from ottla.engines import contract
from ottla.engines.contract import Job
from ottla.engines.gc_freeze import freeze_once
from ottla.errors import EngineFailed, OttlaError
from ottla.model import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
_SCHEMA = "result binary"
_OTTLA_ERROR = re.compile(r"ottla\.errors\.\w+: (.*)")
_PYTHON_ERROR = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Exit): .*$", re.MULTILINE)


def run(job: Job[T], ranges: Iterable[OffsetRange], *, spark: SparkSession) -> Generator[T, None, None]:
    """Yield what the job returns for each range, in the order of the ranges.

    Raises the first `OttlaError` of the job, after undoing the other results, and `EngineFailed` if Spark gives up.
    """
    units = list(ranges)
    if not units:
        return
    # As many partitions as rows, so that each task gets exactly one range, whatever Spark estimates.
    tasks = spark.range(0, len(units), 1, len(units)).mapInArrow(_Task(job, units), _SCHEMA)
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
    failures = [result for result in results if isinstance(result, BaseException)]
    if failures:
        contract.undo(job, [result for result in results if not isinstance(result, BaseException)])
        raise failures[0]
    yield from cast(list[T], results)


def cause(error: BaseException) -> str:
    """Return the cause that a Spark error reports, without its Java stack trace."""
    text = str(error)
    ottla_errors = _OTTLA_ERROR.findall(text)
    if ottla_errors:
        return str(ottla_errors[-1])
    python_errors = _PYTHON_ERROR.findall(text)
    return f"Spark: {python_errors[-1] if python_errors else text.partition(chr(10) + chr(9) + 'at ')[0]}"


class _Task:
    """The function that a worker runs: indexes of ranges come in, pickled results go out."""

    def __init__(self, job: Job[Any], ranges: list[OffsetRange]) -> None:
        self._job = job
        self._ranges = ranges

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield pa.record_batch({"result": pa.array([self._result(self._ranges[index])], pa.binary())})
        freeze_once()

    def _result(self, unit: OffsetRange) -> bytes:
        try:
            return pickle.dumps(self._job(unit))
        except OttlaError as error:
            # Returned, not raised: Spark would retry the task and bury the error in a Java trace.
            error.add_note(f"while {unit} was worked on")
            return pickle.dumps(error)
