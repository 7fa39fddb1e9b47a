"""Where records come in: every thread fills a chunk of its own for each topic, and full or due chunks are handed over.
Callers wait here while the memory that a producer may use is used up.

Records come in from any thread, parcels of columns go out to the sender's thread, in the order of the calls of each
thread. Nothing here takes a lock, and every step may be interrupted: by other threads, by Ctrl-C, and by a signal
handler or finalizer that sends, too, in the middle of a send of its own thread. Why that holds:

- Only its thread appends to a chunk, while the chunk says that it is busy. Who finds it busy has interrupted an append
  on the same thread, or comes after one that Ctrl-C has ended: he closes the chunk and uses the next one. So no two
  appends to one chunk overlap, and nothing that is half in a chunk gets mixed up with another record.
- Anybody may close a chunk: the sender, its thread, or both. He first makes the chunk say that it is closed and then
  counts its records; the first count counts. The thread first appends and then looks whether the chunk says so. So
  either the record is in the count, or the thread sees that it must put it into the next chunk.
- A chunk gets a successor only after it was handed over, and the first successor is the only one.
- What is done twice does no harm: a chunk that is handed over again is dropped. Until it is handed over it is listed,
  and the sender looks at the list.
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
from ottla.produce.delivery import Delivery, Shipment, is_sender_thread
from ottla.produce.options import SMALL_BYTES, Buffering, WhenFull
from ottla.wire.columns import Columns, from_bytes

FIRST_CHUNK_RECORDS = 1024
_MOST_CHUNK_RECORDS = 8192
_LIKELY_CHUNK_BYTES = 1 << 20
"""How large chunks of small values get: large ones cost less for each record. They double as long as they fill up."""
_CHUNK_BYTES = 1 << 18
_TAKEN = -1
_EMPTY_SECONDS = 0.05
"""How long a chunk may stay empty before it is closed: its thread is about to append, unless it was interrupted."""
_LOOK_AGAIN = 0.001
_FEW_CHUNKS = 64
_RECORD_BYTES = 16
"""What a record adds to the size of its content while it waits."""

_TELL_EVERY = 1.0
"""Seconds: a buffer that is always full is a normal way to go as fast as the brokers."""

_HEADERS = pa.list_(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))


class Budget:
    """The memory that a producer may use: bytes in use, of those allowed, and the callers who wait for room.

    Bytes are added when records are handed over and taken back when they are decided or on disk. It holds no lock:
    those who wait ask whether the producer is usable, which may lead anywhere, also to the thread that gives bytes
    back.
    """

    def __init__(self, buffering: Buffering, *, holding: Callable[[], str], events: Events) -> None:
        self._events = events
        self.buffering = buffering
        self._used = Total()
        self._waiters = Waiters()
        self._told_at = -_TELL_EVERY
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
        """So many more bytes are in use; negative for fewer."""
        self._used.add(size_bytes)
        if size_bytes < 0 and self._waiters:
            self._waiters.notify_all()

    def wait(self, usable: Callable[[], None]) -> None:
        """Returns when there is room; raises BufferFull when that takes too long, or whatever `usable` raises."""
        if self._has_room():
            return
        options = self.buffering
        started = time.monotonic()
        # A callback runs on the thread that makes room: it would wait for itself.
        refuses = options.when_full is WhenFull.REFUSE or is_sender_thread()
        limit = started if refuses else started + options.wait
        if self._events.active and started - self._told_at >= _TELL_EVERY:
            self._told_at = started
            self._events.emit(happened.BufferFull(self.used, options.bytes, self._holding()))
        while True:
            usable()  # also when the time is up: why there is no room may have become known meanwhile
            if (left := limit - time.monotonic()) <= 0:
                break
            self._waiters.wait(min(left, 1.0), unless=self._has_room)
            if self._has_room():
                return
        holding = self._holding()
        seconds = time.monotonic() - started
        raise BufferFull(waiting_bytes=self.used, limit_bytes=options.bytes, seconds=seconds, holding=holding)

    def wake(self) -> None:
        """Those who wait look again whether the producer is usable."""
        self._waiters.notify_all()


class Extras(NamedTuple):
    """What few records have."""

    headers: list[tuple[str, bytes | None]] | None
    timestamp_ms: int
    """-1 for the time of sending."""
    partition: int
    """-1 for the one that is chosen."""


class Count(NamedTuple):
    """What was in a chunk when it was closed."""

    records: int
    size: int
    """Bytes of the records that did not go the short way."""

    @property
    def most_bytes(self) -> int:
        """What it can take at most, until it was looked at: threads may fill many before the sender gets its turn."""
        return self.size + self.records * SMALL_BYTES


class Chunk(list[Any]):
    """Values of one topic from one thread; keys and extras beside them where there are any.

    Values are only ever appended: the sender reads as many as there were when it was closed.
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
        """How many it takes."""
        self.limit = records - 1
        """The index from which on a record must look closer; -1 once the chunk was closed."""
        self.busy = False
        """Whether a record is being appended, or was when Ctrl-C came."""
        self.counts: list[Count] = []
        """The first one counts."""
        self.successors: list[Chunk] = []
        """The first one is the next chunk of its thread and topic."""
        self.uncharged = [True]
        """Whoever takes it out charges the chunk to the budget."""
        self.handed = False
        self.received = False
        self.keys: list[bytes | None] | None = None
        self.extras: dict[int, Extras] | None = None
        self.size = 0
        self.opened = time.monotonic()

    @property
    def usable(self) -> bool:
        """Whether a record may be appended."""
        return self.limit != _TAKEN and not self.busy

    def add_key(self, index: int, key: bytes) -> None:
        """The key of the record that comes at `index`."""
        keys = self.keys
        if keys is None:
            keys = self.keys = []
        if len(keys) != index:
            keys += [None] * (index - len(keys))
        keys.append(key)

    def columns(self) -> tuple[Columns, npt.NDArray[np.int32] | None]:
        """The records as columns, and the partitions that were asked for."""
        count = self.counts[0].records
        values = self[:count]
        keys = None if self.keys is None else self.keys[:count]
        if keys is not None:
            keys += [None] * (count - len(keys))
        if not self.extras:
            return from_bytes(values, keys=keys), None
        # As a list at once: the thread may still be adding extras of a record that will go into the next chunk.
        extras = {row: extra for row, extra in list(self.extras.items()) if row < count}
        return _with_extras(values, keys, extras)

    def trim(self) -> None:
        """Lets go what was appended after it was closed. What counted stays: a later record must not get its index."""
        del self[self.counts[0].records :]

    def forget(self) -> None:
        """Lets the values go: its thread may know the chunk until it sends again. It must not get shorter."""
        count = self.counts[0].records
        self[:count] = [None] * count
        self.keys = []
        self.extras = {}


