"""Writes requests that have an idempotency key: their records and their keys in one transaction, many requests in one.

Requests come in from the event loop; a thread writes them. Whether a key is done is decided by the log alone: its topic
is read to the end after every start, and after every commit whose outcome is not known, once the transactional id has
shut out whatever wrote before. A second gateway with the same name shuts this one out.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field, replace

import pyarrow as pa

from ottla.admin import Admin, NewTopic, OffsetSpec
from ottla.errors import BrokerError, ErrorCode, Fenced, OttlaError
from ottla.fetch.reader import Reader
from ottla.gateway.faults import log_fault
from ottla.gateway.http import answers
from ottla.gateway.http.answers import Outcome
from ottla.gateway.http.limits import Limits
from ottla.gateway.http.problems import Problem, problem_of, unavailable, unknown_outcome
from ottla.gateway.intake import Incoming, as_table
from ottla.gateway.keys.table import Done, Table, decode_entry, encode_entry
from ottla.model import Isolation, OffsetRange
from ottla.net.access import ClusterAccess
from ottla.produce.options import Batching
from ottla.produce.producer import Producer

_log = logging.getLogger(__name__)
_MOST_REQUESTS = 1000
"""Requests of one transaction."""
_MOST_ROWS = 100_000
_MOST_WAITING = 10_000
_CLOSE_SECONDS = 10.0
_SETTINGS = {"cleanup.policy": "compact,delete", "segment.bytes": str(16 << 20), "segment.ms": "3600000"}


@dataclass(eq=False, slots=True)
class _Job:
    """A request that waits, with all callers that sent it."""

    name: str
    digest: bytes
    topic: str
    rows: Sequence[Incoming] | pa.RecordBatch
    answers: list[Future[Outcome]] = field(default_factory=list)

    def end(self, outcome: Outcome | Problem) -> None:
        """Tell all callers."""
        for answer in self.answers:
            if not answer.set_running_or_notify_cancel():
                continue
            if isinstance(outcome, Problem):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)


class KeyedWriter:
    """Writes requests once each. Nothing connects before the first."""

    def __init__(
        self, cluster: ClusterAccess, *, gateway: str, topic: str, limits: Limits, max_record_bytes: int = 1_000_000
    ) -> None:
        self._cluster = replace(cluster, timeouts=replace(cluster.timeouts, total=limits.ack_seconds))
        self._gateway = gateway
        self._topic = topic
        self._limits = limits
        self._max_record_bytes = max_record_bytes
        self._changed = threading.Condition()
        self._waiting: dict[str, _Job] = {}
        self._writing: dict[str, _Job] = {}
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._table: Table | None = None
        """None while the topic must be read again."""
        self._producer: Producer | None = None
        self._fenced = False

    async def write(self, name: str, digest: bytes, topic: str, rows: Sequence[Incoming] | pa.RecordBatch) -> Outcome:
        """Write rows once, however often `name` comes, and return what became of them. Raises `Problem`."""
        answer = self._join(name, digest, topic, rows)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(answer), self._limits.ack_seconds)
        except TimeoutError as error:
            raise unknown_outcome("not done in time; send it again with the same Idempotency-Key") from error

    def close(self, seconds: float) -> None:
        """Finish what waits, then end. What takes longer is left to the timeout of its transaction."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(seconds)

    def _join(self, name: str, digest: bytes, topic: str, rows: Sequence[Incoming] | pa.RecordBatch) -> Future[Outcome]:
        answer: Future[Outcome] = Future()
        with self._changed:
            if self._is_closed:
                raise unavailable("the gateway is stopping")
            job = self._waiting.get(name) or self._writing.get(name)
            if job is None:
                if len(self._waiting) >= _MOST_WAITING:
                    raise unavailable("too many requests with a key wait", limit="waiting_keys")
                job = self._waiting[name] = _Job(name, digest, topic, rows)
            elif job.digest != digest:
                raise _reused()
            job.answers.append(answer)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ottla-gateway-keys", daemon=True)
                self._thread.start()
            self._changed.notify()
        return answer

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    break
                jobs = self._take()
            try:
                self._write(jobs)
            except Exception as error:  # each caller gets it; the next group begins afresh
                if not isinstance(error, OttlaError | TimeoutError | Problem):
                    log_fault(_log, error, "writing requests with keys failed")
                self._table = None
                self._end(jobs, unavailable("keys cannot be written; send it again with the same Idempotency-Key"))
            if self._fenced:
                self._end(jobs, unavailable("another gateway with this name has taken over"))
        self._drop_producer()

    def _take(self) -> list[_Job]:
        rows = 0
        for name in list(self._waiting)[:_MOST_REQUESTS]:
            job = self._waiting[name]
            rows += len(job.rows)
            if self._writing and rows > _MOST_ROWS:
                break
            self._writing[name] = self._waiting.pop(name)
        return list(self._writing.values())

    def _end(self, jobs: Sequence[_Job], outcome: Outcome | Problem) -> None:
        """Tell the callers of jobs that have none yet, and forget the jobs."""
        for job in jobs:
            with self._changed:
                is_open = self._writing.pop(job.name, None) is not None
            if is_open:
                job.end(outcome)

    def _write(self, jobs: Sequence[_Job]) -> None:
        if self._fenced:
            return
        if self._table is None:
            self._recover()
        new = [job for job in jobs if not self._answer_known(job)]
        if new:
            self._write_group(new)

    def _answer_known(self, job: _Job) -> bool:
        """Answer a job whose key is done. Returns whether it is."""
        assert self._table is not None
        done = self._table.find(job.name, time.time())
        if done is not None:
            self._end([job], done.outcome if done.digest == job.digest else _reused())
        return done is not None

    def _write_group(self, jobs: Sequence[_Job]) -> None:
        """Write jobs in one transaction; if one of them is refused, each in its own."""
        try:
            written = self._transact(jobs)
        except Fenced:
            self._fenced = True
            return
        except _Refused as refused:
            if len(jobs) == 1:
                self._end(jobs, refused.problem)
                return
            for job in jobs:
                if not self._fenced:
                    self._write([job])
            return
        if written is None:  # it is not known whether it is committed: the log says
            self._table = None
            self._recover()
            for job in jobs:
                if not self._answer_known(job):
                    self._end([job], unavailable("not written; send it again"))
            return
        assert self._table is not None
        for job, done in zip(jobs, written, strict=True):
            self._table.add(done)
            self._end([job], done.outcome)

    def _transact(self, jobs: Sequence[_Job]) -> list[Done] | None:
        """Write jobs and their keys together. Returns None if it is not known whether they are committed."""
        assert self._producer is not None
        transaction = self._producer.transaction()
        try:
            with transaction:
                written = self._send(self._producer, jobs)
        except Fenced:
            raise
        except _Refused:
            if transaction.committed is None:
                self._table = None  # the abort did not arrive
            raise
        except (OttlaError, TimeoutError) as error:
            if transaction.committed is False:
                raise _Refused(problem_of(error)) from error
            return None
        return written

    def _send(self, producer: Producer, jobs: Sequence[_Job]) -> list[Done]:
        now = time.time()
        seconds = self._limits.ack_seconds
        try:
            deliveries = [
                producer.send_table(job.topic, job.rows if isinstance(job.rows, pa.RecordBatch) else as_table(job.rows))
                for job in jobs
            ]
            done = []
            for job, delivery in zip(jobs, deliveries, strict=True):
                outcome = answers.of_many(len(job.rows), delivery.outcomes(seconds))
                if outcome.worst is not None:
                    raise _Refused(outcome.worst)
                done.append(Done(job.name, job.digest, now, outcome))
        except (Fenced, _Refused):
            raise
        except (OttlaError, TimeoutError) as error:
            raise _Refused(problem_of(error)) from error
        entries = [encode_entry(self._gateway, each) for each in done]
        try:
            producer.send_many(self._topic, entries).result(seconds)
        except Fenced:
            raise
        except (OttlaError, TimeoutError) as error:
            self._table = None  # the topic of keys is read, or created, again: nothing is wrong with the requests
            raise _Refused(unavailable("the topic of keys cannot be written")) from error
        return done

    def _recover(self) -> None:
        """Shut out what wrote before under this gateway's name, then read which keys are done."""
        self._drop_producer()
        self._require_topic()
        producer = Producer(
            self._cluster,
            client_id="ottla-gateway-keys",
            transactional_id=f"ottla-gateway-{self._gateway}",
            transaction_timeout=60.0,
            delivery_timeout=self._limits.ack_seconds,
            batching=Batching(linger=0.0),
            max_record_bytes=self._max_record_bytes,
        )
        try:
            with producer.transaction():
                pass  # the first one asks for the producer id, which ends an open transaction of the last owner
        except BaseException:
            producer.close(0.1)
            raise
        self._producer = producer
        self._table = self._read()

    def _read(self) -> Table:
        table = Table(most=self._limits.keys, seconds=self._limits.key_seconds)
        with Admin(self._cluster) as admin:
            starts = admin.list_offsets(self._topic, OffsetSpec.EARLIEST)
            # Up to what is replicated, not to the first open transaction: behind one of another gateway may be keys.
            ends = admin.list_offsets(self._topic, OffsetSpec.LATEST, isolation=Isolation.READ_UNCOMMITTED)
        ranges = [OffsetRange(*tp, starts[tp].offset, end.offset) for tp, end in ends.items()]
        ranges = [each for each in ranges if each.stop > each.start]
        if not ranges:
            return table
        found: dict[str, Done] = {}
        with (
            Reader(self._cluster, isolation=Isolation.READ_COMMITTED) as reader,
            closing(reader.read(ranges, columns=("key", "value"))) as batches,
        ):
            for batch in batches:
                for key, value in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True):
                    done = decode_entry(self._gateway, key, value)
                    if done is not None:
                        found[done.name] = done
        for done in sorted(found.values(), key=lambda done: done.time):
            table.add(done)
        return table

    def _require_topic(self) -> None:
        with Admin(self._cluster) as admin:
            if self._topic in admin.topic_names():
                return
            retention = str(int((self._limits.key_seconds + 86_400) * 1000))
            settings = {**_SETTINGS, "retention.ms": retention}
            try:
                admin.create_topics([NewTopic(name=self._topic, partitions=1, settings=settings)])
            except BrokerError as error:
                if error.code is not ErrorCode.topic_already_exists:
                    raise

    def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                producer.close(_CLOSE_SECONDS)
            except OttlaError as error:
                _log.debug("%s", error)


class _Refused(OttlaError):
    """A transaction that was aborted, and why."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(problem.text)


def _reused() -> Problem:
    return Problem(422, "this Idempotency-Key was used for another request", code=42211)
