"""The producer: the calls that programs make, from any thread, and what they get back.

Records come in one by one, as lists or as Arrow tables, and are checked here, so that errors are raised at the call.
Deliveries go out. Encoding and sending happen on the sender's thread.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.config import PLAINTEXT, Retry, Security, Timeouts, check_kind
from ottla.errors import ConfigError, OttlaError, RecordTooLarge, UsedAfterFork, copied
from ottla.net.awaiting import ended, on_thread, until_left
from ottla.net.context import Bootstrap, ClientContext, Sinks
from ottla.net.deadline import Deadline
from ottla.other_clients import names_checked
from ottla.produce import lifetimes, tables
from ottla.produce import records as checks
from ottla.produce.bulk import BulkCall
from ottla.produce.delivery import BulkDelivery, Delivery, Shipment
from ottla.produce.failures import FailedBatch, Failures
from ottla.produce.fast_path import MOST_BYTES
from ottla.produce.intake import Budget, Extras, Intake
from ottla.produce.options import (
    SMALL_BYTES,
    Buffering,
    Oversize,
    Settings,
    SettingsByTopic,
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
from ottla.produce.tables import ArrowTable
from ottla.produce.transaction import Transaction
from ottla.produce.transactions import Transactions, check_settings
from ottla.produce.waiting import call_when_done, check_may_wait
from ottla.tally.settings import Audit
from ottla.wire.columns import Item, Payload, as_arrow, from_list

if TYPE_CHECKING:
    from typing import Unpack

    from ottla.produce.counting import Counting
    from ottla.produce.spool import Store

_log = logging.getLogger(__name__)
_BUFFERING = Buffering()
_NO_TOPICS: Mapping[str, TopicOptions] = MappingProxyType({})
_ERROR_SECONDS = 10.0
"""How long leaving the `with` block by an exception waits for deliveries."""
_INTERRUPT_SECONDS = 1.0
"""The same for Ctrl-C and other exceptions that are not an `Exception`."""
_SPOOL_CLOSE_SECONDS = 10.0
"""How long `close` waits by default if there is a spool to keep the rest."""
_PERSIST_AGAIN = 0.1
"""Seconds between two attempts of `persist`."""

Headers = Mapping[str, Payload] | Iterable[tuple[str, Payload]]


class Producer:
    """Sends records to Kafka. Threads may share one. Constructing it connects nothing; `with` closes it.

    Options for all topics are keyword arguments (`acks`, `compression`, `batching`, `delivery_timeout`, `strategy` and
    so on: see `TopicSettings`). `topics` has options for single topics. `buffering` limits the memory for what is not
    acknowledged yet, `spool` keeps it on disk. `transactional_id` is for transactions, of which each may take
    `transaction_timeout` seconds. `on_failed` is called with each `FailedBatch`, on the sender's thread. With `audit`,
    the producer counts what was acknowledged and publishes tallies. For asyncio there are `aflush`, `apersist` and
    `aclose`, with the arguments of the methods without `a`, and `async with`.

    Constructing it raises `ConfigError` for invalid settings, and `SpoolInUse` or `SpoolFailed` if the spool cannot be
    opened.
    """

    @names_checked
    def __init__(
        self,
        bootstrap: Bootstrap | None = None,
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
        audit: Audit | None = None,
        **options: Unpack[TopicSettings],
    ) -> None:
        defaults = settings_from(options)
        check_kinds(topics=topics, buffering=buffering, spool=spool, on_failed=on_failed)
        self._topics = SettingsByTopic(defaults, topics)
        if transactional_id is not None:
            check_settings(transactional_id, transaction_timeout)
            self._topics.check_transactional(spool)
        self._context = ClientContext(
            bootstrap, security=security, client_id=client_id, timeouts=timeouts, retry=retry, events=events
        )
        self._cluster, self._events = self._context.cluster, self._context.events
        store = None if spool is None else _opened(spool)
        loop = new_loop(self._cluster, name=self._cluster.client_id, events=self._events)
        self._wakeup = loop.wakeup
        self._budget = Budget(buffering, holding=lambda: self._sender.holding(), events=self._events)
        self._failures = Failures(events=self._events, on_failed=on_failed)
        self._intake = Intake(self._budget, wake=loop.wakeup.ring, skips_checks=self._topics.takes_any_small_record)
        self._open = self._intake.open
        self._gate = gate = None if transactional_id is None else Gate()
        self._counting = None if audit is None else self._new_counting(audit, security, client_id, gate)
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
                counting=self._counting,
            ),
            loop,
        )
        self._spooling = self._sender.spooling
        self._fast_path = self._sender.fast_path
        self._transactions: Transactions | None = None
        if transactional_id is not None and gate is not None:
            self._transactions = Transactions(
                transactional_id,
                timeout=transaction_timeout,
                cluster=self._cluster,
                sender=self._sender,
                failures=self._failures,
                gate=gate,
                counting=self._counting,
            )
        self._started = False
        self._closed = False
        """Whether it takes no more records."""
        self._ended = False
        """Whether nothing runs any more."""
        self._ending = threading.Lock()
        self._enders: set[int] = set()
        """The threads that are ending it, one after the other."""
        self._pid = os.getpid()
        lifetimes.register(self)
        if self._spooling is not None and self._spooling.inherited():
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
            # Close quickly: the user waits to see the error, or pressed Ctrl-C.
            self.close(_ERROR_SECONDS if issubclass(kind, Exception) else _INTERRUPT_SECONDS)
        except OttlaError as failed:  # the program's own error is the one to raise
            if str(failed) != str(error):  # a delivery's error is raised again as another object
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
        """Send one record. Returns at once unless the buffer is full.

        `value` and `key` are bytes or text, which is sent as UTF-8; a value of None is a tombstone. `headers` is a
        mapping or a list of pairs. Without `partition`, the key decides. `timestamp` is in seconds since 1970 or an
        aware datetime. It defaults to the time at which the batch is made, at most `linger` later.

        Raises `InputError` for wrong arguments, `RecordTooLarge` above `max_record_bytes`, and `BufferFull` if there is
        no room in time. Raises `OttlaError` if the producer is closed, `UsedAfterFork` in a forked child.
        """
        # The short path, which most records take, written for speed (a variable for the first four tests costs 20 ns
        # of 240). `_send` is the full path.
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
            if not chunk.busy:  # else a signal handler sends in the middle of a send: see `intake.py`
                chunk.busy = True
                index = len(chunk)
                chunk.append(value)
                chunk.busy = False
                if index < chunk.limit:
                    return Delivery(chunk.shipment, index)
                if self._fast_path is None or not chunk.received or chunk.successors:
                    return self._intake.settle_append(chunk, index, value, None, self._check_open)
                chunk.trim()
        elif headers is None and partition is None and timestamp is None:
            delivery = self._send_small(topic, value, key)
            if delivery is not None:
                return delivery
        return self._send(topic, value, key, headers, partition, timestamp)

    def _send_small(self, topic: str, value: Payload, key: Payload) -> Delivery | None:
        """The short path for a record with a key, or of text. Returns None if it must take the full path."""
        value_bytes = value if type(value) is bytes else checks.payload("value", value)
        key_bytes = key if type(key) is bytes else checks.payload("key", key)
        if value_bytes is None or len(value_bytes) + (len(key_bytes) if key_bytes is not None else 0) > SMALL_BYTES:
            return None
        try:
            chunk = self._open.chunks[topic]
        except (KeyError, TypeError):
            return None
        if chunk.busy:
            return None
        chunk.busy = True
        index = len(chunk)
        if key_bytes is not None:
            chunk.add_key(index, key_bytes)
        chunk.append(value_bytes)
        chunk.busy = False
        if index < chunk.limit:
            return Delivery(chunk.shipment, index)
        if self._fast_path is None or not chunk.received or chunk.successors:
            return self._intake.settle_append(chunk, index, value_bytes, key_bytes, self._check_open)
        chunk.trim()
        return None

    def send_many(self, topic: str, items: Iterable[Item]) -> BulkDelivery:
        """Send `items`, a list of values and `(key, value)` pairs, mixed.

        Raises like `send`. `accepted` of what it raises is the number of items that were taken over before.
        """
        call = self._call()
        self._ensure_started(topic)
        checks.items(items)
        columns = from_list(items)
        explicit = None
        if self._topics.settings(topic).partitioner is not None:
            batch = as_arrow(columns, now_ms=0)
            explicit = self._custom_partitions(topic, batch.column("key"), batch.column("value"), None)
        rows = checks.Rows(topic, columns, explicit, range(columns.count))
        return BulkDelivery(call.hand_in([call.sized(rows, "item")]))

    def send_table(self, topic: str | None, table: ArrowTable) -> BulkDelivery:
        """Send the rows of `table`: anything with `__arrow_c_stream__`, as of pyarrow, polars, pandas and DuckDB.

        It has a column `value`, and optionally `key`, `headers`, `timestamp` and `partition`; with `topic=None` also
        `topic`. Raises like `send`, and `InputError` for other columns. `accepted` of what it raises is the number of
        rows that were taken over before. What is not in memory is read batch by batch, as room becomes free; the call
        raises `StreamFailed` if that stops early, which it also does when it notices that a record was not delivered.
        """
        call = self._call()
        opened = tables.opened(table)
        if isinstance(opened, pa.Table):
            return BulkDelivery(self._send_rows(call, topic, opened))
        checks.column_names(topic, opened.schema)
        self._check_open()  # before the first batch is read
        stops = not self._failures.are_handled
        return tables.sent_stream(opened, partial(self._send_rows, call, topic), stops=stops)

    def partition_for(self, topic: str, key: Payload = None, *, timeout: float = 60.0) -> int:
        """The partition that the next record with this key would go to, without sending one.

        Raises `InputError` for a wrong key, and the reason if the partitions are not known within `timeout` seconds.
        """
        partitions = self.partitions(topic, timeout=timeout)
        router = self._topics.router(topic)
        key_bytes = checks.payload("key", key)
        if router.partitioner is not None:
            chosen = router.custom_one(key_bytes, None, partitions.count)
            if chosen >= 0:
                return chosen
        return router.next_partition(key_bytes, partitions=partitions)

    def partitions(self, topic: str, *, timeout: float = 60.0) -> Partitions:
        """The partitions of a topic, and which of them have a leader, looked up if they are not known.

        Raises the reason if they are not known within `timeout` seconds.
        """
        self._ensure_started(topic)
        used = self._sender.topic(topic)
        if used is not None and used.partitions is not None:
            return used.partitions
        metadata = self._cluster.topic(topic, deadline=Deadline.after(timeout))
        return Partitions(len(metadata.partitions), tuple(p.index for p in metadata.partitions if p.leader >= 0))

    def transaction(self) -> Transaction:
        """Begin a transaction: `with producer.transaction() as tx`.

        What is sent in the block is committed together at its end, and not at all if the block raises. Raises
        `ConfigError` without `transactional_id`.
        """
        self._check_usable()
        if self._transactions is None:
            raise ConfigError("a transaction needs Producer(..., transactional_id=...)")
        self._start()
        return Transaction(self._transactions)

    # Waiting

    def flush(self, timeout: float | None = None) -> None:
        """Send everything now and wait until all of it is decided.

        Raises `NotDelivered` for the records that failed and that no flush had raised when this one began, even if
        their deliveries were checked; so each of several threads that wait for the same records gets it. Raises
        `TimeoutError` if some are undecided after `timeout` seconds.
        """
        check_may_wait("flush")
        self._check_usable()
        if not self._started:
            return
        raised = self._failures.raised
        deadline = Deadline.after(_seconds(timeout))
        BulkDelivery(self._sender.send_everything(deadline)).exception(deadline.remaining())
        self._failures.raise_failures(raised)

    async def aflush(self, timeout: float | None = None) -> None:
        """`flush` for asyncio. A task that is cancelled goes at once: the next flush raises what failed."""
        check_may_wait("flush")
        self._check_usable()
        if not self._started:
            return
        raised = self._failures.raised
        deadline = Deadline.after(_seconds(timeout))
        undecided = BulkDelivery(await until_left(self._sender.send_everything, deadline))
        await _decided(undecided, deadline)
        self._failures.raise_failures(raised)

    def persist(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far is on disk or acknowledged, so that a kill -9 cannot lose it.

        With `Spool(fsync=True)`, a power loss cannot either. Raises `ConfigError` without a spool, and the reason if
        that fails for `timeout` seconds.
        """
        self._check_may_persist()
        self._persist(Deadline.after(_seconds(timeout)))

    async def apersist(self, timeout: float | None = None) -> None:
        """`persist` for asyncio. A task that is cancelled goes at once."""
        self._check_may_persist()
        await until_left(self._persist, Deadline.after(_seconds(timeout)))

    def _persist(self, deadline: Deadline) -> None:
        error: OttlaError | None = None
        while self._started:
            try:
                error = self._sender.persist(deadline)
            except TimeoutError:
                if error is not None:
                    raise copied(error) from None
                raise TimeoutError(f"nothing was persisted within {deadline.seconds:g} s: the sender is busy") from None
            if error is None:
                return
            if deadline.expired():
                raise copied(error)
            time.sleep(min(_PERSIST_AGAIN, deadline.remaining()))

    def persist_each(self, deliveries: Sequence[BulkDelivery], timeout: float | None = None) -> list[OttlaError | None]:
        """Write to disk what can be written now, and return what each of `deliveries` still waits for.

        None stands for one whose records are on disk or have their outcome. For a program that answers many callers:
        records of a topic whose partitions are not known concern their own delivery alone, and the call does not wait
        for them. A delivery that the disk refuses fails with that reason, so that it can be sent again; one of which a
        broker may have records, or which shares a batch with others, goes on, and the reason is returned.

        Raises `ConfigError` without a spool, and `TimeoutError` if the sender is busy for `timeout` seconds.
        """
        self._check_may_persist()
        if not self._started:
            return [None] * len(deliveries)
        return self._sender.persist_each(
            [list(each._shipments()) for each in deliveries], Deadline.after(_seconds(timeout))
        )

    @property
    def remembered_topics(self) -> Collection[str]:
        """The topics whose number of partitions the spool knows; none without a spool.

        Records of these can be kept while no broker answers. It changes with what is sent: look names up in it.
        """
        return () if self._spooling is None else self._spooling.topics

    def _check_may_persist(self) -> None:
        """Raises if this thread may not wait for the disk, or if there is no spool."""
        check_may_wait("persist")
        self._check_usable()
        if self._spooling is None:
            raise ConfigError(
                "persist needs a spool: Producer(..., spool=Spool(path)); flush waits for acknowledgements"
            )

    def close(self, timeout: float | None = None) -> None:
        """Flush, then end everything. Raises like `flush`. What is undecided after `timeout` seconds is given up.

        With a spool it stays there for the next producer, which is no error. Then `timeout` defaults to 10 seconds.
        """
        check_may_wait("close")
        if os.getpid() == self._pid:
            raised = self._failures.raised
            self._close(timeout)
            self._failures.raise_failures(raised)

    async def aclose(self, timeout: float | None = None) -> None:
        """`close` for asyncio, on another thread. A task that is cancelled first waits until that has ended.

        What failed is raised by the next `aclose` then.
        """
        check_may_wait("close")
        if os.getpid() == self._pid:
            raised = self._failures.raised
            await on_thread(lambda: self._close(timeout))
            self._failures.raise_failures(raised)

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.aclose()
        else:
            await on_thread(lambda: self.__exit__(kind, error, trace))

    def _close(self, timeout: float | None) -> None:
        """Flush and end everything, without raising for failed records."""
        if self._ended:
            return
        self._closed = True
        if timeout is None and self._spooling is not None:
            timeout = _SPOOL_CLOSE_SECONDS
        deadline = Deadline.after(_seconds(timeout))
        try:
            if self._transactions is not None:
                self._transactions.close(deadline)
            if self._started:
                try:
                    BulkDelivery(self._sender.send_everything(deadline)).exception(deadline.remaining())
                except TimeoutError:
                    pass  # what is left is given up, and raised below
        finally:
            self._end(deadline)

    def hurry(self) -> None:
        """Send everything now without waiting. Useful before many producers are closed."""
        if self._started:
            self._sender.hurry()

    def _end(self, deadline: Deadline) -> None:
        """End everything once, also if several threads, or a signal handler of this thread, close at the same time."""
        thread_id = threading.get_ident()
        if thread_id in self._enders:
            return  # called by a signal handler that interrupted it
        try:
            try:
                self._enders.add(thread_id)
                with self._ending:
                    self._end_all(deadline)
            finally:
                self._enders.discard(thread_id)
        finally:
            self._enders.discard(thread_id)  # again: Ctrl-C may have interrupted the first

    def _end_all(self, deadline: Deadline) -> None:
        """Stop the sender, then release the loop, the spool and the connections. Runs under `_ending`."""
        if self._ended:
            return
        with ExitStack() as everything:  # every step, even if a second Ctrl-C comes
            everything.callback(self._context.close)
            if self._spooling is not None:
                everything.callback(self._spooling.close)
            everything.callback(self._wakeup.close)
            if self._counting is not None:
                everything.callback(self._counting.publisher.close)
            self._sender.stop(deadline)  # even if it was not started: then it cannot be started any more
        if self._spooling is not None and self._failures.kept:
            _log.warning("records left in the spool %s: %d", self._spooling.path, self._failures.kept)
        self._ended = True
        lifetimes.unregister(self)

    # The full path of a record

    def _send(
        self,
        topic: str,
        value: Payload,
        key: Payload,
        headers: Headers | None,
        partition: int | None,
        timestamp: float | datetime | None,
    ) -> Delivery:
        """Check one record, and send it on the fast path or put it into a chunk."""
        self._ensure_started(topic)
        settings = self._topics.settings(topic)
        value_bytes, key_bytes = checks.payload("value", value), checks.payload("key", key)
        pairs = checks.headers(headers)
        size = checks.record_bytes(value_bytes, key_bytes, pairs)
        if size > settings.max_record_bytes:
            return self._oversize(settings, Oversize(topic, key_bytes, value_bytes, size, settings.max_record_bytes))
        number = checks.partition(partition)
        if settings.partitioner is not None and number < 0:
            partitions = self.partitions(topic, timeout=self._budget.buffering.wait)
            number = self._topics.router(topic).custom_one(key_bytes, value_bytes, partitions.count)
        timestamp_ms = checks.milliseconds(timestamp)
        if self._fast_path is not None and pairs is None and timestamp_ms < 0 and number < 0 and size <= MOST_BYTES:
            delivery = self._fast_path.send(topic, value_bytes, key_bytes)
            if delivery is not None:
                return delivery
        extras = None if pairs is None and timestamp_ms < 0 and number < 0 else Extras(pairs, timestamp_ms, number)
        return self._intake.put(topic, value_bytes, key=key_bytes, extras=extras, usable=self._check_open)

    def _oversize(self, settings: Settings, record: Oversize) -> Delivery:
        """Raises `RecordTooLarge`, or hands the record to `on_oversize` and returns a failed delivery."""
        error = RecordTooLarge("the record", size_bytes=record.size_bytes, limit_bytes=record.limit_bytes)
        if settings.on_oversize is None:
            raise error
        settings.on_oversize(record)
        return checks.diverted(record.topic, error)

    # Lists and tables

    def _send_rows(self, call: BulkCall, topic: str | None, table: pa.Table, first: int = 0) -> list[Shipment]:
        """Send the rows of a table, or of a batch of a stream that begins with row `first` of the call."""
        all_rows = [self._checked_rows(*rows) for rows in checks.by_topic(topic, table)]
        sized = [call.sized(rows, "row", first=first) for rows in all_rows]
        return call.hand_in(sized, first=first)

    def _checked_rows(self, topic: str, table: pa.Table, numbers: npt.NDArray[np.int64] | range) -> checks.Rows:
        """Check the rows of one topic and ask its partitioner."""
        self._ensure_started(topic)
        columns, explicit = checks.columns(table)
        if self._topics.settings(topic).partitioner is not None:
            keys = table.column("key") if "key" in table.schema.names else None
            explicit = self._custom_partitions(topic, keys, table.column("value"), explicit)
        return checks.Rows(topic, columns, explicit, numbers)

    def _custom_partitions(
        self, topic: str, keys: pa.Array | None, values: pa.Array, explicit: npt.NDArray[np.int32] | None
    ) -> npt.NDArray[np.int32]:
        """Ask the topic's partitioner, in the caller's thread, so that its errors are raised by the call."""
        partitions = self.partitions(topic, timeout=self._budget.buffering.wait)
        router = self._topics.router(topic)
        return router.custom(keys, values, partitions.count, explicit=explicit)

    # State

    def disinherit(self) -> None:
        """Forget the parent's chunks, in a forked child."""
        self._open = type(self._open)()

    def _ensure_started(self, topic: str) -> None:
        """Check that the producer and the topic name can be used, and start the sender on first use."""
        self._check_open()
        checks.topic(topic)
        if not self._started:
            self._start()

    def _new_counting(self, audit: Audit, security: Security, client_id: str, gate: Gate | None) -> Counting:
        """Imported here, because most producers count nothing."""
        from ottla.produce.counting import Counting
        from ottla.tally.publisher import Publisher

        check_kind("audit", audit, Audit)
        publisher = Publisher(
            audit,
            self._cluster.bootstrap,
            role="producer",
            security=security,
            client_id=client_id,
            announced=self._wakeup.ring,
        )
        return Counting(publisher, is_transactional=gate is not None)

    def _start(self) -> None:
        """Start the sender. Raises `OttlaError` if its thread cannot start, or if the producer was closed meanwhile."""
        try:
            self._sender.start()
        except RuntimeError as error:
            raise OttlaError(f"the producer cannot start its thread: {error}") from error
        self._started = True  # only now: if interrupted before this, the next call starts it again
        if self._closed:
            raise OttlaError("this producer was closed")

    def _call(self) -> BulkCall:
        """A call with a list or table that begins now."""
        number = 0 if self._gate is None else self._gate.number
        return BulkCall(
            self._intake,
            self._topics,
            transaction=number,
            usable=partial(self._check_open, number),
            lasts=partial(self._check_transaction, number),
        )

    def _check_open(self, transaction: int = 0) -> None:
        """Raises if no record can be accepted: closed, forked, spool full or failed, no transaction open.

        With `transaction`, it must be that one.
        """
        self._check_usable()
        spooling = self._spooling
        if (
            spooling is not None
            and spooling.spool.when_full is WhenFull.REFUSE
            and (error := spooling.error) is not None
        ):
            raise copied(error)
        self._check_transaction(transaction)

    def _check_transaction(self, number: int) -> None:
        """Raises if records need a transaction and none is open, or another one than this."""
        if self._transactions is not None:
            self._transactions.check_open(number)

    def _check_usable(self) -> None:
        """Raises if the producer cannot be used at all.

        `UsedAfterFork` in a forked child, and `OttlaError` if it is closed or its thread has crashed.
        """
        if os.getpid() != self._pid:
            raise UsedAfterFork(
                f"this producer was made in process {self._pid} before fork(); create a new one in the child process"
            )
        has_stopped = self._sender.has_stopped  # read first: `close` sets `_closed` before the sender stops
        if self._closed:
            raise OttlaError("this producer was closed")
        if has_stopped:
            raise OttlaError("this producer's sender thread crashed, this is a bug; see the log")


def _opened(spool: Spool) -> Store:
    """Open the spool. Imported here, because most producers have none."""
    from ottla.produce.spool import Store

    return Store.open(spool.path, fsync=spool.fsync, max_bytes=spool.max_bytes)


async def _decided(delivery: BulkDelivery, deadline: Deadline) -> None:
    """Wait until every record has an outcome. Raises `TimeoutError`. No thread waits, and who leaves leaves nothing."""
    if delivery.done:
        return
    import asyncio  # a program that awaits has imported it already
    from concurrent.futures import Future

    done: Future[None] = Future()
    forget = call_when_done(delivery, lambda _: done.set_result(None))
    try:
        async with asyncio.timeout(deadline.remaining()):
            await ended(done)
    except TimeoutError:
        raise TimeoutError(f"no outcome after {deadline.seconds:.1f} s; delivery continues") from None
    finally:
        forget()


def _seconds(timeout: float | None) -> float:
    return 1e6 if timeout is None else timeout
