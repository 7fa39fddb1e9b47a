"""Where records come in: every thread fills a chunk of its own for each topic, and full or due chunks are handed over.

Records come in from any thread, parcels of columns go out to the sender's thread, in the order of the calls of each
thread. The way of a plain record takes no lock: only its own thread appends to a chunk, and the sender, when it takes
an open chunk away, first makes the chunk say so and then looks how many records are in it, while the thread first
appends and then looks whether the chunk says so. So either the sender sees the record or the thread sees that it must
put it into the next chunk.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.errors import OttlaError
from ottla.produce.budget import Budget
from ottla.produce.delivery import Delivery, Shipment
from ottla.wire.columns import Columns, from_bytes

SMALL_BYTES = 1024
"""Values up to this size go the short way: a chunk of them cannot get large unnoticed."""
FIRST_CHUNK_RECORDS = 1024
_MOST_CHUNK_RECORDS = 8192
_LIKELY_CHUNK_BYTES = 1 << 20
"""How large chunks of small values get: large ones cost less for each record. They double as long as they fill up."""
_CHUNK_BYTES = 1 << 18
_TAKEN = -1
_LOCK_SECONDS = 0.2
_RECORD_BYTES = 16
"""What a record adds to the size of its content while it waits."""

_HEADERS = pa.list_(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))


class Extras(NamedTuple):
    """What few records have."""

    headers: list[tuple[str, bytes | None]] | None
    timestamp_ms: int
    """-1 for the time of sending."""
    partition: int
    """-1 for the one that is chosen."""


class Chunk(list[Any]):
    """Values of one topic from one thread; keys and extras beside them where there are any.

    Values are only ever appended: the sender reads as many as there were when it took the chunk away.
    """

    __slots__ = (
        "extras",
        "held_bytes",
        "home",
        "keys",
        "limit",
        "opened",
        "records",
        "shipment",
        "size",
        "taken",
        "topic",
    )

    def __init__(self, topic: str, home: dict[str, Chunk], records: int = FIRST_CHUNK_RECORDS) -> None:
        self.topic = topic
        self.home = home
        """The chunks of its thread."""
        self.shipment = Shipment(topic)
        self.records = records
        """How many it takes."""
        self.limit = records - 1
        """The index from which on a record must look closer; -1 once the chunk was taken away."""
        self.taken = -1
        """How many records were in it when it was taken away."""
        self.keys: list[bytes | None] | None = None
        self.extras: dict[int, Extras] | None = None
        self.size = 0
        """Bytes of the records that did not go the short way."""
        self.opened = time.monotonic()
        self.held_bytes = 0
        """What was charged to the budget for it."""

    def columns(self) -> tuple[Columns, npt.NDArray[np.int32] | None]:
        """The records as columns, and the partitions that were asked for."""
        count = self.taken
        values = self[:count]
        keys = None if self.keys is None else self.keys[:count]
        if keys is not None:
            keys += [None] * (count - len(keys))
        if not self.extras:
            return from_bytes(values, keys=keys), None
        # As a list at once: the thread may still be adding extras of a record that will go into the next chunk.
        extras = {row: extra for row, extra in list(self.extras.items()) if row < count}
        return _with_extras(values, keys, extras)


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


@dataclass(slots=True)
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
    """The chunks that a thread is filling, by topic."""

    def __init__(self) -> None:
        self.chunks: dict[str, Chunk] = {}
        """Those that a record may be appended to without looking at the settings of its topic."""
        self.others: dict[str, Chunk] = {}

    def get(self, topic: str) -> Chunk | None:
        """The one of a topic, whichever it is."""
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
        self._lock = threading.Lock()
        self._chunks: dict[int, Chunk] = {}
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
            if chunk is None or chunk.limit == _TAKEN:
                chunk = self._new_chunk(topic, usable)
            index = len(chunk)
            try:
                _beside(chunk, index, key, extras)
                chunk.append(value)
            finally:
                if len(chunk) == index:  # Ctrl-C before the record was in: what is beside it belongs to nobody
                    _beside(chunk, index, None, None)
            chunk.size += size
            looks_closer = chunk.size >= _CHUNK_BYTES or index >= chunk.limit
            if not looks_closer or self._accepted(chunk, index):
                return Delivery(chunk.shipment, index)

    def settle_append(self, chunk: Chunk, index: int, value: bytes, usable: Callable[[], None]) -> Delivery:
        """The rest of the short way, for a record that filled its chunk or met one that was taken away."""
        if self._accepted(chunk, index):
            return Delivery(chunk.shipment, index)
        return self.put(chunk.topic, value, key=None, extras=None, usable=usable)

    def hand_over(self, handover: Handover) -> None:
        """Rows of one call, after those that the thread has put one by one."""
        columns = handover.columns
        handover.held_bytes = columns.data_bytes + columns.count * _RECORD_BYTES
        with self._lock:  # the sender may be taking the chunk away: then that comes first, too
            self._check_open()
            chunk = self.open.get(handover.topic)
            if chunk is not None and chunk.taken < 0:
                self._close(chunk)
            self._handed.append(handover)
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
            if at <= now or chunk.taken >= 0:
                self._take_away(chunk)
            else:
                next_due = min(next_due, at)
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
        """Hands over every open chunk, due or not."""
        for chunk in list(self._chunks.values()):
            self._take_away(chunk)

    def shut(self, error: OttlaError) -> None:
        """Nobody takes anything any more: from now on callers get this error. What is open is handed over."""
        with self._lock:
            self._shut = error
        self.take_all()

    # Both

    def _new_chunk(self, topic: str, usable: Callable[[], None]) -> Chunk:
        usable()
        self._budget.wait(usable)
        home = self.open.chunks if self._short_way(topic) else self.open.others
        chunk = Chunk(topic, home, self._records.get(topic, FIRST_CHUNK_RECORDS))
        with self._lock:
            self._check_open()
            home[topic] = chunk
            self._chunks[id(chunk)] = chunk
        self._wake()
        return chunk

    def _check_open(self) -> None:
        if self._shut is not None:
            raise self._shut

    def _accepted(self, chunk: Chunk, index: int) -> bool:
        """Whether the record at `index` is in the chunk for good; hands the chunk over if nobody has yet."""
        with self._lock:
            if chunk.taken < 0:
                self._close(chunk)
        self._wake()
        return index < chunk.taken

    def _take_away(self, chunk: Chunk) -> None:
        # Not for ever: the thread that has the lock may be in a signal handler that waits for the sender.
        if self._lock.acquire(timeout=_LOCK_SECONDS):
            try:
                self._close(chunk)
            finally:
                self._lock.release()

    def _close(self, chunk: Chunk) -> None:
        """Under the lock. Short, and in an order that Ctrl-C may cut anywhere: a chunk that is taken stays listed until
        it is handed over, and one that is handed over twice is dropped the second time."""
        chunk.limit = _TAKEN  # first this, then the length: see the module's text
        if chunk.taken < 0:
            chunk.taken = len(chunk)
        self._handed.append(chunk)
        self._chunks.pop(id(chunk), None)
        if chunk.home.get(chunk.topic) is chunk:
            del chunk.home[chunk.topic]  # or its thread would keep the values until it sends again
        # The most that it can have, until it was looked at: threads may fill many before the sender gets its turn.
        chunk.held_bytes = chunk.size + chunk.taken * SMALL_BYTES
        self._budget.add(chunk.held_bytes)

    def _as_handover(self, chunk: Chunk) -> Handover | None:
        shipment = chunk.shipment
        if shipment.count:
            return None  # it was handed over twice
        columns, partitions = chunk.columns()
        shipment.count = columns.count
        each = columns.data_bytes // max(1, columns.count) + _RECORD_BYTES
        grown = 2 * chunk.records if chunk.taken >= chunk.records else chunk.records
        self._records[chunk.topic] = max(1, min(grown, _MOST_CHUNK_RECORDS, _LIKELY_CHUNK_BYTES // each))
        held = columns.data_bytes + columns.count * _RECORD_BYTES
        self._budget.add(held - chunk.held_bytes)
        return Handover(chunk.topic, shipment, columns, partitions, chunk.opened, time.time(), held)


def _beside(chunk: Chunk, index: int, key: bytes | None, extras: Extras | None) -> None:
    """Puts a record's key and extras into the chunk, or nothing, for the record that comes at `index`."""
    if key is not None and chunk.keys is None:
        chunk.keys = [None] * index
    if chunk.keys is not None:
        del chunk.keys[index:]
        chunk.keys += [None] * (index - len(chunk.keys))
        if key is not None:
            chunk.keys.append(key)
    if extras is not None:
        chunk.extras = {} if chunk.extras is None else chunk.extras
        chunk.extras[index] = extras
    elif chunk.extras is not None:
        chunk.extras.pop(index, None)


def _header_bytes(extras: Extras | None) -> int:
    if extras is None or not extras.headers:
        return 0
    return sum(len(key) + len(value or b"") + 10 for key, value in extras.headers)
