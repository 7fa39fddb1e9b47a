"""The writers behind `df.write.format("ottla")` and `df.writeStream.format("ottla")`.

Options and a schema come in on the driver and are checked there; tasks write their rows through a producer of their
own and hand back what they wrote; the driver ends it. What is on disk and what brokers are told is decided in
`sink_log` and `twophase`; here is only who does what, and when.
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
from ottla.spark.idle_workers import silence_this
from ottla.spark.rows import Shape, fingerprint, shape_of
from ottla.spark.sink_log import AlreadyRecorded, AnotherUse, CommitLog, Record, Standing, check_target
from ottla.spark.sink_options import (
    SESSION_CHECKPOINTS,
    Guarantee,
    SinkSettings,
    batch_settings,
    of_session,
    stream_settings,
)
from ottla.spark.sink_task import Output, ProvenOutput, check_again, own_id, place, setting, streaming_place, write_rows
from ottla.spark.two_phase import Fate, TaskShare
from ottla.spark.wording import in_options
from ottla.spark.write_runs import naming

_log = logging.getLogger(__name__)

silence_this()


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What a task tells the driver: its share, or when that was written before, what it would have written."""

    share: TaskShare | None
    query: str = ""
    batch: int = -1
    repeated: Fingerprint = field(default_factory=Fingerprint)
    commit_log: Path | None = None
    """Where the driver finds the log, as the task has found it."""


def batch_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool = False
) -> BatchWriter | ForeachBatchWriter:
    """For one `df.write`: everything is checked, nothing written.

    With a commit log it is one within `foreachBatch`, and exactly once as a streaming write is.
    """
    if overwrite:
        raise ConfigError("a topic cannot be overwritten: use mode('append'); to begin anew, delete the topic first")
    settings = batch_settings(options)
    shape = shape_of(schema, settings.topic)
    _check_topic_exists(settings)
    if settings.commit_log is not None:
        return ForeachBatchWriter(StreamWriter(settings, shape, _standings(settings)))
    ids = naming(settings.name)
    if settings.guarantee is Guarantee.EXACTLY_ONCE:
        with settings.connection.cluster() as cluster:
            two_phase.sweep(cluster, ids.scope, which=ids.is_over)
    return BatchWriter(settings, shape, ids.prefix)


def stream_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool = False) -> StreamWriter:
    """For one batch of a streaming query. Finishes what a driver that died has left recorded.

    Spark calls it before the tasks of every batch, and again in another process before `commit` or `abort`.
    """
    if overwrite:
        raise ConfigError("outputMode complete would overwrite the topic: use append, or foreachBatch with commitLog")
    settings = stream_settings(options)
    shape = shape_of(schema, settings.topic)
    standings = _standings(settings)
    if not standings:
        _check_topic_exists(settings)
    return StreamWriter(settings, shape, standings)


def _standings(settings: SinkSettings) -> dict[str, Standing]:
    """How far each query of the commit log is, after ending what can be ended."""
    folder = settings.commit_log
    if folder is None:
        return {}
    with settings.connection.cluster() as cluster:  # connects only where there is something to end
        return {query: settle(cluster, CommitLog(folder, query)) for query in CommitLog.queries(folder)}


def settle(cluster: Cluster, log: CommitLog) -> Standing:
    """Ends a recorded list, if there is one that is not ended; tells how far the query is then."""
    standing = log.standing()
    record = standing.record
    if record is None or record.is_settled or record.cluster != _cluster_id(cluster):
        return standing
    shares = two_phase.commit_all(cluster, record.shares)
    if all(share.fate is Fate.ENDED for share in shares):
        log.finish(record)
        return log.standing()
    if all(share.fate is Fate.LOST for share in shares if share.prepared is not None):
        _log.warning("batch %d of query %s: every transaction was lost; it is written anew", record.batch, log.query)
        return log.forget(record)
    return replace(standing, record=log.replace(record, shares))


