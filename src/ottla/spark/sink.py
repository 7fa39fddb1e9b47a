"""The writers behind `df.write.format("ottla")` and `df.writeStream.format("ottla")`.

Options and a schema come in on the driver and are checked there. Tasks write their rows through their own producers and
return what they wrote; the driver ends their transactions. This module says who does what, and when. `sink_log` knows
what is on disk, `two_phase` talks to the brokers.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ottla.errors import BrokerError, ConfigError, ErrorCode, TransactionFailed
from ottla.model import Fingerprint
from ottla.net import Cluster
from ottla.net.cluster import Refresh
from ottla.spark import two_phase
from ottla.spark.idle_workers import silence_this_worker
from ottla.spark.rows import RowFormat, fingerprint, row_format
from ottla.spark.sink_log import AlreadyRecorded, BatchRecord, CommitLog, LogState, WrongCommitLog, check_target
from ottla.spark.sink_options import (
    SESSION_CHECKPOINTS,
    Guarantee,
    SinkSettings,
    batch_settings,
    session_commit_log,
    stream_settings,
)
from ottla.spark.sink_task import (
    FingerprintedOutput,
    TaskOutput,
    attempt_id,
    check_same_rows,
    query_and_batch,
    session_setting,
    task_and_attempt,
    write_rows,
)
from ottla.spark.transactional_ids import id_scheme
from ottla.spark.two_phase import Fate, TaskShare
from ottla.spark.wording import in_options

_log = logging.getLogger(__name__)

silence_this_worker()

Messages = Sequence[WriterCommitMessage | None]
"""One for each task; None for a task that failed."""


@dataclass(frozen=True, slots=True)
class TaskResult(WriterCommitMessage):
    """What a task reports to the driver: what it wrote, or what it would have written if a run before it had not."""

    share: TaskShare | None
    query: str = ""
    batch: int = -1
    repeated: Fingerprint = field(default_factory=Fingerprint)
    """The rows that were not written, because they are in the topic already."""
    commit_log: Path | None = None
    """Where the task found the commit log; the driver may not know."""


def batch_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool = False
) -> BatchWriter | ForeachBatchWriter:
    """The writer for one `df.write`. With a commit log, it is one within `foreachBatch`, exactly once like a stream.

    Raises `ConfigError` for wrong options, columns or an unknown topic. Writes nothing yet.
    """
    if overwrite:
        raise ConfigError("a topic cannot be overwritten: use mode('append'); to start over, delete the topic first")
    settings = batch_settings(options)
    rows = row_format(schema, settings.topic)
    _check_topic_exists(settings)
    if settings.commit_log is not None:
        return ForeachBatchWriter(StreamWriter(settings, rows, _log_states(settings)))
    ids = id_scheme(settings.name)
    if settings.guarantee is Guarantee.EXACTLY_ONCE:
        # What a killed write left open blocks readers of committed data until its timeout.
        with settings.access.cluster() as cluster:
            two_phase.sweep(cluster, ids.scope, which=ids.is_over)
    return BatchWriter(settings, rows, ids.prefix)


def stream_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool = False) -> StreamWriter:
    """The writer for one batch of a streaming query. First finishes what a dead driver left recorded.

    Spark calls this before the tasks of every batch, and again in another process before `commit` or `abort`. Raises
    `ConfigError` for wrong options, columns or an unknown topic, and `CommitLogFailed` if the log cannot be read.
    """
    if overwrite:
        raise ConfigError("outputMode complete would overwrite the topic: use append, or foreachBatch with commitLog")
    settings = stream_settings(options)
    rows = row_format(schema, settings.topic)
    states = _log_states(settings)
    if not states:
        _check_topic_exists(settings)
    return StreamWriter(settings, rows, states)


def _log_states(settings: SinkSettings) -> dict[str, LogState]:
    """The state of each query in the commit log, after ending what can be ended."""
    folder = settings.commit_log
    if folder is None:
        return {}
    with settings.access.cluster() as cluster:  # connects only if there is something to end
        return {query: settle(cluster, CommitLog(folder, query)) for query in CommitLog.queries(folder)}


def settle(cluster: Cluster, log: CommitLog) -> LogState:
    """End the recorded transactions that are not ended yet; returns the state after that.

    Raises `CommitLogFailed` if the log cannot be read or written, and the cluster client's errors.
    """
    state = log.state()
    record = state.record
    if record is None or record.is_settled or record.cluster != _cluster_id(cluster):
        return state
    shares = two_phase.commit_all(cluster, record.shares)
    if all(share.fate is Fate.ENDED for share in shares):
        log.finish(record)
        return log.state()
    if all(share.fate is Fate.LOST for share in shares if share.prepared is not None):
        _log.warning(
            "batch %d of query %s: every transaction was lost; the batch is written again", record.batch, log.query
        )
        return log.forget(record)
    return replace(state, record=log.replace(record, shares))


class BatchWriter(DataSourceArrowWriter):
    """A batch write: tasks prepare transactions; the driver commits all of them, or aborts all."""

    def __init__(self, settings: SinkSettings, rows: RowFormat, prefix: str) -> None:
        self._settings = settings
        self._rows = rows
        self._prefix = prefix

    @in_options()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: write its rows. Raises what `write_rows` raises."""
        return TaskResult(write_rows(TaskOutput(self._settings, self._rows, attempt_id(self._prefix)), iterator))

    @in_options()
    def commit(self, messages: Messages) -> None:
        """On the driver, after all tasks: commit. Raises `TransactionFailed` if a transaction was lost."""
        if self._settings.guarantee is Guarantee.AT_LEAST_ONCE:
            return
        shares = _shares(messages)
        with self._settings.access.cluster() as cluster:
            two_phase.check_alive(cluster, shares)
            lost = [share.task for share in two_phase.commit_all(cluster, shares) if share.fate is Fate.LOST]
            two_phase.sweep(cluster, self._prefix)
        if lost:
            raise TransactionFailed(
                f"the transactions of tasks {', '.join(map(str, lost))} timed out while the others were committed, and"
                f" their rows are lost. {len(shares) - len(lost)} of {len(shares)} tasks are in the topic; raise"
                " kafka.transaction.timeout.ms"
            )

    @in_options()
    def abort(self, messages: Messages) -> None:
        """On the driver, after a task failed for good: abort."""
        if self._settings.guarantee is Guarantee.AT_LEAST_ONCE:
            return
        with self._settings.access.cluster() as cluster:
            two_phase.abort_all(cluster, _shares(messages))
            two_phase.sweep(cluster, self._prefix)


