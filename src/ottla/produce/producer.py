"""The producer: the calls that programs make, from any thread, and what they get back.

Records come in one by one, as lists or as Arrow tables, and are checked here, so that what is wrong with them is said
at the call; deliveries go out. Encoding and sending happen on the sender's thread.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from datetime import datetime
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.config import PLAINTEXT, Address, Retry, Security, Timeouts
from ottla.errors import BufferFull, ConfigError, OttlaError, RecordTooLarge, UsedAfterFork, copied
from ottla.net.context import ClientContext, Sinks
from ottla.net.deadline import Deadline
from ottla.produce import lifetimes
from ottla.produce import records as checks
from ottla.produce.delivery import BulkDelivery, Delivery, Shipment, check_may_wait
from ottla.produce.failures import FailedBatch, Failures
from ottla.produce.fast_path import MOST_BYTES
from ottla.produce.intake import Budget, Extras, Handover, Intake
from ottla.produce.options import (
    SMALL_BYTES,
    Buffering,
    ByTopic,
    Oversize,
    Settings,
    Spool,
    TopicOptions,
    TopicSettings,
    WhenFull,
    check_kinds,
    settings_from,
)
from ottla.produce.participants import Gate
from ottla.produce.route import Partitions
from ottla.produce.sender import Sender, SenderContext, new_loop
from ottla.produce.transaction import Transaction
from ottla.produce.transactions import Transactions, check_settings
from ottla.wire.columns import Item, Payload, as_arrow, from_list

if TYPE_CHECKING:
    from typing import Unpack

    from ottla.produce.spool import Store

_log = logging.getLogger(__name__)
_SLICE_BYTES = 8 << 20
"""How much of a table is handed over at once."""
_BUFFERING = Buffering()
_NO_TOPICS: Mapping[str, TopicOptions] = MappingProxyType({})
_ERROR_SECONDS = 10.0
_INTERRUPT_SECONDS = 1.0
_SPOOL_CLOSE_SECONDS = 10.0
_PERSIST_AGAIN = 0.1

Headers = Mapping[str, Payload] | Iterable[tuple[str, Payload]]


class Producer:
    """Sends records to Kafka. Threads may share one; constructing it connects nothing; `with` closes it.

    Options for all topics are keyword arguments of their own (`acks`, `compression`, `batching`, `delivery_timeout`,
    `strategy` and so on: see `TopicSettings`); `topics` has others for single ones.
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str | Address],
        *,
        security: Security = PLAINTEXT,
        client_id: str = "ottla-producer",
        timeouts: Timeouts | None = None,
        retry: Retry | None = None,
        buffering: Buffering = _BUFFERING,
        spool: Spool | None = None,
        transactional_id: str | None = None,
        transaction_timeout: float = 60.0,
        topics: Mapping[str, TopicOptions] = _NO_TOPICS,
        events: Sinks = (),
        on_failed: Callable[[FailedBatch], None] | None = None,
        **options: Unpack[TopicSettings],
    ) -> None:
        rest = settings_from(options)
        check_kinds(topics=topics, buffering=buffering, spool=spool, on_failed=on_failed)
        self._topics = ByTopic(rest, topics)
        if transactional_id is not None:
            check_settings(transactional_id, transaction_timeout)
            self._topics.check_transactional(spool)
        self._context = ClientContext(
            bootstrap, security=security, client_id=client_id, timeouts=timeouts, retry=retry, events=events
        )
        self._cluster, self._events = self._context.cluster, self._context.events
        store = None if spool is None else _opened(spool)
        loop = new_loop(self._cluster, name=client_id, events=self._events)
        self._wakeup = loop.wakeup
        self._budget = Budget(buffering, holding=lambda: self._sender.holding(), events=self._events)
        self._failures = Failures(events=self._events, on_failed=on_failed)
        self._intake = Intake(self._budget, wake=loop.wakeup.ring, short_way=self._topics.takes_any_small_record)
        self._open = self._intake.open
        gate = None if transactional_id is None else Gate()
        self._sender = Sender(
            SenderContext(
                cluster=self._cluster,
                intake=self._intake,
                budget=self._budget,
                failures=self._failures,
                events=self._events,
                topics=self._topics,
                spool=None if spool is None or store is None else (spool, store),
                gate=gate,
                transactional_id=transactional_id,
            ),
            loop,
        )
        self._keeper = self._sender.keeper
        self._express = self._sender.expressway
        self._transactions: Transactions | None = None
        if transactional_id is not None and gate is not None:
            self._transactions = Transactions(
                transactional_id,
                timeout=transaction_timeout,
                cluster=self._cluster,
                sender=self._sender,
                failures=self._failures,
                gate=gate,
            )
        self._started = False
        self._closed = False
        """Nothing is taken any more."""
        self._ended = False
        """Nothing runs any more."""
        self._ending = threading.Lock()
        self._enders: set[int] = set()
        """The threads that are ending it, one after the other."""
        self._pid = os.getpid()
        lifetimes.begins(self)
        if self._keeper is not None and self._keeper.inherited():
            self._start()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        try:
            # Somebody waits to see the error, or pressed Ctrl-C.
            self.close(_ERROR_SECONDS if issubclass(kind, Exception) else _INTERRUPT_SECONDS)
        except OttlaError as failed:  # the program's own error is the one to show
            if failed is not error:
                _log.error("%s", failed)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self._budget.used:,} bytes waiting"
        return f"<Producer {','.join(map(str, self._cluster.bootstrap))}, {state}>"

    # Sending

    def send(
        self,
        topic: str,
        value: Payload,
        key: Payload = None,
        headers: Headers | None = None,  # not keyword-only: the interpreter calls that 25 ns slower
        partition: int | None = None,
        timestamp: float | datetime | None = None,
    ) -> Delivery:
        """Sends one record; returns at once, unless the buffer is full.

        Text is sent as UTF-8; a value of None is a tombstone. `timestamp` is seconds since 1970 or an aware datetime,
        and defaults to the time at which the batch is made, at most `linger` later.
        """
        # The short way, which most records go, written for speed (a variable for the first four tests costs 20 ns of
        # 240); `_send` has what it leaves out.
        if (
            key is None
            and headers is None
            and partition is None
            and timestamp is None
            and type(value) is bytes
            and len(value) <= SMALL_BYTES
        ):
            try:
                chunk = self._open.chunks[topic]
            except (KeyError, TypeError):
                return self._send(topic, value, None, None, None, None)
            if not chunk.busy:  # else a signal handler sends in the middle of a send: see `intake`
                chunk.busy = True
                index = len(chunk)
                chunk.append(value)
                chunk.busy = False
                if index < chunk.limit:
                    return Delivery(chunk.shipment, index)
                if self._express is None or not chunk.received or chunk.successors:
                    return self._intake.settle_append(chunk, index, value, None, self._check_open)
                chunk.trim()
        elif headers is None and partition is None and timestamp is None:
            delivery = self._send_small(topic, value, key)
            if delivery is not None:
                return delivery
        return self._send(topic, value, key, headers, partition, timestamp)

    def _send_small(self, topic: str, value: Payload, key: Payload) -> Delivery | None:
        """The short way for a record with a key, or of text; None if it has to go the long one."""
        body = value if type(value) is bytes else checks.payload("value", value)
        name = key if type(key) is bytes else checks.payload("key", key)
        if body is None or len(body) + (len(name) if name is not None else 0) > SMALL_BYTES:
            return None
        try:
            chunk = self._open.chunks[topic]
        except (KeyError, TypeError):
            return None
        if chunk.busy:
            return None
        chunk.busy = True
        index = len(chunk)
        if name is not None:
            chunk.add_key(index, name)
        chunk.append(body)
        chunk.busy = False
        if index < chunk.limit:
            return Delivery(chunk.shipment, index)
        if self._express is None or not chunk.received or chunk.successors:
            return self._intake.settle_append(chunk, index, body, name, self._check_open)
        chunk.trim()
        return None

    def send_many(self, topic: str, items: Iterable[Item]) -> BulkDelivery:
        """Sends a list of values and `(key, value)` pairs, mixed as you like."""
        self._begin(topic)
        checks.items(items)
        columns = from_list(items)
        explicit = None
        if self._topics.settings(topic).partitioner is not None:
            listed = as_arrow(columns, now_ms=0)
            explicit = self._custom(topic, listed.column("key"), listed.column("value"), None)
        rows = checks.Rows(topic, columns, explicit, range(columns.count))
        return self._hand_in([self._without_oversize(rows, "item")])

    def send_table(self, topic: str | None, table: pa.Table | pa.RecordBatch) -> BulkDelivery:
        """Sends the rows of an Arrow table: column `value`, and if there are any `key`, `headers`, `timestamp`,
        `partition`, and with `topic=None` also `topic`."""
        return self._hand_in([self._checked_rows(*rows) for rows in checks.numbered_by_topic(topic, table)])

    def partition_for(self, topic: str, key: Payload = None, *, timeout: float = 60.0) -> int:
        """Where the next record with this key would go, without sending one."""
        partitions = self._partitions(topic, timeout)
        router = self._topics.router(topic)
        data = checks.payload("key", key)
        if router.partitioner is not None:
            chosen = router.custom_one(data, None, partitions.count)
            if chosen >= 0:
                return chosen
        return router.one(data, partitions=partitions)

    def transaction(self) -> Transaction:
        """`with producer.transaction() as tx`: what is sent in the block counts all together when it ends, and not at
        all when it raises. Needs `transactional_id`."""
        self._check_usable()
        if self._transactions is None:
            raise ConfigError("a transaction needs Producer(..., transactional_id=...)")
        self._start()
        return Transaction(self._transactions)

    # Waiting

    def flush(self, timeout: float | None = None) -> None:
        """Sends everything now and returns when all of it is decided.

        Raises NotDelivered when records failed since the last flush, whether their deliveries were looked at or not,
        and TimeoutError when some are still open after `timeout` seconds.
        """
        check_may_wait("flush")
        self._check_usable()
        if not self._started:
            return
        deadline = Deadline.after(_seconds(timeout))
        BulkDelivery(self._sender.everything(deadline)).exception(deadline.remaining())
        self._failures.raise_failures()

    def persist(self, timeout: float | None = None) -> None:
        """Returns once everything sent so far is on disk or acknowledged: a kill -9 cannot take it away any more.

        With a spool only; with `Spool(fsync=True)` a loss of power cannot either. Raises the reason when that is not so
        after `timeout` seconds.
        """
        check_may_wait("persist")
        self._check_usable()
        if self._keeper is None:
            raise ConfigError(
                "persist needs a spool: Producer(..., spool=Spool(path)); flush waits for acknowledgements"
            )
        deadline = Deadline.after(_seconds(timeout))
        error: OttlaError | None = None
        while self._started:
            try:
                error = self._sender.persist(deadline)
            except TimeoutError:
                if error is not None:
                    raise copied(error) from None
                raise TimeoutError(f"nothing was persisted within {timeout} s: the sender is busy") from None
            if error is None:
                return
            if deadline.expired():
                raise copied(error)
            time.sleep(min(_PERSIST_AGAIN, deadline.remaining()))

    def close(self, timeout: float | None = None) -> None:
        """Flushes, then ends everything; raises like `flush`. What is open after `timeout` seconds is given up.

        With a spool it stays there instead, for the next producer, and is no error; then `timeout` defaults to 10
        seconds.
        """
        check_may_wait("close")
        if os.getpid() != self._pid or self._ended:
            return
        self._closed = True
        if timeout is None and self._keeper is not None:
            timeout = _SPOOL_CLOSE_SECONDS
        deadline = Deadline.after(_seconds(timeout))
        try:
            if self._transactions is not None:
                self._transactions.close(deadline)
            if self._started:
                self._drain(deadline)
        finally:
            self._end(deadline)
        self._failures.raise_failures()

    def hurry(self) -> None:
        """Sends everything now, and waits for nothing: what comes before many are closed at once."""
        if self._started:
            self._sender.hurry()

    def _drain(self, deadline: Deadline) -> None:
        try:
            BulkDelivery(self._sender.everything(deadline)).exception(deadline.remaining())
        except TimeoutError:
            pass  # what is left is given up, and raised

    def _end(self, deadline: Deadline) -> None:
        me = threading.get_ident()
        if me in self._enders:
            return  # a signal handler in the middle of it
        try:
            try:
                self._enders.add(me)
                with self._ending:
                    self._end_all(deadline)
            finally:
                self._enders.discard(me)
        finally:
            self._enders.discard(me)  # again: Ctrl-C may have ended the first

    def _end_all(self, deadline: Deadline) -> None:
        if self._ended:
            return
        with ExitStack() as everything:  # all of it, also when a second Ctrl-C comes
            everything.callback(self._context.close)
            if self._keeper is not None:
                everything.callback(self._keeper.close)
            everything.callback(self._wakeup.close)
            self._sender.stop(deadline)  # also one that was not started: then it cannot be any more
        if self._keeper is not None and self._failures.kept:
            _log.warning("records that stay in the spool %s: %d", self._keeper.path, self._failures.kept)
        self._ended = True
        lifetimes.ends(self)

    # The long way of a record

    def _send(
        self,
        topic: str,
        value: Payload,
        key: Payload,
        headers: Headers | None,
        partition: int | None,
        timestamp: float | datetime | None,
    ) -> Delivery:
        self._begin(topic)
        settings = self._topics.settings(topic)
        body, name = checks.payload("value", value), checks.payload("key", key)
        listed = checks.headers(headers)
        size = checks.record_bytes(body, name, listed)
        if size > settings.max_record_bytes:
            return self._oversize(settings, Oversize(topic, name, body, size, settings.max_record_bytes))
        where = checks.partition(partition)
        if settings.partitioner is not None and where < 0:
            partitions = self._partitions(topic, self._budget.buffering.wait)
            where = self._topics.router(topic).custom_one(name, body, partitions.count)
        when = checks.milliseconds(timestamp)
        if self._express is not None and listed is None and when < 0 and where < 0 and size <= MOST_BYTES:
            delivery = self._express.send(topic, body, name)
            if delivery is not None:
                return delivery
        extras = None if listed is None and when < 0 and where < 0 else Extras(listed, when, where)
        return self._intake.put(topic, body, key=name, extras=extras, usable=self._check_open)

    def _oversize(self, settings: Settings, record: Oversize) -> Delivery:
        error = RecordTooLarge("the record", size_bytes=record.size_bytes, limit_bytes=record.limit_bytes)
        if settings.on_oversize is None:
            raise error
        settings.on_oversize(record)
        return checks.diverted(record.topic, error)

    # The way of lists and tables

    def _checked_rows(self, topic: str, table: pa.Table, numbers: npt.NDArray[np.int64] | range) -> checks.Rows:
        self._begin(topic)
        columns, explicit = checks.columns(table)
        if self._topics.settings(topic).partitioner is not None:
            keys = table.column("key") if "key" in table.schema.names else None
            explicit = self._custom(topic, keys, table.column("value"), explicit)
        return self._without_oversize(checks.Rows(topic, columns, explicit, numbers), "row")

    def _custom(
        self, topic: str, keys: pa.Array | None, values: pa.Array, explicit: npt.NDArray[np.int32] | None
    ) -> npt.NDArray[np.int32]:
        """What the partitioner of the topic says; it is asked here, so that its errors come with the call."""
        partitions = self._partitions(topic, self._budget.buffering.wait)
        router = self._topics.router(topic)
        return router.custom(keys, values, partitions.count, explicit=explicit)

    def _hand_in(self, given: list[checks.Rows]) -> BulkDelivery:
        """Slice by slice through all topics at once: what was taken over when the buffer is full are the first rows."""
        shipments: list[Shipment] = []
        for part, pieces in checks.slices(given, _SLICE_BYTES):
            try:
                self._intake.wait_for_room(self._check_open)
            except BufferFull as error:
                error.accepted = part.start
                raise
            for rows in pieces:
                shipment = Shipment(rows.topic)
                shipment.count = rows.columns.count
                shipment.numbers = rows.numbers
                times = time.monotonic(), time.time()
                self._intake.hand_over(Handover(rows.topic, shipment, rows.columns, rows.partitions, *times))
                shipments.append(shipment)
        return BulkDelivery(shipments)

    def _without_oversize(self, rows: checks.Rows, what: str) -> checks.Rows:
        settings = self._topics.settings(rows.topic)
        limit = settings.max_record_bytes
        if checks.most_bytes(rows.columns) <= limit:
            return rows
        large = checks.oversize_rows(rows.columns, limit)
        if not large:
            return rows
        if settings.on_oversize is None:
            index, size = large[0]
            raise RecordTooLarge(f"{what} {rows.numbers[index]}", size_bytes=size, limit_bytes=limit)
        for index, size in large:
            key, value = checks.row(rows.columns, index)
            settings.on_oversize(Oversize(rows.topic, key, value, size, limit))
        return checks.without(rows, [index for index, _ in large])

    # The rest

    def disinherit(self) -> None:
        """In a forked child, so that the short way of a record finds no chunk of the parent."""
        self._open = type(self._open)()

    def _begin(self, topic: str) -> None:
        self._check_open()
        checks.topic(topic)
        if not self._started:
            self._start()

    def _start(self) -> None:
        try:
            self._sender.start()
        except RuntimeError as error:
            raise OttlaError(f"the producer cannot start its thread: {error}") from error
        self._started = True  # only now: whoever is interrupted before that starts it again
        if self._closed:
            raise OttlaError("this producer was closed")

    def _partitions(self, topic: str, timeout: float) -> Partitions:
        self._begin(topic)
        known = self._sender.topic(topic)
        if known is not None and known.partitions is not None:
            return known.partitions
        found = self._cluster.topic(topic, deadline=Deadline.after(timeout))
        return Partitions(len(found.partitions), tuple(p.index for p in found.partitions if p.leader >= 0))

    def _check_open(self) -> None:
        self._check_usable()
        keeper = self._keeper
        if keeper is not None and keeper.spool.when_full is WhenFull.REFUSE and (error := keeper.error) is not None:
            raise copied(error)
        if self._transactions is not None:
            self._transactions.check_open()

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise UsedAfterFork(
                f"this producer was made in process {self._pid} before fork(); make one of its own in the child"
            )
        has_stopped = self._sender.has_stopped  # first this: whoever closes says so before it stops
        if self._closed:
            raise OttlaError("this producer was closed")
        if has_stopped:
            raise OttlaError("this producer has stopped on an internal error; see the log")


def _opened(spool: Spool) -> Store:
    from ottla.produce.spool import Store

    return Store.open(spool.path, fsync=spool.fsync, max_bytes=spool.max_bytes)


def _seconds(timeout: float | None) -> float:
    return 1e6 if timeout is None else timeout
