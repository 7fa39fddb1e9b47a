"""Hands batches of listeners that answer nothing to the producer. While it has no room, the senders wait for a while.

A batch comes in on a receiver's thread. It waits for room, and its socket with it, so that senders are slowed down
instead of robbed. After `full_seconds` without room everything is refused at once and counted as lost, until there is
room again: a program that writes to forget must not stand still for as long as the brokers are away.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

import pyarrow as pa

from ottla.errors import BufferFull, InputError, OttlaError, SpoolError
from ottla.gateway.intake import Intake, Loss
from ottla.produce.delivery import BulkDelivery

FULL_SECONDS = 5.0
_PAUSE_SECONDS = 0.01
_PORTION_BYTES = 4 << 20
"""The producer takes so little whole or not at all, so that every row has a delivery or is refused."""


class Handing:
    """The way from the receivers of one listener to the producer."""

    def __init__(self, intake: Intake, *, full_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._intake = intake
        self._full_seconds = full_seconds
        self._clock = clock
        self._full_since: float | None = None
        self._closing = threading.Event()

    def __call__(
        self, topic: str, records: pa.RecordBatch, times: tuple[float, float], *, lost: Loss
    ) -> list[tuple[BulkDelivery, int]]:
        """Hand over a batch. What cannot be taken, or fails later, goes to `lost`.

        Returns the deliveries of what was taken, each with its number of records.
        """
        deliveries = []
        waiting = deque(_portions(records))
        while waiting:
            portion = waiting.popleft()
            try:
                delivery = self._hand_over(topic, portion, times, lost)
            except InputError as error:  # of one record, such as one that is too large: the others are sound
                if portion.num_rows == 1:
                    lost(topic, 1, *times, error)
                    continue
                half = portion.num_rows // 2
                waiting.extendleft((portion.slice(half), portion.slice(0, half)))
                continue
            if delivery is not None:
                deliveries.append((delivery, portion.num_rows))
        return deliveries

    def close(self) -> None:
        """Wait for room no longer."""
        self._closing.set()

    def _hand_over(
        self, topic: str, records: pa.RecordBatch, times: tuple[float, float], lost: Loss
    ) -> BulkDelivery | None:
        """Hand over a portion, or lose it. Raises `InputError` for one with a record that is not accepted."""
        while True:
            try:
                delivery = self._intake.send_table(topic, records)
            except (BufferFull, SpoolError) as error:
                now = self._clock()
                if self._full_since is None:
                    self._full_since = now
                if now - self._full_since < self._full_seconds and not self._closing.wait(_PAUSE_SECONDS):
                    continue
                lost(topic, records.num_rows, *times, error)
                return None
            except InputError:
                raise
            except OttlaError as error:
                lost(topic, records.num_rows, *times, error)
                return None
            self._full_since = None
            self._intake.watch(topic, delivery, times, lost=lost)
            return delivery


def _portions(records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch into portions of about this size."""
    count = -(-records.nbytes // _PORTION_BYTES)
    if count <= 1:
        yield records
        return
    step = -(-records.num_rows // count)
    for start in range(0, records.num_rows, step):
        yield records.slice(start, step)