class StreamWriter(DataSourceStreamArrowWriter):
    """Like `BatchWriter`, but the list of transactions is on disk before any of them is committed.

    So each batch is written exactly once, wherever the driver dies.
    """

    def __init__(self, settings: SinkSettings, rows: RowFormat, states: Mapping[str, LogState]) -> None:
        self._settings = settings
        self._rows = rows
        self._states = states

    @in_options()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: write its rows, unless an earlier driver has recorded them.

        Raises `WrongCommitLog` if the log is for another target, `TransactionFailed` if the batch does not follow the
        log or the task has other rows than before, and what `write_rows` raises.
        """
        query, batch = query_and_batch()
        settings, state = self._state_of(query)
        if state is not None:
            assert settings.commit_log is not None
            check_target(settings.commit_log / query, state.target, settings.target)
        due = _due(state, batch, task_and_attempt()[0])
        result = TaskResult(None, query, batch, commit_log=settings.commit_log)
        if not due.write:
            before = None if settings.skip_repeated else due.before
            return replace(result, repeated=_compare(iterator, self._rows, before))
        output = FingerprintedOutput(settings, self._rows, attempt_id(prefix(settings, query)))
        return replace(result, share=write_rows(output, iterator, before=due.before))

    def _state_of(self, query: str) -> tuple[SinkSettings, LogState | None]:
        """The settings with the commit log, and the state of the query.

        Only tasks see the session's checkpoint location, so each task may end the recorded list; doing it twice is
        harmless.
        """
        settings = self._settings
        if settings.commit_log is not None or settings.guarantee is Guarantee.AT_LEAST_ONCE:
            return settings, self._states.get(query)
        folder = session_commit_log(session_setting(SESSION_CHECKPOINTS))
        log = CommitLog(folder, query)
        located = replace(settings, commit_log=folder)
        try:
            with settings.access.cluster() as cluster:  # connects only if there is something to end
                return located, settle(cluster, log)
        except AlreadyRecorded:  # by another task of the batch
            return located, log.state()

    @in_options()
    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803  # Spark's name
        """On the driver, after all tasks: record the transactions, end them, mark the batch as written.

        Raises `TransactionFailed` if transactions were lost, `WrongCommitLog` if the log is for another target or the
        batch was written with other records, and `AlreadyRecorded` if another driver recorded the batch.
        """
        if self._settings.guarantee is Guarantee.AT_LEAST_ONCE:
            return
        settings, query, log = self._located(messages)
        shares = _shares(messages)
        with settings.access.cluster() as cluster:
            try:
                self._record(cluster, log, batchId, shares, messages)
            except (AlreadyRecorded, WrongCommitLog, TransactionFailed):
                two_phase.abort_all(cluster, shares)
                raise
            state = settle(cluster, log)
            two_phase.sweep(cluster, prefix(settings, query), spare=_recorded_ids(state))
        if state.done < batchId:
            raise TransactionFailed(
                f"batch {batchId}: transactions were lost after the batch was recorded, by their timeout or because"
                " another run took over: restart the query, it writes again what is missing"
            )

    @in_options()
    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803  # Spark's name
        """On the driver, after a failure: abort. A list that is on disk stays: that batch counts as written."""
        if self._settings.guarantee is Guarantee.AT_LEAST_ONCE or not any(messages):
            return
        settings, query, log = self._located(messages)
        recorded = _recorded_ids(log.state())
        unrecorded = [
            share for share in _shares(messages) if share.prepared and share.prepared.transactional_id not in recorded
        ]
        with settings.access.cluster() as cluster:
            two_phase.abort_all(cluster, unrecorded)
            two_phase.sweep(cluster, prefix(settings, query), spare=recorded)

    def _located(self, messages: Messages) -> tuple[SinkSettings, str, CommitLog]:
        """The settings with the commit log that the tasks found, the query, and its log."""
        result = next(message for message in messages if isinstance(message, TaskResult))
        assert result.commit_log is not None
        settings = replace(self._settings, commit_log=result.commit_log)
        return settings, result.query, CommitLog(result.commit_log, result.query)

    def _record(
        self, cluster: Cluster, log: CommitLog, batch: int, shares: Sequence[TaskShare], messages: Messages
    ) -> None:
        log.claim(self._settings.target)
        state = log.state()
        if batch <= state.done:
            two_phase.abort_all(cluster, shares)  # there are none, unless another driver was faster
            if not self._settings.skip_repeated:
                _check_repeated(log, state, batch, _content(messages))
            return
        two_phase.check_alive(cluster, shares)
        if state.record is None:
            if len(shares) < len(messages):
                raise TransactionFailed(
                    f"batch {batch} of query {log.query} was written before, but its record has vanished from"
                    f" {log.folder} in the meantime"
                )
            log.record(BatchRecord(log.query, batch, tuple(shares), _cluster_id(cluster), state.round))
            return
        _record_again(log, state.record, shares)


class ForeachBatchWriter(DataSourceArrowWriter):
    """A `StreamWriter` for a batch write within foreachBatch. The tasks say which query and batch it is."""

    def __init__(self, writer: StreamWriter) -> None:
        self._writer = writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: as `StreamWriter.write`."""
        return self._writer.write(iterator)

    def commit(self, messages: Messages) -> None:
        """On the driver, after all tasks: as `StreamWriter.commit`."""
        self._writer.commit(messages, _batch(messages))

    def abort(self, messages: Messages) -> None:
        """On the driver, after a failure: as `StreamWriter.abort`."""
        self._writer.abort(messages, _batch(messages))


