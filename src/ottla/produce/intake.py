"""Where records come in. Every thread fills its own chunk per topic; full or due chunks are handed over to the sender.
Callers wait here while the producer's memory is used up.

Records come in from any thread; handovers of columns go out to the sender's thread, in the order of the calls of each
thread. Nothing here takes a lock, and every step may be interrupted: by other threads, by Ctrl-C, and by a signal
handler or finalizer that itself sends, in the middle of a send of its own thread. Why that is safe:

- Only the owning thread appends to a chunk, and marks it busy meanwhile. A caller that finds its chunk busy has
  interrupted an append on the same thread, or comes after one that Ctrl-C ended: it closes the chunk and uses the next
  one. So appends to one chunk never overlap, and a half-appended record is never mixed up with another.
- Any thread may close a chunk: the sender, its owner, or both. It first marks the chunk as closed and then counts its
  records; the first count is final. The owner first appends and then checks the mark. So either the record is in the
  count, or the owner sees that it must put it into the next chunk.
- A chunk gets a successor only after it was handed over, and the first successor is the only one.
- Doing a step twice is harmless: a chunk that is handed over again is dropped. Until it is handed over it is listed,
  and the sender checks the list.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla import events as happened
from ottla.errors import BufferFull, OttlaError, copied
from ottla.events import Events
from ottla.net.waiting import Total, Waiters
from ottla.produce.delivery import Delivery, Shipment
from ottla.produce.options import SMALL_BYTES, Buffering, WhenFull
from ottla.produce.waiting import is_sender_thread
from ottla.wire.columns import Columns, from_bytes

FIRST_CHUNK_RECORDS = 1024
"""The size of the first chunk of a topic."""
_MOST_CHUNK_RECORDS = 8192
"""Chunks never take more records than this."""
_LIKELY_CHUNK_BYTES = 1 << 20
"""Target size of chunks of small values: large chunks cost less per record. They double as long as they fill up."""
_CHUNK_BYTES = 1 << 18
"""From this size on a chunk with keys, headers or large values is handed over."""
_CLOSED = -1
"""The limit of a closed chunk: every index is above it."""
_EMPTY_SECONDS = 0.05
"""How long a chunk may stay empty before it is closed: its thread is about to append, unless it was interrupted."""
_LOOK_AGAIN = 0.001
"""The shortest time in seconds until the sender checks open chunks again."""
_FEW_CHUNKS = 64
"""Up to this many topics of a thread, closed chunks may stay."""
_RECORD_BYTES = 16
"""Overhead of a record in memory, beyond its content."""
_HANDOVER_BYTES = 1400
"""Overhead of what is handed over together, whatever is in it: measured with streams of one-row batches."""
_REPORT_EVERY = 1.0
"""Seconds. A buffer that is always full is normal for a producer that is as fast as the brokers."""

_HEADERS = pa.list_(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))


class Budget:
    """The memory that a producer may use: bytes in use, the limit, and the callers that wait for room.

    Bytes are added when records are handed over and given back when they are decided or on disk. It holds no lock:
    waiting callers call `usable`, which may run arbitrary code and even wait for the thread that gives bytes back.
    """

    def __init__(self, buffering: Buffering, *, holding: Callable[[], str], events: Events) -> None:
        self._events = events
        self.buffering = buffering
        self._used = Total()
        self._waiters = Waiters()
        self._reported_at = -_REPORT_EVERY
        self._holding = holding

    @property
    def used(self) -> int:
        """Bytes in use."""
        return self._used.value

    @property
    def waiting(self) -> int:
        """How many callers wait for room."""
        return len(self._waiters)

    @property
    def full(self) -> bool:
        """Whether callers have to wait."""
        return self.used >= self.buffering.bytes

    def _has_room(self) -> bool:
        return not self.full

    def add(self, size_bytes: int) -> None:
        """Add to the bytes in use; negative to give bytes back."""
        self._used.add(size_bytes)
        if size_bytes < 0 and self._waiters:
            self._waiters.notify_all()

    def wait(self, usable: Callable[[], None]) -> None:
        """Wait for room. Raises `BufferFull` if that takes too long, or whatever `usable` raises."""
        if self._has_room():
            return
        options = self.buffering
        started = time.monotonic()
        # A callback runs on the thread that makes room and would wait for itself.
        refuses = options.when_full is WhenFull.REFUSE or is_sender_thread()
        until = started if refuses else started + options.wait
        if self._events.active and started - self._reported_at >= _REPORT_EVERY:
            self._reported_at = started
            self._events.emit(happened.BufferFull(self.used, options.bytes, self._holding()))
        while True:
            usable()  # once more at the end: the reason for the lack of room may be known by now
            if (left := until - time.monotonic()) <= 0:
                break
            self._waiters.wait(min(left, 1.0), unless=self._has_room)
            if self._has_room():
                return
        holding = self._holding()
        seconds = time.monotonic() - started
        raise BufferFull(waiting_bytes=self.used, limit_bytes=options.bytes, seconds=seconds, holding=holding)

    def wake(self) -> None:
        """Make waiting callers check again whether the producer is usable."""
        self._waiters.notify_all()


class Extras(NamedTuple):
    """Headers, timestamp and partition, which few records have."""

    headers: list[tuple[str, bytes | None]] | None
    timestamp_ms: int
    """-1 for the time of sending."""
    partition: int
    """-1 if the producer chooses."""


class Count(NamedTuple):
    """What was in a chunk when it was closed."""

    records: int
    size: int
    """Bytes of the records that were put with `Intake.put`; small values that `send` appends are not counted."""

    @property
    def most_bytes(self) -> int:
        """An upper bound of its size, charged until the sender has looked: threads may fill many chunks before that."""
        return self.size + self.records * SMALL_BYTES


class Chunk(list[Any]):
    """Values of one topic from one thread, with keys and extras where there are any.

    Values are only appended: the sender reads as many as were there when the chunk was closed.
    """

    __slots__ = (
        "busy",
        "counts",
        "extras",
        "handed",
        "keys",
        "limit",
        "opened",
        "received",
        "records",
        "serial",
        "shipment",
        "size",
        "successors",
        "topic",
        "uncharged",
    )

    def __init__(self, topic: str, serial: int = 0, records: int = FIRST_CHUNK_RECORDS) -> None:
        self.topic = topic
        self.serial = serial
        self.shipment = Shipment(topic)
        self.records = records
        """How many records it takes."""
        self.limit = records - 1
        """The index of its last record, from which on `send` must check the chunk; -1 once it is closed."""
        self.busy = False
        """Whether a record is being appended, or was when Ctrl-C came."""
        self.counts: list[Count] = []
        """The first one is final."""
        self.successors: list[Chunk] = []
        """The first one is the next chunk of its thread and topic."""
        self.uncharged = [True]
        """A ticket: the thread that takes it out charges the chunk to the budget."""
        self.handed = False
        self.received = False
        self.keys: list[bytes | None] | None = None
        self.extras: dict[int, Extras] | None = None
        self.size = 0
        self.opened = time.monotonic()

    @property
    def usable(self) -> bool:
        """Whether a record may be appended."""
        return self.limit != _CLOSED and not self.busy

    def add_key(self, index: int, key: bytes) -> None:
        """Set the key of the record that comes at `index`."""
        keys = self.keys
        if keys is None:
            keys = self.keys = []
        if len(keys) != index:
            keys += [None] * (index - len(keys))
        keys.append(key)

    def columns(self) -> tuple[Columns, npt.NDArray[np.int32] | None]:
        """The records as columns, and their explicit partitions."""
        count = self.counts[0].records
        values = self[:count]
        keys = None if self.keys is None else self.keys[:count]
        if keys is not None:
            keys += [None] * (count - len(keys))
        if not self.extras:
            return from_bytes(values, keys=keys), None
        # Copied in one step: the thread may still be adding extras of a record that will go into the next chunk.
        extras = {row: extra for row, extra in list(self.extras.items()) if row < count}
        return _with_extras(values, keys, extras)

    def trim(self) -> None:
        """Remove what was appended after it was closed.

        Counted values stay: a later record must not get their index.
        """
        del self[self.counts[0].records :]

    def forget(self) -> None:
        """Release the values: the thread may refer to the chunk until it sends again. Its length stays the same."""
        count = self.counts[0].records
        self[:count] = [None] * count
        self.keys = []
        self.extras = {}


def _with_extras(
    values: list[bytes | None], keys: list[bytes | None] | None, extras: dict[int, Extras]
) -> tuple[Columns, npt.NDArray[np.int32] | None]:
    """The columns of records of which some have headers, a timestamp or a partition, and the partitions."""
    headers = times = partitions = None
    if any(extra.headers for extra in extras.values()):
        rows: list[Any] = [None] * len(values)
        for row, extra in extras.items():
            rows[row] = [{"key": key, "value": value} for key, value in extra.headers or ()]
        headers = pa.array(rows, _HEADERS)
    if any(extra.timestamp_ms >= 0 for extra in extras.values()):
        times = np.full(len(values), int(time.time() * 1000), np.int64)
        for row, extra in extras.items():
            times[row] = extra.timestamp_ms if extra.timestamp_ms >= 0 else times[row]
    if any(extra.partition >= 0 for extra in extras.values()):
        partitions = np.full(len(values), -1, np.int32)
        for row, extra in extras.items():
            partitions[row] = extra.partition
    columns = (
        from_bytes(values, keys=keys, headers=headers)
        if times is None
        else from_bytes(values, keys=keys, headers=headers, times=times)
    )
    return columns, partitions


@dataclass(slots=True, eq=False)
class Handover:
    """Rows that the sender takes over."""

    topic: str
    shipment: Shipment
    columns: Columns
    partitions: npt.NDArray[np.int32] | None
    opened: float
    """By the monotonic clock."""
    created: float
    """Seconds since 1970: the timestamp of records that have none."""
    held_bytes: int = 0
    transaction: int = 0
    """The number of the transaction to which the rows belong. 0 for the open one, whichever it is."""


class _Open(threading.local):
    """The chunks that a thread is filling, by topic. No other thread changes them."""

    def __init__(self) -> None:
        self.chunks: dict[str, Chunk] = {}
        """Chunks to which `send` may append small values without checking the settings of the topic."""
        self.others: dict[str, Chunk] = {}
        self.drop_at = _FEW_CHUNKS
        """How many chunks there may be before closed ones are dropped."""

    def get(self, topic: str) -> Chunk | None:
        """The chunk of a topic, or one that leads to it through its successors."""
        chunk = self.chunks.get(topic)
        return self.others.get(topic) if chunk is None else chunk


class Intake:
    """The callers' side of a producer."""

    def __init__(
        self, budget: Budget, *, wake: Callable[[], None], skips_checks: Callable[[str], bool] = lambda _: True
    ) -> None:
        self.open = _Open()
        self._budget = budget
        self._wake = wake
        self._skips_checks = skips_checks
        """Whether small records of a topic need no check against its settings: no size limit, no partitioner."""
        self._serials = itertools.count(1)
        self._chunks: dict[int, Chunk] = {}
        """Chunks that were not handed over yet, by serial number."""
        self._handed: deque[Chunk | tuple[Handover, ...]] = deque()
        self._records: dict[str, int] = {}
        """The size of the next chunk in records, by topic."""
        self._shut: OttlaError | None = None

    # Callers

    def put(
        self, topic: str, value: bytes | None, *, key: bytes | None, extras: Extras | None, usable: Callable[[], None]
    ) -> Delivery:
        """Put one record with all it has into a chunk. Raises what `usable` raises, and `BufferFull`."""
        size = len(value or b"") + len(key or b"") + _header_bytes(extras)
        while True:
            chunk = self.open.get(topic)
            if chunk is None or not chunk.usable:
                chunk = self._next_chunk(topic, usable)
            chunk.busy = True
            index = len(chunk)
            _add_extras(chunk, index, key, extras)
            chunk.append(value)
            chunk.size += size
            chunk.busy = False
            is_last = chunk.size >= _CHUNK_BYTES or index >= chunk.limit
            if not is_last or self._accepted(chunk, index):
                return Delivery(chunk.shipment, index)

    def settle_append(
        self, chunk: Chunk, index: int, value: bytes, key: bytes | None, usable: Callable[[], None]
    ) -> Delivery:
        """Finish an append by `send` for a record that filled its chunk or met a closed one."""
        if self._accepted(chunk, index):
            return Delivery(chunk.shipment, index)
        return self.put(chunk.topic, value, key=key, extras=None, usable=usable)

    def hand_over(self, *handovers: Handover) -> None:
        """Hand over rows of one call, behind the records that the thread has put before. All are accepted, or none."""
        held_bytes = 0
        for handover in handovers:
            handover.held_bytes = _held_bytes(handover.columns)
            held_bytes += handover.held_bytes
            chunk = self.open.get(handover.topic)
            while chunk is not None:
                self._close(chunk)
                chunk = chunk.successors[0] if chunk.successors else None
        self._handed.append(handovers)
        if (
            self._shut is not None
        ):  # checked after appending: either we see the shutdown, or the last `take` sees the rows
            try:
                self._handed.remove(handovers)
            except ValueError:
                pass  # they were taken and have their outcome
            else:
                raise copied(self._shut)
        self._budget.add(held_bytes)
        self._wake()

    def wait_for_room(self, usable: Callable[[], None]) -> None:
        """Wait until the budget has room. Raises like `Budget.wait`."""
        self._budget.wait(usable)

    # The sender

    def take(self, now: float, linger: Callable[[str], float]) -> tuple[list[Handover], float]:
        """Take what was handed over, including open chunks that are due. Returns it, and when the next chunk is due."""
        next_due = float("inf")
        for chunk in list(self._chunks.values()):
            due = chunk.opened + linger(chunk.topic)
            if chunk.limit == _CLOSED or (due <= now and (chunk or due + _EMPTY_SECONDS <= now)):
                self._close(chunk)
            else:
                next_due = min(next_due, max(due, now + _LOOK_AGAIN))
        taken: list[Handover] = []
        while self._handed:
            item = self._handed.popleft()
            if isinstance(item, tuple):
                taken += item
            elif (handover := self._as_handover(item)) is not None:
                taken.append(handover)
        return taken, next_due

    def idle(self) -> bool:
        """Whether there is nothing to take."""
        return not self._handed and not self._chunks

    def take_all(self) -> None:
        """Hand over every open chunk that has a record, due or not."""
        for chunk in list(self._chunks.values()):
            if chunk:
                self._close(chunk)

    def shut(self, error: OttlaError) -> None:
        """Shut the intake: callers get this error from now on. Open chunks are handed over."""
        self._shut = error
        for chunk in list(self._chunks.values()):
            self._close(chunk)

    # Callers and the sender

    def _next_chunk(self, topic: str, usable: Callable[[], None]) -> Chunk:
        """The chunk to append to: a new one, or one that a signal handler has opened meanwhile."""
        usable()
        self._budget.wait(usable)
        open_chunks = self.open
        chunks = open_chunks.chunks if self._skips_checks(topic) else open_chunks.others
        if len(chunks) >= open_chunks.drop_at:
            self._drop_closed(open_chunks, chunks)
        new = Chunk(topic, next(self._serials), self._records.get(topic, FIRST_CHUNK_RECORDS))
        self._chunks[new.serial] = new
        if (
            self._shut is not None
        ):  # checked after listing it: either we see the shutdown, or the last `take` sees the chunk
            self._chunks.pop(new.serial, None)
            raise copied(self._shut)
        chunk = chunks.setdefault(topic, new)
        while chunk is not new and not chunk.usable:
            self._close(chunk)
            chunk.successors.append(new)
            chunk = chunk.successors[0]
        chunks[topic] = chunk
        if chunk is not new:
            self._chunks.pop(new.serial, None)
        self._wake()
        return chunk

    def _drop_closed(self, open_chunks: _Open, chunks: dict[str, Chunk]) -> None:
        """Drop closed chunks of topics that the thread does not send to at the moment."""
        for topic in [topic for topic, chunk in list(chunks.items()) if chunk.handed and not chunk.successors]:
            chunk = chunks.pop(topic)
            self._close(chunk)  # a signal handler may have put another one there
        open_chunks.drop_at = max(_FEW_CHUNKS, 2 * len(chunks))

    def _accepted(self, chunk: Chunk, index: int) -> bool:
        """Hand over the chunk if that is not done yet. Returns whether the record at `index` is in it for good."""
        self._close(chunk)
        self._wake()
        return index < chunk.counts[0].records

    def _close(self, chunk: Chunk) -> None:
        """Close the chunk and hand it over, unless that is done. Any thread may call it."""
        if chunk.handed:
            return
        chunk.limit = _CLOSED  # before the count: see the module's docstring
        chunk.counts.append(Count(len(chunk), chunk.size))
        self._handed.append(chunk)
        chunk.handed = True
        self._chunks.pop(chunk.serial, None)
        if _is_first(chunk.uncharged):
            self._budget.add(chunk.counts[0].most_bytes)

    def _as_handover(self, chunk: Chunk) -> Handover | None:
        """Make a handover of a closed chunk, or None if it is empty or was taken before. Corrects what was charged."""
        if chunk.received:
            return None  # handed over twice
        chunk.received = True
        count = chunk.counts[0]
        charged = 0 if _is_first(chunk.uncharged) else count.most_bytes
        if not count.records:
            self._budget.add(-charged)
            return None  # closed before its first record: it has no deliveries
        columns, partitions = chunk.columns()
        chunk.forget()
        shipment = chunk.shipment
        shipment.count = columns.count
        each = columns.data_bytes // columns.count + _RECORD_BYTES
        grown = 2 * chunk.records if count.records >= chunk.records else chunk.records
        self._records[chunk.topic] = max(1, min(grown, _MOST_CHUNK_RECORDS, _LIKELY_CHUNK_BYTES // each))
        held = _held_bytes(columns)
        self._budget.add(held - charged)
        return Handover(chunk.topic, shipment, columns, partitions, chunk.opened, time.time(), held)


def _held_bytes(columns: Columns) -> int:
    """How much memory rows take until they are in batches."""
    return columns.data_bytes + columns.count * _RECORD_BYTES + _HANDOVER_BYTES


def _is_first(tickets: list[bool]) -> bool:
    """Whether this caller gets the ticket; only one does."""
    try:
        return tickets.pop()
    except IndexError:
        return False


def _add_extras(chunk: Chunk, index: int, key: bytes | None, extras: Extras | None) -> None:
    """Set key and extras of the record that comes at `index`."""
    if key is not None:
        chunk.add_key(index, key)
    if extras is not None:
        if chunk.extras is None:
            chunk.extras = {}
        chunk.extras[index] = extras


def _header_bytes(extras: Extras | None) -> int:
    """The size of the headers, with about 10 bytes of overhead each."""
    if extras is None or not extras.headers:
        return 0
    return sum(len(key) + len(value or b"") + 10 for key, value in extras.headers)