def _with_extras(
    values: list[bytes | None], keys: list[bytes | None] | None, extras: dict[int, Extras]
) -> tuple[Columns, npt.NDArray[np.int32] | None]:
    headers = times = partitions = None
    if any(extra.headers for extra in extras.values()):
        listed: list[Any] = [None] * len(values)
        for row, extra in extras.items():
            listed[row] = [{"key": key, "value": value} for key, value in extra.headers or ()]
        headers = pa.array(listed, _HEADERS)
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
    """Seconds since 1970: the time of records that bring none."""
    held_bytes: int = 0


class _Open(threading.local):
    """The chunks that a thread is filling, by topic. No other thread changes these."""

    def __init__(self) -> None:
        self.chunks: dict[str, Chunk] = {}
        """Those that a record may be appended to without looking at the settings of its topic."""
        self.others: dict[str, Chunk] = {}
        self.tidy_at = _FEW_CHUNKS
        """How many there may be before those that are closed are forgotten."""

    def get(self, topic: str) -> Chunk | None:
        """The one of a topic, whichever it is, or one that leads to it through its successors."""
        chunk = self.chunks.get(topic)
        return self.others.get(topic) if chunk is None else chunk


class Intake:
    """The callers' side of a producer."""

    def __init__(
        self, budget: Budget, *, wake: Callable[[], None], short_way: Callable[[str], bool] = lambda _: True
    ) -> None:
        self.open = _Open()
        self._budget = budget
        self._wake = wake
        self._short_way = short_way
        """Whether small records of a topic need no look at its settings: no size limit, no partitioner."""
        self._serials = itertools.count(1)
        self._chunks: dict[int, Chunk] = {}
        """Those that were not handed over yet, by serial number."""
        self._handed: deque[Chunk | Handover] = deque()
        self._records: dict[str, int] = {}
        """Records of the next chunk, by topic."""
        self._shut: OttlaError | None = None

    # Callers

    def put(
        self, topic: str, value: bytes | None, *, key: bytes | None, extras: Extras | None, usable: Callable[[], None]
    ) -> Delivery:
        """One record the long way: with whatever it has."""
        size = len(value or b"") + len(key or b"") + _header_bytes(extras)
        while True:
            chunk = self.open.get(topic)
            if chunk is None or not chunk.usable:
                chunk = self._next_chunk(topic, usable)
            chunk.busy = True
            index = len(chunk)
            _beside(chunk, index, key, extras)
            chunk.append(value)
            chunk.size += size
            chunk.busy = False
            looks_closer = chunk.size >= _CHUNK_BYTES or index >= chunk.limit
            if not looks_closer or self._accepted(chunk, index):
                return Delivery(chunk.shipment, index)

    def settle_append(
        self, chunk: Chunk, index: int, value: bytes, key: bytes | None, usable: Callable[[], None]
    ) -> Delivery:
        """The rest of the short way, for a record that filled its chunk or met one that was closed."""
        if self._accepted(chunk, index):
            return Delivery(chunk.shipment, index)
        return self.put(chunk.topic, value, key=key, extras=None, usable=usable)

    def hand_over(self, handover: Handover) -> None:
        """Rows of one call, after those that the thread has put one by one."""
        columns = handover.columns
        handover.held_bytes = columns.data_bytes + columns.count * _RECORD_BYTES
        chunk = self.open.get(handover.topic)
        while chunk is not None:
            self._close(chunk)
            chunk = chunk.successors[0] if chunk.successors else None
        self._handed.append(handover)
        if self._shut is not None:  # looked at afterwards: either we see it, or the last take sees the rows
            try:
                self._handed.remove(handover)
            except ValueError:
                pass  # they were taken, and have their outcome
            else:
                raise copied(self._shut)
        self._budget.add(handover.held_bytes)
        self._wake()

    def wait_for_room(self, usable: Callable[[], None]) -> None:
        """Waits until the budget has room."""
        self._budget.wait(usable)

    # The sender

    def take(self, now: float, linger: Callable[[str], float]) -> tuple[list[Handover], float]:
        """What was handed over, with the open chunks that are due; and when the next one will be."""
        next_due = float("inf")
        for chunk in list(self._chunks.values()):
            at = chunk.opened + linger(chunk.topic)
            if chunk.limit == _TAKEN or (at <= now and (chunk or at + _EMPTY_SECONDS <= now)):
                self._close(chunk)
            else:
                next_due = min(next_due, max(at, now + _LOOK_AGAIN))
        taken: list[Handover] = []
        while self._handed:
            item = self._handed.popleft()
            handover = item if isinstance(item, Handover) else self._as_handover(item)
            if handover is not None:
                taken.append(handover)
        return taken, next_due

    def idle(self) -> bool:
        """Whether nothing waits to be taken."""
        return not self._handed and not self._chunks

    def take_all(self) -> None:
        """Hands over every open chunk that has a record, due or not."""
        for chunk in list(self._chunks.values()):
            if chunk:
                self._close(chunk)

    def shut(self, error: OttlaError) -> None:
        """Nobody takes anything any more: from now on callers get this error. What is open is handed over."""
        self._shut = error
        for chunk in list(self._chunks.values()):
            self._close(chunk)

    # Both

    def _next_chunk(self, topic: str, usable: Callable[[], None]) -> Chunk:
        """The one to append to: a new one, or one that a signal handler has opened meanwhile."""
        usable()
        self._budget.wait(usable)
        opened = self.open
        home = opened.chunks if self._short_way(topic) else opened.others
        if len(home) >= opened.tidy_at:
            self._tidy(opened, home)
        new = Chunk(topic, next(self._serials), self._records.get(topic, FIRST_CHUNK_RECORDS))
        self._chunks[new.serial] = new
        if self._shut is not None:  # looked at afterwards: either we see it, or the last take sees the chunk
            self._chunks.pop(new.serial, None)
            raise copied(self._shut)
        chunk = home.setdefault(topic, new)
        while chunk is not new and not chunk.usable:
            self._close(chunk)
            chunk.successors.append(new)
            chunk = chunk.successors[0]
        home[topic] = chunk
        if chunk is not new:
            self._chunks.pop(new.serial, None)
        self._wake()
        return chunk

    def _tidy(self, opened: _Open, home: dict[str, Chunk]) -> None:
        """Forgets what is closed of topics that the thread does not send to at the moment."""
        for topic in [topic for topic, chunk in list(home.items()) if chunk.handed and not chunk.successors]:
            chunk = home.pop(topic)
            self._close(chunk)  # if a signal handler has put another one there
        opened.tidy_at = max(_FEW_CHUNKS, 2 * len(home))

    def _accepted(self, chunk: Chunk, index: int) -> bool:
        """Whether the record at `index` is in the chunk for good; hands the chunk over if nobody has yet."""
        self._close(chunk)
        self._wake()
        return index < chunk.counts[0].records

    def _close(self, chunk: Chunk) -> None:
        """Hands it over, unless that is done; by any thread."""
        if chunk.handed:
            return
        chunk.limit = _TAKEN  # first this, then the count: see the module's text
        chunk.counts.append(Count(len(chunk), chunk.size))
        self._handed.append(chunk)
        chunk.handed = True
        self._chunks.pop(chunk.serial, None)
        if _is_first(chunk.uncharged):
            self._budget.add(chunk.counts[0].most_bytes)

    def _as_handover(self, chunk: Chunk) -> Handover | None:
        if chunk.received:
            return None  # it was handed over twice
        chunk.received = True
        count = chunk.counts[0]
        charged = 0 if _is_first(chunk.uncharged) else count.most_bytes
        if not count.records:
            self._budget.add(-charged)
            return None  # it was closed before its first record: nobody has a delivery of it
        columns, partitions = chunk.columns()
        chunk.forget()
        shipment = chunk.shipment
        shipment.count = columns.count
        each = columns.data_bytes // columns.count + _RECORD_BYTES
        grown = 2 * chunk.records if count.records >= chunk.records else chunk.records
        self._records[chunk.topic] = max(1, min(grown, _MOST_CHUNK_RECORDS, _LIKELY_CHUNK_BYTES // each))
        held = columns.data_bytes + columns.count * _RECORD_BYTES
        self._budget.add(held - charged)
        return Handover(chunk.topic, shipment, columns, partitions, chunk.opened, time.time(), held)


def _is_first(tickets: list[bool]) -> bool:
    """Whether this is the one caller who gets the ticket."""
    try:
        return tickets.pop()
    except IndexError:
        return False


def _beside(chunk: Chunk, index: int, key: bytes | None, extras: Extras | None) -> None:
    """Puts key and extras of the record that comes at `index` into the chunk."""
    if key is not None:
        chunk.add_key(index, key)
    if extras is not None:
        if chunk.extras is None:
            chunk.extras = {}
        chunk.extras[index] = extras


def _header_bytes(extras: Extras | None) -> int:
    if extras is None or not extras.headers:
        return 0
    return sum(len(key) + len(value or b"") + 10 for key, value in extras.headers)