def _batch(messages: Messages) -> int:
    return next((message.batch for message in messages if isinstance(message, TaskResult)), -1)


@dataclass(frozen=True, slots=True)
class _Due:
    """Whether a task has to write its rows, and what it wrote before, if it did."""

    write: bool = True
    before: TaskShare | None = None


def _due(state: LogState | None, batch: int, task: int) -> _Due:
    if state is None:
        return _Due()
    if batch <= state.done:
        return _Due(write=False)  # the driver compares the whole batch
    record = state.record
    if record is None:
        return _Due()
    if record.batch != batch:
        raise TransactionFailed(
            f"batch {record.batch} of query {record.query} is not completely written, and Spark runs batch {batch}:"
            " the checkpoint was changed by hand, or it does not belong to this commit log"
        )
    if not record.is_settled:
        raise TransactionFailed(
            f"batch {batch} of query {record.query} was written to another Kafka cluster, with the id"
            f" {record.cluster}, and not completely ended there: restart the query with that cluster first"
        )
    before = {share.task: share for share in record.shares}.get(task)
    return _Due(write=task in record.lost, before=before)


def _compare(iterator: Iterator[pa.RecordBatch], rows: RowFormat, before: TaskShare | None) -> Fingerprint:
    """The fingerprint of a task whose rows are in the topic already. Raises if the rows are not the same."""
    tables = (rows.table(batch) for batch in iterator if batch.num_rows)
    total = sum((fingerprint(table, rows.topic) for table in tables), Fingerprint())
    check_same_rows(task_and_attempt()[0], before, total)
    return total