class BatchWriter(DataSourceArrowWriter):
    """Tasks prepare transactions; the driver commits all of them, or aborts all."""

    def __init__(self, settings: SinkSettings, shape: Shape, prefix: str) -> None:
        self._settings = settings
        self._shape = shape
        self._prefix = prefix

    @in_options()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task."""
        return Written(write_rows(Output(self._settings, self._shape, own_id(self._prefix)), iterator))

    @in_options()
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver, when every task is through."""
        if self._settings.guarantee is Guarantee.AT_LEAST_ONCE:
            return
        shares = _shares(messages)
        with self._settings.connection.cluster() as cluster:
            two_phase.check_alive(cluster, shares)
            lost = [share.task for share in two_phase.commit_all(cluster, shares) if share.fate is Fate.LOST]
            two_phase.sweep(cluster, self._prefix)
        if lost:
            raise TransactionFailed(
                f"what tasks {', '.join(map(str, lost))} wrote was lost while the others were committed: their"
                f" transactions ended by timeout at the last moment. {len(shares) - len(lost)} of {len(shares)} tasks"
                " are in the topic; raise kafka.transaction.timeout.ms"
            )

    @in_options()
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver, when a task has failed for good."""
        if self._settings.guarantee is Guarantee.AT_LEAST_ONCE:
            return
        with self._settings.connection.cluster() as cluster:
            two_phase.abort_all(cluster, _shares(messages))
            two_phase.sweep(cluster, self._prefix)


class StreamWriter(DataSourceStreamArrowWriter):
    """As `BatchWriter`, and before anything is committed, the list is on disk: so each batch is there exactly once."""

    def __init__(self, settings: SinkSettings, shape: Shape, standings: Mapping[str, Standing]) -> None:
        self._settings = settings
        self._shape = shape
        self._standings = standings

    @in_options()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task. What a driver before this one has recorded is not written again."""
        query, batch = streaming_place()
        settings, standing = self._stands(query)
        if standing is not None:
            assert settings.commit_log is not None
            check_target(settings.commit_log / query, standing.target, settings.target)
        due = _due(standing, batch, place()[0])
        told = Written(None, query, batch, commit_log=settings.commit_log)
        if not due.write:
            before = None if settings.skip_repeated else due.expected
            return replace(told, repeated=_look_at(iterator, self._shape, before))
        output = ProvenOutput(settings, self._shape, own_id(prefix(settings, query)))
        return replace(told, share=write_rows(output, iterator, again=due.expected))

    def _stands(self, query: str) -> tuple[SinkSettings, Standing | None]:
        """How far the query is. Where the log is may be known to tasks only; ending a list twice does no harm."""
        settings = self._settings
        if settings.commit_log is not None or settings.guarantee is Guarantee.AT_LEAST_ONCE:
            return settings, self._standings.get(query)
        folder = of_session(setting(SESSION_CHECKPOINTS))
        log = CommitLog(folder, query)
        placed = replace(settings, commit_log=folder)
        try:
            with settings.connection.cluster() as cluster:  # connects only where there is something to end
                return placed, settle(cluster, log)
        except AlreadyRecorded:  # by another task of the batch
            return placed, log.standing()

    @in_options()
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """On the driver, when every task is through: records the list, ends it, marks the batch as written."""
        if self._settings.guarantee is Guarantee.AT_LEAST_ONCE:
            return
        settings, query, log = self._told(messages)
        shares = _shares(messages)
        with settings.connection.cluster() as cluster:
            try:
                self._record(cluster, log, batchId, shares, messages)
            except (AlreadyRecorded, AnotherUse, TransactionFailed):
                two_phase.abort_all(cluster, shares)
                raise
            standing = settle(cluster, log)
            two_phase.sweep(cluster, prefix(settings, query), spare=_recorded(standing))
        if standing.done < batchId:
            raise TransactionFailed(
                f"batch {batchId}: transactions were lost after the batch was recorded, by their timeout or because"
                " another run took over: restart the query, it writes again what is missing"
            )

    @in_options()
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """On the driver, after a failure. A list that is on disk stays: the batch counts as written."""
        if self._settings.guarantee is Guarantee.AT_LEAST_ONCE or not any(messages):
            return
        settings, query, log = self._told(messages)
        named = _recorded(log.standing())
        loose = [one for one in _shares(messages) if one.prepared and one.prepared.transactional_id not in named]
        with settings.connection.cluster() as cluster:
            two_phase.abort_all(cluster, loose)
            two_phase.sweep(cluster, prefix(settings, query), spare=named)

    def _told(self, messages: Sequence[WriterCommitMessage | None]) -> tuple[SinkSettings, str, CommitLog]:
        told = next(message for message in messages if isinstance(message, Written))
        assert told.commit_log is not None
        return replace(self._settings, commit_log=told.commit_log), told.query, CommitLog(told.commit_log, told.query)

    def _record(
        self,
        cluster: Cluster,
        log: CommitLog,
        batch: int,
        shares: Sequence[TaskShare],
        messages: Sequence[WriterCommitMessage | None],
    ) -> None:
        log.claim(self._settings.target)
        standing = log.standing()
        if batch <= standing.done:
            two_phase.abort_all(cluster, shares)  # none, unless another driver was faster
            if not self._settings.skip_repeated:
                _check_repeated(log, standing, batch, _content(messages))
            return
        two_phase.check_alive(cluster, shares)
        if standing.record is None:
            if len(shares) < len(messages):
                raise TransactionFailed(
                    f"batch {batch} of query {log.query} was written before, but its record has vanished from"
                    f" {log.folder} in the meantime"
                )
            log.record(Record(log.query, batch, tuple(shares), _cluster_id(cluster), standing.round))
            return
        _record_again(log, standing.record, shares)


