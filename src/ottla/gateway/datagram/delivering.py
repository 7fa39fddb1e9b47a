"""Hands the messages of one topic to the producer, those with a partition key when the partitions are known.

Batches come in from receivers' threads and go out through `Intake.forget`, in the order in which they came. What waits
for the partitions of its topic is limited in bytes and time; what exceeds that is counted as discarded. Looking
partitions up takes time, so a thread does it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.errors import OttlaError
from ottla.gateway.assembling import whole_numbers
from ottla.gateway.datagram.losses import Losses, is_bad_topic
from ottla.gateway.datagram.partition_keys import chosen_partitions
from ottla.gateway.intake import Loss
from ottla.produce.delivery import BulkDelivery
from ottla.produce.route import Partitions

_LOOKUP_SECONDS = 5.0
_RETRY_SECONDS = 0.5


class Hand(Protocol):
    """How a batch gets to the producer: `Handing`."""

    def __call__(
        self, topic: str, records: pa.RecordBatch, times: tuple[float, float], /, *, lost: Loss
    ) -> list[tuple[BulkDelivery, int]]:
        """Hand over a batch. Returns the deliveries of what was taken."""


@dataclass(frozen=True, slots=True)
class Keyed:
    """Messages that name a partition key each."""

    topic: str
    records: pa.RecordBatch
    keys: npt.NDArray[np.int64]
    times: tuple[float, float]
    held_since: float


class Delivering:
    """Between the receivers and the producer."""

    def __init__(
        self,
        hand: Hand,
        losses: Losses,
        *,
        known: Callable[[str], Partitions | None],
        look_up: Callable[[str, float], Partitions],
        held_bytes: int,
        held_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hand = hand
        self._losses = losses
        self._known = known
        self._look_up = look_up
        self._most_bytes = held_bytes
        self._most_seconds = held_seconds
        self._clock = clock
        self._held: dict[str, deque[Keyed]] = {}
        self._bytes = 0
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="ottla-gateway-partitions", daemon=True)

    def start(self) -> None:
        """Start the thread that looks partitions up."""
        self._thread.start()

    @property
    def held(self) -> int:
        """How many messages wait for the partitions of their topic."""
        with self._changed:
            return sum(batch.records.num_rows for held in self._held.values() for batch in held)

    def deliver(self, topic: str, records: pa.RecordBatch, times: tuple[float, float]) -> None:
        """Hand over messages that may go anywhere."""
        count = records.num_rows
        self._losses.began(topic, count)
        taken = 0
        for delivery, part in self._hand(topic, records, times, lost=self._losses.lost):
            taken += part
            delivery.add_done_callback(self._ended(topic, part))
        self._losses.ended(topic, count - taken)

    def _ended(self, topic: str, records: int) -> Callable[[BulkDelivery], None]:
        return lambda _: self._losses.ended(topic, records)

    def deliver_keyed(
        self, topic: str, records: pa.RecordBatch, times: tuple[float, float], *, keys: npt.NDArray[np.int64]
    ) -> None:
        """Hand over messages with partition keys, or hold them until the partitions are known."""
        batch = Keyed(topic, records, keys, times, self._clock())
        partitions = self._known(topic)
        with self._changed:
            must_wait = partitions is None or topic in self._held
            is_held = must_wait and not self._is_closing and self._bytes + records.nbytes <= self._most_bytes
            if is_held:
                self._held.setdefault(topic, deque()).append(batch)
                self._bytes += records.nbytes
                self._changed.notify_all()
        if partitions is not None and not must_wait:
            self._place(batch, partitions)
        elif not is_held:
            reason = "too many messages wait for its partitions to be known (held_bytes)"
            self._lose(batch, OttlaError(f"topic {topic}: {reason}"))

    def drain(self, timeout: float) -> bool:
        """Wait until nothing is held. Returns whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._held, timeout)

    def close(self) -> None:
        """End the thread. What is held is discarded and counted."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()
        for topic in list(self._held):
            self._refuse(topic, OttlaError(f"topic {topic}: its partitions were not known when the gateway ended"))

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._held or self._is_closing)
                if self._is_closing:
                    return
                topics = list(self._held)
            for topic in topics:
                if not self._is_closing:
                    self._resolve(topic)
            with self._changed:
                if self._held:
                    self._changed.wait_for(lambda: self._is_closing, _RETRY_SECONDS)

    def _resolve(self, topic: str) -> None:
        """Look the partitions of a topic up, and hand over what waits for them."""
        try:
            partitions = self._look_up(topic, _LOOKUP_SECONDS)
        except OttlaError as error:
            with self._changed:
                waited = self._clock() - self._held[topic][0].held_since
            if is_bad_topic(error) or waited >= self._most_seconds:
                self._refuse(topic, error)
            return
        while (batch := self._next(topic)) is not None:
            self._place(batch, partitions)

    def _next(self, topic: str) -> Keyed | None:
        """Take the next batch that is held. The topic counts as held until the one after the last is asked for."""
        with self._changed:
            if not self._held[topic]:
                del self._held[topic]
                self._changed.notify_all()
                return None
            batch = self._held[topic].popleft()
            self._bytes -= batch.records.nbytes
            return batch

    def _refuse(self, topic: str, error: OttlaError) -> None:
        while (batch := self._next(topic)) is not None:
            self._lose(batch, error)

    def _place(self, batch: Keyed, partitions: Partitions) -> None:
        chosen = whole_numbers(chosen_partitions(batch.keys, partitions))
        self.deliver(batch.topic, batch.records.append_column("partition", chosen), batch.times)

    def _lose(self, batch: Keyed, error: OttlaError) -> None:
        self._losses.lost(batch.topic, batch.records.num_rows, *batch.times, error)