def _content(messages: Messages) -> Fingerprint:
    """The fingerprint of a batch: of what its tasks wrote, and of what they found written."""
    results = [message for message in messages if isinstance(message, TaskResult)]
    written = (result.share.fingerprint if result.share else Fingerprint() for result in results)
    return sum((result.repeated for result in results), sum(written, Fingerprint()))


def _check_repeated(log: CommitLog, state: LogState, batch: int, now: Fingerprint) -> None:
    """Check that a batch that was written before has the same records; only then may it be skipped."""
    before = state.written.get(batch)
    if before == now:
        return
    earlier = (
        "its records are no longer remembered" if before is None else f"it had {before.count:,} different records then"
    )
    raise WrongCommitLog(
        f"batch {batch} of query {log.query} was written before, and {earlier}; now it has {now.count:,} records."
        f" Nothing was written this time; the last batch written is {state.done} ({log.folder}). Either the checkpoint"
        " was rolled back and the query continues with other offsets or options; or two writes of one foreachBatch"
        " share a commitLog; or the query gives other rows each time. To accept what is in the topic, set the option"
        " repeatedBatch=skip until the query is past that batch; to write everything again, with duplicates, remove"
        " that folder"
    )


def _record_again(log: CommitLog, record: BatchRecord, shares: Sequence[TaskShare]) -> None:
    """Record the list again, with what tasks wrote again in place of what was lost."""
    rewritten = {share.task: share for share in shares}
    if set(rewritten) != set(record.lost):
        missing = sorted(set(record.lost) - set(rewritten))
        raise TransactionFailed(
            f"batch {record.batch} of query {record.query}: tasks {missing or sorted(rewritten)} should"
            f" {'' if missing else 'not '}have written again. The batch was cut into other tasks than before, or two"
            f" drivers run. {_repair_by_hand(log, record)}"
        )
    log.replace(record, [rewritten.get(share.task, share) for share in record.shares])


def _repair_by_hand(log: CommitLog, record: BatchRecord) -> str:
    return (
        f"{log.path(record)} lists what is committed (ended) and what is lost. Restart with the same options and number"
        " of partitions as before; or remove that file to write the whole batch again, with duplicates of what is"
        " ended"
    )


def _check_topic_exists(settings: SinkSettings) -> None:
    if settings.topic is None:
        return
    with settings.access.cluster() as cluster:
        try:
            cluster.topic(settings.topic)
        except BrokerError as error:
            if error.code is ErrorCode.unknown_topic_or_partition:
                raise ConfigError(f"topic {settings.topic} does not exist: create it first") from error
            raise


def _shares(messages: Messages) -> list[TaskShare]:
    return [message.share for message in messages if isinstance(message, TaskResult) and message.share is not None]


def _cluster_id(cluster: Cluster) -> str:
    return cluster.metadata(refresh=Refresh.IF_STALE).cluster_id or ""


def _recorded_ids(state: LogState) -> set[str]:
    """The ids of recorded transactions that are not ended. A sweep must not touch them."""
    shares = () if state.record is None else state.record.shares
    return {share.prepared.transactional_id for share in shares if share.prepared and share.fate is Fate.PREPARED}


def prefix(settings: SinkSettings, query: str) -> str:
    """How the transactional ids of a query begin.

    They include the commit log, because a query may write several times within one foreachBatch.
    """
    log_digest = hashlib.sha256(str(settings.commit_log).encode()).hexdigest()[:8]
    return f"ottla-{query}-{log_digest}-"
