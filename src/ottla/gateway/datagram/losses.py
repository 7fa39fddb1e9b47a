"""What the threads of a listener count together: the discards by period, the counters, and what is under way.

Threads of receivers and of the producer call it; nothing in it blocks. It has the clock and the lock that the pure
parts lack.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from ottla.errors import BrokerError, ErrorCode, NotDelivered, OttlaError
from ottla.gateway.counts import Counts
from ottla.gateway.datagram.discards import Discards

_BAD_TOPIC = (ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_topic_exception)


class Losses:
    """Counts what is lost, and what is on its way."""

    def __init__(self, discards: Discards, counts: Counts, *, clock: Callable[[], float] = time.time) -> None:
        self.counts = counts
        self._discards = discards
        self._clock = clock
        self._lock = threading.Lock()
        self._under_way: dict[str, int] = {}

    @contextmanager
    def discards(self) -> Iterator[tuple[Discards, float]]:
        """Lend the discards, with the time, to one thread."""
        with self._lock:
            yield self._discards, self._clock()

    def lost(self, topic: str, records: int, first_time: float, last_time: float, why: OttlaError) -> None:
        """Count records that were taken and then lost, as `intake.Loss`."""
        times_ms = round(first_time * 1000), round(last_time * 1000)
        with self.discards() as (discards, now):
            if is_bad_topic(why):
                discards.bad_topic(now, topic.encode(), count=records)
                reason = "bad_topic"
            else:
                discards.discarded(now, topic, times_ms=times_ms, count=records)
                reason = "not_delivered"
                if getattr(why, "maybe_written", False):
                    discards.possible_duplicate(now, topic, times_ms=times_ms, count=records)
        self.counts.add("discarded", records, reason=reason, topic=topic)

    def bad_topic(self, topic: bytes, count: int) -> None:
        """Count messages for a topic that cannot be."""
        with self.discards() as (discards, now):
            discards.bad_topic(now, topic, count=count)
        self.counts.add("discarded", count, reason="bad_topic")

    def malformed(self, samples: Iterable[bytes], count: int) -> None:
        """Count what is no message."""
        with self.discards() as (discards, now):
            discards.malformed(now, samples, count=count)
        self.counts.add("discarded", count, reason="malformed")

    def under_way(self) -> dict[str, int]:
        """Return how many records of each topic were handed over and have no outcome."""
        with self._lock:
            return {topic: count for topic, count in sorted(self._under_way.items()) if count}

    def began(self, topic: str, records: int) -> None:
        """Count records that were handed over."""
        with self._lock:
            self._under_way[topic] = self._under_way.get(topic, 0) + records

    def ended(self, topic: str, records: int) -> None:
        """Count records that have their outcome."""
        with self._lock:
            left = self._under_way.pop(topic, 0) - records
            if left > 0:
                self._under_way[topic] = left


def is_bad_topic(why: BaseException | None) -> bool:
    """Whether the topic does not exist, or may not."""
    while why is not None:
        if isinstance(why, BrokerError) and why.code in _BAD_TOPIC:
            return True
        why = why.cause if isinstance(why, NotDelivered) else why.__cause__
    return False
