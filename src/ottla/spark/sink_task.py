"""What a task of the sink does: it sends its rows through its own producer, in a transaction that it leaves open.

Arrow batches come in; a `TaskShare` goes out that says what was written and how the driver can end the transaction.
Spark says which task this is. `sink` decides whether a task has to write at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from ottla.engines.gc_freeze import freeze_once
from ottla.errors import InputError, RecordTooLarge, TransactionFailed
from ottla.model import Fingerprint, OffsetRange
from ottla.produce.coordinator import PreparedTransaction
from ottla.produce.delivery import BulkDelivery
from ottla.produce.producer import Producer
from ottla.produce.transaction import Transaction
from ottla.spark.rows import RowFormat, fingerprint
from ottla.spark.sink_options import Guarantee, SinkSettings
from ottla.spark.two_phase import TaskShare

_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


class TaskOutput:
    """Where a task's rows go: a producer, opened for the first row, and its transaction if the guarantee needs one."""

    def __init__(self, settings: SinkSettings, rows: RowFormat, transactional_id: str) -> None:
        self.fingerprint = Fingerprint()
        self._settings = settings
        self._rows = rows
        self._id = transactional_id if settings.guarantee is Guarantee.EXACTLY_ONCE else None
        self._stack = ExitStack()
        self._producer: Producer | None = None
        self._transaction: Transaction | None = None
        self._first_delivery: BulkDelivery | None = None

    def __enter__(self) -> TaskOutput:
        return self

    def __exit__(self, *error: Any) -> bool | None:
        return self._stack.__exit__(*error)

    def send(self, batch: pa.RecordBatch) -> None:
        """Hand rows to the producer. Raises `InputError` for a row that cannot be written."""
        table = self._rows.table(batch)
        if self._producer is None:
            self._producer = self._stack.enter_context(self._settings.open_producer(self._id))
            if self._id is not None:
                self._transaction = self._stack.enter_context(self._producer.transaction())
        try:
            delivery = self._producer.send_table(self._rows.topic, table)
        except RecordTooLarge as error:
            raise InputError(
                f"a record takes {error.size_bytes:,} bytes, the limit is {error.limit_bytes:,}: raise the option"
                " kafka.max.request.size, and max.message.bytes of the topic"
            ) from error
        self._first_delivery = self._first_delivery or delivery
        self._note(table)

    def _note(self, table: pa.Table) -> None:
        """Nothing to remember: a batch write is never repeated task by task."""

    def end(self) -> tuple[PreparedTransaction | None, OffsetRange | None]:
        """Wait until the brokers have everything; leave the transaction open for the driver.

        Returns the transaction and one of its records as a witness. Raises `NotDelivered` if records failed.
        """
        if self._producer is None or self._first_delivery is None:
            return None, None
        if self._transaction is None:
            self._producer.flush()
            return None, None
        prepared = self._transaction.prepare()
        written = self._first_delivery.result().ranges[0]
        return prepared, OffsetRange(written.topic, written.partition, written.start, written.start + 1)


class FingerprintedOutput(TaskOutput):
    """Also adds up the fingerprint of what was written, so that a repeated task can be compared with it."""

    def _note(self, table: pa.Table) -> None:
        if self._id is not None:
            self.fingerprint += fingerprint(table, self._rows.topic)


def write_rows(output: TaskOutput, iterator: Iterator[pa.RecordBatch], *, before: TaskShare | None = None) -> TaskShare:
    """Write the rows of a task; returns when the brokers have acknowledged them.

    Raises `TransactionFailed` if the task wrote other rows `before`, and the producer's errors.
    """
    task, attempt = task_and_attempt()
    with output:
        for batch in iterator:
            if batch.num_rows:
                output.send(batch)
        check_same_rows(task, before, output.fingerprint)
        prepared, witness = output.end()
    freeze_once()
    return TaskShare(task, attempt, output.fingerprint, prepared, witness)


def check_same_rows(task: int, before: TaskShare | None, now: Fingerprint) -> None:
    """Raise `TransactionFailed` if a task that runs again has other rows than before."""
    if before is not None and before.fingerprint != now:
        raise TransactionFailed(
            f"task {task} must write the same rows again, {before.fingerprint.count:,} records, but now has"
            f" {now.count:,} different ones: the query, its options or its source gives other rows than before"
        )


def attempt_id(prefix: str) -> str:
    """A transactional id that no other attempt of any task uses at the same time."""
    task, attempt = task_and_attempt()
    return f"{prefix}{task}-{attempt}"


def task_and_attempt() -> tuple[int, int]:
    """The numbers of this task and of its attempt."""
    context = _context()
    return context.partitionId(), context.attemptNumber()


def session_setting(name: str) -> str | None:
    """A SQL setting of the session; Spark passes these to tasks as local properties."""
    value: str | None = _context().getLocalProperty(name)
    return value


def query_and_batch() -> tuple[str, int]:
    """The ids of the query and the batch; Spark passes them to tasks as local properties.

    Raises `TransactionFailed` outside a streaming query.
    """
    context = _context()
    query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
    if query is None or batch is None:
        raise TransactionFailed(
            "Spark does not say which query and batch this task belongs to: the option commitLog of a batch write is"
            " for writes within foreachBatch"
        )
    return query, int(batch)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "writers run in tasks"
    return context
