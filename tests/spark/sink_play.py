"""Calls the streaming sink as Spark does, call by call, so that a driver can die between any two of them.

Like Spark, it makes a new writer for every batch and another one for its end, and pickles what passes between
processes. Other tests use a real Spark.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StringType, StructField, StructType

from ottla.spark import sink, sink_task
from ottla.spark.sink import StreamWriter
from ottla.spark.sink_log import CommitLog, LogState
from ottla.spark.sink_options import stream_settings

SCHEMA = StructType([StructField("value", StringType())])
Messages = Sequence[WriterCommitMessage | None]


class Died(BaseException):
    """The driver was killed here."""


class _Context:
    """A task's `TaskContext`."""

    def __init__(self, query: str, batch: int, task: int, attempt: int) -> None:
        self._properties = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)}
        self._task, self._attempt = task, attempt

    def partitionId(self) -> int:
        return self._task

    def attemptNumber(self) -> int:
        return self._attempt

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties.get(name)


class Play:
    """One streaming query, as the sink sees it."""

    def __init__(self, bootstrap: str, topic: str, checkpoint: Path, **options: str) -> None:
        self.query = str(uuid.uuid4())
        self.options = {
            "kafka.bootstrap.servers": bootstrap,
            "topic": topic,
            "checkpointlocation": str(checkpoint),
            **options,
        }
        self.log = CommitLog(checkpoint / "ottla-sink", self.query)

    def plan(self) -> StreamWriter:
        """Do what Spark does before the tasks of a batch."""
        writer = pickle.loads(pickle.dumps(sink.stream_writer(self.options, SCHEMA)))
        assert isinstance(writer, StreamWriter)
        return writer

    def task(
        self, writer: StreamWriter, batch: int, task: int, values: Sequence[str], *, attempt: int = 0
    ) -> WriterCommitMessage:
        """Run one task."""
        rows = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.string())})
        return self.stream(writer, batch, task, iter([rows]), attempt=attempt)

    def stream(
        self, writer: StreamWriter, batch: int, task: int, rows: Iterator[pa.RecordBatch], *, attempt: int = 0
    ) -> WriterCommitMessage:
        """Run one task with rows from an iterator."""
        context = _Context(self.query, batch, task, attempt)
        with mock.patch.object(sink_task, "TaskContext", mock.Mock(get=lambda: context)):
            message = pickle.loads(pickle.dumps(writer.write(rows)))
        assert isinstance(message, WriterCommitMessage)
        return message

    def tasks(self, batch: int, rows: Mapping[int, Sequence[str]]) -> list[WriterCommitMessage]:
        """Plan a batch and run its tasks."""
        writer = self.plan()
        return [self.task(writer, batch, task, values) for task, values in rows.items()]

    def commit(self, messages: Messages, batch: int) -> None:
        """Do what Spark does after all tasks."""
        sink.stream_writer(self.options, SCHEMA).commit(messages, batch)

    def abort(self, messages: Messages, batch: int) -> None:
        """Do what Spark does after a failure."""
        sink.stream_writer(self.options, SCHEMA).abort(messages, batch)

    def run(self, batch: int, rows: Mapping[int, Sequence[str]]) -> None:
        """Run a whole batch."""
        self.commit(self.tasks(batch, rows), batch)

    def transactional_id(self, task: int, attempt: int = 0) -> str:
        """The transactional id of a task."""
        return f"{sink.prefix(stream_settings(self.options), self.query)}{task}-{attempt}"

    def state(self) -> LogState:
        """The state on disk."""
        return self.log.state()


@contextmanager
def dying(owner: object, name: str, *, after: int = 0) -> Iterator[None]:
    """Kill the driver when it calls `name`, after `after` calls have succeeded."""
    real = getattr(owner, name)
    calls = iter(range(1 << 30))

    def deadly(*arguments: object, **named: object) -> object:
        if next(calls) >= after:
            raise Died
        return real(*arguments, **named)

    with mock.patch.object(owner, name, deadly):
        try:
            yield
        except Died:
            return
    raise AssertionError(f"{name} was not called {after + 1} times")
