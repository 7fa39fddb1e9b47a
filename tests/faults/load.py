"""Threads that keep producing through everything, and note the outcome of each record.

A producer and a topic come in; histories go out, complete once `settle` has returned. It sends keyed and unkeyed
records, one by one and as lists, and knows nothing of the faults.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple

from ottla.errors import BufferFull, NotDelivered, OttlaError
from ottla.model import OffsetRange
from ottla.produce.delivery import BulkDelivery, Delivery
from ottla.produce.producer import Producer

from .history import UNKEYED, History, State, Verdict, check, read_log

_BURST = 5
_LOOK_SECONDS = 0.05


class Load:
    """A context manager: the threads run inside it."""

    def __init__(
        self,
        producer: Producer,
        topic: str,
        *,
        writers: int = 3,
        keys: int = 6,
        pause: float = 0.05,
        padding: int = 100,
    ) -> None:
        self.producer = producer
        self.topic = topic
        self._stop = threading.Event()
        self._writers = [_Writer(self, number, Pace(keys, pause, padding)) for number in range(writers)]

    def __enter__(self) -> Load:
        for writer in self._writers:
            writer.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._join()

    @property
    def stopping(self) -> bool:
        """Whether the threads should end."""
        return self._stop.is_set()

    @property
    def histories(self) -> Sequence[History]:
        """The history of each thread."""
        return [writer.history for writer in self._writers]

    @property
    def sent(self) -> int:
        """The number of records sent so far."""
        return sum(len(history) for history in self.histories)

    def told(self, state: State) -> int:
        """How many records have this outcome so far."""
        return sum(history.told[state] for history in self.histories)

    def mark(self) -> list[int]:
        """The current position in each history."""
        return [len(history) for history in self.histories]

    def acked_since(self, mark: Sequence[int]) -> int:
        """How many records that were sent after the mark are acknowledged."""
        return sum(history.acked_since(counter) for history, counter in zip(self.histories, mark, strict=True))

    def wait_for(self, records: int, *, since: Sequence[int] | None = None, seconds: float = 30.0) -> int:
        """Wait until this many records sent from now on, or since the mark, are acknowledged."""
        mark = self.mark() if since is None else since
        deadline = time.monotonic() + seconds
        while (acked := self.acked_since(mark)) < records:
            for writer in self._writers:
                if writer.error is not None:
                    raise writer.error
            assert time.monotonic() < deadline, (
                f"only {acked} of the records sent since were acknowledged in {seconds} s: {self.producer!r}"
            )
            time.sleep(0.02)
        return acked

    def wait_for_outcomes(self, mark: Sequence[int], *, seconds: float) -> float:
        """Wait until every record sent before the mark has its outcome. Returns how long that took."""
        started = time.monotonic()
        while not all(history.all_told_before(counter) for history, counter in zip(self.histories, mark, strict=True)):
            assert time.monotonic() - started < seconds, f"records had no outcome after {seconds} s: {self.producer!r}"
            time.sleep(0.02)
        return time.monotonic() - started

    def settle(self, seconds: float = 60.0) -> None:
        """Stop sending and wait until every record has its outcome."""
        self._join()
        try:
            self.producer.flush(seconds)
        except NotDelivered:
            pass  # the histories get the outcome from each delivery
        for writer in self._writers:
            if writer.error is not None:
                raise writer.error
            writer.note_outcomes()

    def check(self, bootstrap: str, *, partitions: int) -> Verdict:
        """Compare what another client finds with the outcomes."""
        return check(self.histories, read_log(bootstrap, self.topic, partitions=partitions))

    def _join(self) -> None:
        self._stop.set()
        for writer in self._writers:
            writer.thread.join(120)
            assert not writer.thread.is_alive(), f"{writer.thread.name} hangs in a send"


class Pace(NamedTuple):
    """How a writer writes: `pause` seconds between bursts, values of up to `padding` bytes."""

    keys: int
    pause: float
    padding: int


class _Writer:
    """One thread."""

    def __init__(self, load: Load, number: int, pace: Pace) -> None:
        self.history = History(number)
        self.thread = threading.Thread(target=self._run, name=f"writer-{number}")
        self.error: BaseException | None = None
        self._load = load
        self._pace = pace
        self._chance = random.Random(number)
        self._waiting: dict[int, Delivery | BulkDelivery] = {}

    def note_outcomes(self) -> None:
        """Note the outcomes that have arrived."""
        for counter in [counter for counter, delivery in self._waiting.items() if delivery.done]:
            self._note(counter, self._waiting.pop(counter))

    def _run(self) -> None:
        looked_at = 0.0
        try:
            while not self._load.stopping:
                for _ in range(_BURST):
                    self._send()
                time.sleep(self._pace.pause)
                if time.monotonic() > looked_at + _LOOK_SECONDS + len(self._waiting) * 1e-5:
                    self.note_outcomes()
                    looked_at = time.monotonic()
        except BaseException as error:
            self.error = error

    def _send(self) -> None:
        chance = self._chance
        tag = self.history.sending(chance.choice((UNKEYED, chance.randrange(self._pace.keys))))
        key, value = tag.key_bytes(), tag.value_bytes(chance.randrange(self._pace.padding))
        producer, topic = self._load.producer, self._load.topic
        try:
            if tag.counter % 10 == 9:
                self._waiting[tag.counter] = producer.send_many(topic, [value if key is None else (key, value)])
            else:
                self._waiting[tag.counter] = producer.send(topic, value, key)
        except BufferFull:
            self.history.failed(tag.counter, maybe_written=False)

    def _note(self, counter: int, delivery: Delivery | BulkDelivery) -> None:
        try:
            result = delivery.result(0)
        except NotDelivered as error:
            self.history.failed(counter, maybe_written=error.maybe_written)
        except OttlaError:
            self.history.failed(counter, maybe_written=False)
        else:
            offsets: OffsetRange | None = None if isinstance(delivery, Delivery) else result.ranges[0]  # type: ignore[union-attr]
            if offsets is None:
                self.history.acknowledged(counter, partition=result.partition, offset=result.offset)  # type: ignore[union-attr]
            else:
                assert len(offsets) == 1
                self.history.acknowledged(counter, partition=offsets.partition, offset=offsets.start)