class ForeachBatchWriter(DataSourceArrowWriter):
    """`StreamWriter` for a batch write within foreachBatch: the tasks say which query and batch it is."""

    def __init__(self, writer: StreamWriter) -> None:
        self._writer = writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task."""
        return self._writer.write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver, when every task is through."""
        self._writer.commit(messages, _batch(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver, after a failure."""
        self._writer.abort(messages, _batch(messages))


def _batch(messages: Sequence[WriterCommitMessage | None]) -> int:
    return next((one.batch for one in messages if isinstance(one, Written)), -1)


@dataclass(frozen=True, slots=True)
class _Due:
    """Whether a task has to write its rows; and if they were written before, what they must be."""

    write: bool = True
    expected: TaskShare | None = None


def _due(standing: Standing | None, batch: int, task: int) -> _Due:
    if standing is None:
        return _Due()
    if batch <= standing.done:
        return _Due(write=False)  # the driver compares the whole batch
    record = standing.record
    if record is None:
        return _Due()
    if record.batch != batch:
        raise TransactionFailed(
            f"batch {record.batch} of query {record.query} is not completely written, and Spark runs batch {batch}:"
            " the checkpoint was changed by hand, or is another one than that of the commit log"
        )
    if not record.is_settled:
        raise TransactionFailed(
            f"batch {batch} of query {record.query} was written to another Kafka cluster, with the id"
            f" {record.cluster}, and not completely ended there: restart the query with that cluster first"
        )
    before = {share.task: share for share in record.shares}.get(task)
    return _Due(write=task in record.lost, expected=before)


def _look_at(iterator: Iterator[pa.RecordBatch], shape: Shape, expected: TaskShare | None) -> Fingerprint:
    """What a task would write whose rows are in the topic already; they must be the same ones."""
    tables = (shape.table(batch) for batch in iterator if batch.num_rows)
    found = sum((fingerprint(table, shape.topic) for table in tables), Fingerprint())
    check_again(place()[0], expected, found)
    return found


def _content(messages: Sequence[WriterCommitMessage | None]) -> Fingerprint:
    written = [one for one in messages if isinstance(one, Written)]
    return sum(
        (one.repeated + (one.share.fingerprint if one.share else Fingerprint()) for one in written), Fingerprint()
    )


def _check_repeated(log: CommitLog, standing: Standing, batch: int, found: Fingerprint) -> None:
    """A batch that was done before is left out only if it has the same records."""
    before = standing.written.get(batch)
    if before == found:
        return
    known = (
        "its records are not remembered any more" if before is None else f"those were {before.count:,} other records"
    )
    raise AnotherUse(
        f"batch {batch} of query {log.query} was written before, and {known}; now it has {found.count:,} records."
        f" Nothing of it was written now; the last batch that was is {standing.done} ({log.folder}). Either"
        " the checkpoint was rolled back and the query goes on with other offsets or options; or two writes of one"
        " foreachBatch share a commitLog; or the query gives other rows each time. If what is in the topic will do,"
        " set the option repeatedBatch=skip until the query is past that batch; to write all of it again, with"
        " duplicates, remove that folder"
    )


def _record_again(log: CommitLog, record: Record, shares: Sequence[TaskShare]) -> None:
    """The list with what tasks have written again in the place of what was lost."""
    anew = {share.task: share for share in shares}
    if set(anew) != set(record.lost):
        missing = sorted(set(record.lost) - set(anew))
        raise TransactionFailed(
            f"batch {record.batch} of query {record.query}: tasks {missing or sorted(anew)} should"
            f" {'' if missing else 'not '}have written again. The batch was cut into other tasks than before, or two"
            f" drivers run. {_by_hand(log, record)}"
        )
    log.replace(record, [anew.get(share.task, share) for share in record.shares])


def _by_hand(log: CommitLog, record: Record) -> str:
    return (
        f"{log.path(record)} lists what is committed (ended) and what is lost. Restart with the same options and number"
        " of partitions as before; or remove that file to write the whole batch again, with duplicates of what is"
        " ended"
    )


def _check_topic_exists(settings: SinkSettings) -> None:
    if settings.topic is None:
        return
    with settings.connection.cluster() as cluster:
        try:
            cluster.topic(settings.topic)
        except BrokerError as error:
            if error.code is ErrorCode.unknown_topic_or_partition:
                raise ConfigError(f"topic {settings.topic} does not exist: create it first") from error
            raise


def _shares(messages: Sequence[WriterCommitMessage | None]) -> list[TaskShare]:
    return [one.share for one in messages if isinstance(one, Written) and one.share is not None]


def _cluster_id(cluster: Cluster) -> str:
    return cluster.metadata(refresh=Refresh.IF_STALE).cluster_id or ""


def _recorded(standing: Standing) -> set[str]:
    """The ids of transactions that a list names and nobody else may touch."""
    shares = () if standing.record is None else standing.record.shares
    return {one.prepared.transactional_id for one in shares if one.prepared and one.fate is Fate.PREPARED}


def prefix(settings: SinkSettings, query: str) -> str:
    """How the transactional ids of a query begin. A query may write in several places within one foreachBatch."""
    place = hashlib.sha256(str(settings.commit_log).encode()).hexdigest()[:8]
    return f"ottla-{query}-{place}-"
