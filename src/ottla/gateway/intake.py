"""The way into Kafka that all gateways of a process share: one producer, with one spool and one budget of memory.

Records come in with a topic, and go to the producer as they are. Who waits gets a delivery; who does not wait says who
counts what is lost. It parses nothing and knows no protocol.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol

import msgspec
import pyarrow as pa

from ottla.errors import KeptInSpool, OttlaError, SpoolError
from ottla.produce.delivery import BulkDelivery, Delivery
from ottla.produce.producer import Producer

_PERSIST_SECONDS = 30.0
"""How long records may take to get to the disk before those who wait for it get an error."""
_AGAIN_SECONDS = 0.1
"""Between two attempts for records that wait for the partitions of their topic."""
_ROOM_SECONDS = 1.0
"""How long those who share a batch that the disk refused may take to ask for it together, so that it is given up."""


class Incoming(msgspec.Struct, frozen=True):  # made for each request, three times as fast as a dataclass
    """One record on its way in. `timestamp` is in seconds since 1970; None for the time of the batch."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: float | None = None
    partition: int | None = None


class Loss(Protocol):
    """Counts records that were taken and then lost. Called on any thread; it must not block."""

    def __call__(self, topic: str, records: int, first_time: float, last_time: float, why: OttlaError) -> None:
        """Count `records` of a topic with times from `first_time` to `last_time`, in seconds since 1970."""


class Intake:
    """Hands records to the producer. Threads share it."""

    def __init__(self, producer: Producer, *, has_spool: bool) -> None:
        self.producer = producer
        self.has_spool = has_spool
        self._persisting = _Persisting(producer) if has_spool else None

    def send(self, topic: str, records: Sequence[Incoming]) -> BulkDelivery:
        """Hand over records and return their delivery. Raises as `Producer.send_many` does."""
        if all(not record.headers and record.timestamp is None and record.partition is None for record in records):
            return self.producer.send_many(
                topic, [record.value if record.key is None else (record.key, record.value) for record in records]
            )
        return self.producer.send_table(topic, as_table(records))

    def send_one(self, topic: str, record: Incoming) -> Delivery:
        """Hand over one record, which costs less than a list of one. Raises as `Producer.send` does."""
        return self.producer.send(
            topic, record.value, record.key, record.headers or None, record.partition, record.timestamp
        )

    def send_table(self, topic: str, table: pa.Table | pa.RecordBatch) -> BulkDelivery:
        """Hand over a table, as for `Producer.send_table`."""
        return self.producer.send_table(topic, table)

    def forget(
        self, topic: str, records: Sequence[Incoming] | pa.RecordBatch, times: tuple[float, float], *, lost: Loss
    ) -> None:
        """Hand over records without waiting. What cannot be taken, or fails later, goes to `lost`."""
        count = records.num_rows if isinstance(records, pa.RecordBatch) else len(records)
        try:
            if isinstance(records, pa.RecordBatch):
                delivery = self.producer.send_table(topic, records)
            else:
                delivery = self.send(topic, records)
        except OttlaError as error:
            lost(topic, count - error.accepted, *times, error)
            return
        self.watch(topic, delivery, times, lost=lost)

    def watch(self, topic: str, delivery: BulkDelivery, times: tuple[float, float], *, lost: Loss) -> None:
        """Count what of a delivery fails later. What stays in the spool has not failed."""
        delivery.add_done_callback(lambda done: _count_lost(done, topic, times, lost))

    def persisted(self, delivery: BulkDelivery) -> Future[None]:
        """Return a future that is done when all records of a delivery are on disk or have their outcome.

        One write serves all who wait, and none waits for the topic of another. Raises `RuntimeError` without a spool.
        """
        if self._persisting is None:
            raise RuntimeError("this gateway has no spool")
        return self._persisting.join(delivery)

    def close(self) -> None:
        """End the thread that writes. The producer belongs to the caller."""
        if self._persisting is not None:
            self._persisting.close()


def as_table(records: Sequence[Incoming]) -> pa.RecordBatch:
    """Return records as the columns that `Producer.send_table` takes."""
    columns = {
        "value": pa.array([record.value for record in records], pa.binary()),
        "key": pa.array([record.key for record in records], pa.binary()),
        "headers": pa.array(
            [[{"key": name, "value": value} for name, value in record.headers] for record in records], _HEADERS
        ),
    }
    if any(record.timestamp is not None for record in records):
        now = time.time()
        times = [round((now if record.timestamp is None else record.timestamp) * 1e6) for record in records]
        columns["timestamp"] = pa.array(times, pa.timestamp("us", tz="UTC"))
    if any(record.partition is not None for record in records):
        columns["partition"] = pa.array([record.partition for record in records], pa.int32())
    return pa.RecordBatch.from_pydict(columns)


_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _count_lost(delivery: BulkDelivery, topic: str, times: tuple[float, float], lost: Loss) -> None:
    for decided in delivery.outcomes(0):
        if decided.error is not None and not isinstance(decided.error, KeptInSpool):
            lost(topic, len(decided.rows), *times, decided.error)


class _Waiter(NamedTuple):
    """Who waits for a delivery to be on disk, and since when."""

    delivery: BulkDelivery
    future: Future[None]
    since: float


class _Persisting:
    """Writes to the spool for all who wait: while one write runs, the next group gathers.

    A delivery that cannot be written yet, because the partitions of its topic are not known, keeps no other waiting.
    """

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._changed = threading.Condition()
        self._next: list[_Waiter] = []
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="ottla-gateway-persist", daemon=True)
        self._thread.start()

    def join(self, delivery: BulkDelivery) -> Future[None]:
        waiter = _Waiter(delivery, Future(), time.monotonic())
        waiter.future.set_running_or_notify_cancel()  # a client that leaves cannot cancel it
        with self._changed:
            self._next.append(waiter)
            self._changed.notify()
        return waiter.future

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        held: list[_Waiter] = []
        again_at = 0.0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next or self._is_closed, _AGAIN_SECONDS if held else None)
                group, self._next = self._next, []
                if self._is_closed and not group:
                    break
            if time.monotonic() >= again_at:
                group, held = [*held, *group], []
                again_at = time.monotonic() + _AGAIN_SECONDS
            if group:
                held += self._unwritten(group)
        for waiter in held:
            waiter.future.set_exception(OttlaError("the gateway has stopped"))

    def _unwritten(self, group: Sequence[_Waiter]) -> list[_Waiter]:
        """Write once, and answer those of a group whose records are on disk, or never will be. Returns the others."""
        try:
            reasons = self._producer.persist_each([waiter.delivery for waiter in group], _PERSIST_SECONDS)
        except Exception as error:  # those who wait get it
            for waiter in group:
                waiter.future.set_exception(error)
            return []
        held = []
        for waiter, reason in zip(group, reasons, strict=True):
            limit = _ROOM_SECONDS if isinstance(reason, SpoolError) else _PERSIST_SECONDS
            if reason is None:
                waiter.future.set_result(None)
            elif time.monotonic() >= waiter.since + limit:
                waiter.future.set_exception(reason)
            else:
                held.append(waiter)
        return held
