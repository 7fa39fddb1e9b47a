"""What a task of the sink does: its rows go to a producer of its own, in a transaction that is left open.

Arrow batches come in, a `TaskShare` goes out that says what was written and how the driver can end it. Spark says which
task this is; what has to be written at all is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from ottla.engines.gc_freeze import settle
from ottla.errors import InputError, RecordTooLarge, TransactionFailed
from ottla.model import Fingerprint, OffsetRange
from ottla.produce.coordinator import PreparedTransaction
from ottla.produce.delivery import BulkDelivery
from ottla.produce.producer import Producer
from ottla.produce.transaction import Transaction
from ottla.spark.rows import Shape, fingerprint
from ottla.spark.sink_options import Guarantee, SinkSettings
from ottla.spark.two_phase import TaskShare

_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


class Output:
    """Where a task's rows go: a producer that is opened for the first of them, and its transaction if one is wanted."""

    def __init__(self, settings: SinkSettings, shape: Shape, transactional_id: str) -> None:
        self.fingerprint = Fingerprint()
        self._settings = settings
        self._shape = shape
        self._id = transactional_id if settings.guarantee is Guarantee.EXACTLY_ONCE else None
        self._stack = ExitStack()
        self._producer: Producer | None = None
        self._transaction: Transaction | None = None
        self._first: BulkDelivery | None = None

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *error: Any) -> bool | None:
        return self._stack.__exit__(*error)

    def send(self, batch: pa.RecordBatch) -> None:
        """Hands rows to the producer."""
        table = self._shape.table(batch)
        if self._producer is None:
            self._producer = self._stack.enter_context(self._settings.open_producer(self._id))
            if self._id is not None:
                self._transaction = self._stack.enter_context(self._producer.transaction())
        try:
            sent = self._producer.send_table(self._shape.topic, table)
        except RecordTooLarge as error:
            raise InputError(
                f"a record takes {error.size_bytes:,} bytes, the limit is {error.limit_bytes:,}: raise the option"
                " kafka.max.request.size, and max.message.bytes of the topic"
            ) from error
        self._first = self._first or sent
        self._note(table)

    def _note(self, table: pa.Table) -> None:
        """Nothing to remember: what a batch write has lost, nobody writes again."""

    def end(self) -> tuple[PreparedTransaction | None, OffsetRange | None]:
        """Everything is acknowledged; the transaction stays open, for the driver to end."""
        if self._producer is None or self._first is None:
            return None, None
        if self._transaction is None:
            self._producer.flush()
            return None, None
        prepared = self._transaction.prepare()
        one = self._first.result().ranges[0]
        return prepared, OffsetRange(one.topic, one.partition, one.start, one.start + 1)


class ProvenOutput(Output):
    """Also adds up what was written, so that it can be told from other rows later."""

    def _note(self, table: pa.Table) -> None:
        if self._id is not None:
            self.fingerprint += fingerprint(table, self._shape.topic)


def write_rows(output: Output, iterator: Iterator[pa.RecordBatch], *, again: TaskShare | None = None) -> TaskShare:
    """The rows of a task, acknowledged by the brokers."""
    task, attempt = place()
    with output:
        for batch in iterator:
            if batch.num_rows:
                output.send(batch)
        check_again(task, again, output.fingerprint)
        prepared, witness = output.end()
    settle()
    return TaskShare(task, attempt, output.fingerprint, prepared, witness)


def check_again(task: int, before: TaskShare | None, found: Fingerprint) -> None:
    """A task of a batch that was written before, in whole or in part, has the very same rows."""
    if before is not None and before.fingerprint != found:
        raise TransactionFailed(
            f"task {task} was to write again what it wrote before, {before.fingerprint.count:,} records, and has"
            f" {found.count:,} others now: the query, its options or its source gives other rows than before"
        )


def own_id(prefix: str) -> str:
    """A transactional id that no other attempt of any task uses at the same time."""
    task, attempt = place()
    return f"{prefix}{task}-{attempt}"


def place() -> tuple[int, int]:
    """Task and attempt."""
    context = TaskContext.get()
    assert context is not None, "writers run in tasks"
    return context.partitionId(), context.attemptNumber()


def setting(name: str) -> str | None:
    """A setting of the session; Spark hands those of SQL to tasks as local properties."""
    context = TaskContext.get()
    assert context is not None
    found: str | None = context.getLocalProperty(name)
    return found


def streaming_place() -> tuple[str, int]:
    """Query and batch; Spark hands them to tasks as local properties."""
    context = TaskContext.get()
    assert context is not None
    query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
    if query is None or batch is None:
        raise TransactionFailed(
            "Spark does not say which query and batch this task belongs to: the option commitLog of a batch write is"
            " for writes within foreachBatch"
        )
    return query, int(batch)
