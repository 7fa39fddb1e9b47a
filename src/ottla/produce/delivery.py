"""What a send returns: a small value that leads to the outcome of its records.

Only this value is created per record. Records that were handed over together share one `Shipment`, which knows the
batches they are in; their outcome is that of the batch. Waiting, callbacks and `await` are attached to the shipment and
cost nothing if they are not used.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from ottla.config import check_callable
from ottla.errors import NotDelivered, OttlaError, UsedAfterFork, copied
from ottla.model import OffsetRange, TopicPartition
from ottla.produce import waiting
from ottla.produce.failed_rows import counted_error

_forks = 0
"""How many forks lie between this process and the first of its ancestors."""


def as_not_delivered(error: OttlaError) -> NotDelivered:
    """The error to raise for a batch's error: always a new `NotDelivered`, with the reason as its cause.

    The records of a batch share its error. If that object were raised, its traceback would grow with every record, and
    would refer through its frames to deliveries and back: a cycle that is never freed, since deliveries are invisible
    to the garbage collector.
    """
    return copied(error) if isinstance(error, NotDelivered) else NotDelivered(str(error), cause=error)


class Sent(NamedTuple):
    """Where a record is. `offset` is -1 with acks=0: brokers do not answer then."""

    topic: str
    partition: int
    offset: int
    timestamp: float
    """Seconds since 1970: the record's own, or the broker's append time if the topic is configured so."""


@dataclass(frozen=True, slots=True)
class SentMany:
    """Where the records of a list or table are."""

    records: int
    ranges: tuple[OffsetRange, ...]
    """Sorted by partition and offset; empty with acks=0. They never include records of other producers."""


class Outcome(NamedTuple):
    """The outcome of a batch's records from `first` up to the next outcome of that batch."""

    first: int
    base_offset: int
    append_time: int
    error: OttlaError | None = None
    made: int = -1
    """How many records a batch hook made of these; -1 if they are unchanged in number."""

    def offset_of(self, index: int) -> int:
        """The offset of the record with this index in the batch, -1 if it is not known."""
        if self.base_offset < 0 or self.made >= 0:
            return self.base_offset
        return self.base_offset + index - self.first


class Carrier(Protocol):
    """A batch, as a shipment sees it."""

    topic: str
    partition: int
    outcomes: tuple[Outcome, ...]
    """Empty until the batch is decided."""


class Refusal:
    """Stands in for a batch for records that never got into one."""

    def __init__(self, topic: str, partition: int, error: OttlaError) -> None:
        self.topic = topic
        self.partition = partition
        self.outcomes: tuple[Outcome, ...] = (Outcome(0, -1, -1, error),)


class Placement(msgspec.Struct, gc=False, frozen=True):
    """Rows of a shipment in one batch: `rows[0]` is record number `first` of the batch, and so on.

    `rows` is a range, or an array of ascending row numbers. Placements are invisible to the garbage collector: with
    many partitions there are nearly as many as records, and traversing them took a quarter of the time. None is in a
    cycle once its batch has its outcome.
    """

    carrier: Carrier
    rows: range | npt.NDArray[np.int64]
    first: int

    def index_of(self, row: int) -> int:
        """The index of the row's record in the batch, -1 if it is not there."""
        if isinstance(self.rows, range):
            return self.first + row - self.rows.start if row in self.rows else -1
        index = int(np.searchsorted(self.rows, row))
        return self.first + index if index < len(self.rows) and self.rows[index] == row else -1

    def pieces(self) -> Iterator[tuple[range, Outcome]]:
        """The outcomes, each with the indexes in the batch of those of our records that have it."""
        outcomes = tuple(self.carrier.outcomes)  # the sender may add one meanwhile
        for outcome, following in zip(outcomes, (*outcomes[1:], None), strict=False):
            end = self.first + len(self.rows)
            stop = end if following is None else min(end, following.first)
            numbers = range(max(self.first, outcome.first), stop)
            if numbers:
                yield numbers, outcome


class Shipment:
    """Rows of one topic that were handed over together, and the batches they are in.

    The sender places and settles them. Any thread may ask for outcomes and watch.
    """

    __slots__ = ("_forks", "_watchers", "count", "now_ms", "numbers", "placements", "times", "topic", "unsettled")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.count = 0
        self.unsettled = -1
        """Rows without an outcome; -1 before the sender has seen them."""
        self.placements: list[Placement] = []
        self.numbers: npt.NDArray[np.int64] | range | None = None
        """The numbers of the rows in their call; None if they continue those of the shipment before."""
        self.times: npt.NDArray[np.int64] | None = None
        self.now_ms = 0
        self._watchers: list[Callable[[], bool]] = []
        self._forks = _forks

    def check_process(self) -> None:
        """Raises `UsedAfterFork` in a forked child of the process that made the shipment: no outcome arrives there."""
        if self._forks != _forks:
            raise UsedAfterFork(
                f"this delivery to {self.topic} belongs to a producer made before fork(): only its own process"
                " learns what becomes of the record"
            )

    @property
    def is_placed(self) -> bool:
        """Whether every row is in a batch, or was refused."""
        return self.unsettled == 0 or sum(len(placement.rows) for placement in self.placements) >= self.count

    def settle(self, rows: int) -> None:
        """Record that this many more rows have their outcome."""
        self.unsettled -= rows
        if self._watchers:
            self._notify()

    def watch(self, check: Callable[[], bool]) -> None:
        """Call `check` after every outcome until it returns true, which it must do only once."""
        self._watchers.append(check)
        # The outcome may have come before the watcher was added. Both sides check, in opposite order.
        if check():
            self.unwatch(check)

    def unwatch(self, check: Callable[[], bool]) -> None:
        """Remove a watcher. One that is gone already is no error."""
        try:
            self._watchers.remove(check)
        except ValueError:
            pass  # it has fired

    def outcome_of(self, row: int) -> tuple[Carrier, int, Outcome] | None:
        """Batch, index in the batch and outcome of a row; None while it is undecided."""
        for placement in self.placements:
            index = placement.index_of(row)
            if index >= 0:
                outcomes = placement.carrier.outcomes
                outcome = next((o for o in reversed(outcomes) if o.first <= index), None)
                return None if outcome is None else (placement.carrier, index, outcome)
        return None

    def time_of(self, row: int) -> float:
        """The timestamp that was sent with a row, in seconds since 1970."""
        return (self.now_ms if self.times is None else int(self.times[row])) / 1000

    def _notify(self) -> None:
        """Call the watchers after an outcome."""
        # Watchers stay listed until they return true: an outcome that comes meanwhile must find them.
        for check in tuple(self._watchers):
            if check():
                self.unwatch(check)


class Delivery(msgspec.Struct, gc=False, eq=False):
    """The delivery of one record. Check it, wait for it, await it, or add a callback."""

    _shipment: Shipment
    _row: int

    @property
    def done(self) -> bool:
        """Whether there is an outcome."""
        return self._shipment.outcome_of(self._row) is not None

    def result(self, timeout: float | None = None) -> Sent:
        """Wait for the acknowledgement and return where the record is.

        Raises `NotDelivered` if the record was not delivered, and `TimeoutError` if there is no outcome after `timeout`
        seconds; delivery continues. Without a timeout, the producer's `delivery_timeout` ends the wait, except for a
        batch in the spool, which has no deadline.
        """
        waiting.wait(self, timeout)
        carrier, index, outcome = self._decided()
        if outcome.error is not None:
            raise as_not_delivered(outcome.error)
        offset = outcome.offset_of(index)
        appended = outcome.append_time
        time = appended / 1000 if appended >= 0 else self._shipment.time_of(self._row)
        return Sent(carrier.topic, carrier.partition, offset, time)

    def exception(self, timeout: float | None = None) -> NotDelivered | None:
        """Why the record was not delivered, or None if it was. Waits and raises `TimeoutError` like `result`."""
        waiting.wait(self, timeout)
        error = self._decided()[2].error
        return None if error is None else as_not_delivered(error)

    def add_done_callback(self, function: Callable[[Delivery], None]) -> None:
        """Call `function` with this delivery when it is done. It runs on the sender's thread and must not block."""
        check_callable("a callback", function, arguments=1)
        waiting.add_callback(self, function)

    def __await__(self) -> Generator[Any, None, Sent]:
        yield from waiting.awaited(self)
        return self.result(0)

    def __repr__(self) -> str:
        return f"<Delivery to {self._shipment.topic}, {_state(self)}>"

    def _decided(self) -> tuple[Carrier, int, Outcome]:
        """Batch, index in the batch and outcome. Only to be called once there is an outcome."""
        decided = self._shipment.outcome_of(self._row)
        assert decided is not None
        return decided

    def _shipments(self) -> Iterator[Shipment]:
        yield self._shipment


class Decided(NamedTuple):
    """Rows of a list or table with the same outcome: at `offset` and the following ones, or with an `error`.

    `offset` is -1 if it is not known.
    """

    at: TopicPartition
    rows: npt.NDArray[np.int64]
    """Ascending row numbers, counted from the beginning of the call."""
    offset: int
    error: OttlaError | None


class BulkDelivery:
    """The delivery of all records of one call."""

    __slots__ = ("_sent", "_settled")

    def __init__(self, shipments: list[Shipment]) -> None:
        self._sent = shipments
        self._settled = 0
        """How many of the shipments, from the first on, are known to have their outcome."""

    @property
    def done(self) -> bool:
        """Whether every record has an outcome."""
        settled = self._settled  # in a local variable: other threads use the attribute too
        while settled < len(self._sent) and self._sent[settled].unsettled == 0:
            settled += 1
        self._settled = settled
        return settled == len(self._sent)

    def result(self, timeout: float | None = None) -> SentMany:
        """Wait for every acknowledgement and return the offset ranges.

        Raises `NotDelivered` with the first reason if any record failed, and `TimeoutError` after `timeout` seconds.
        """
        waiting.wait(self, timeout)
        records, ranges = self._delivered()
        return SentMany(records, tuple(joined(sorted(ranges))))

    def _delivered(self) -> tuple[int, list[OffsetRange]]:
        """The records and where they are. Raises `NotDelivered` if one failed. Only for what has its outcome."""
        ranges: list[OffsetRange] = []
        records = 0
        for placement in self._placements():
            for numbers, outcome in placement.pieces():
                if outcome.error is not None:
                    raise self._failure() or as_not_delivered(outcome.error)
                records += len(numbers)
                if outcome.base_offset >= 0:
                    start = outcome.offset_of(numbers.start)
                    stop = start + (len(numbers) if outcome.made < 0 else outcome.made)
                    carrier = placement.carrier
                    ranges.append(OffsetRange(carrier.topic, carrier.partition, start, stop))
        return records, ranges

    def exception(self, timeout: float | None = None) -> NotDelivered | None:
        """The first reason why a record was not delivered, or None. Waits and raises `TimeoutError` like `result`."""
        waiting.wait(self, timeout)
        return self._failure()

    def _failure(self) -> NotDelivered | None:
        """The first error so far, with the number of all rows that failed."""
        failed = self._failed_rows()
        return counted_error(failed) if failed else None

    def _failed_rows(self) -> list[tuple[NotDelivered, int]]:
        """Each error so far, and how many rows it concerns. Every flush asks: no row is looked at.

        They are those of the batches, which have many calls and are many: to be copied before one is raised.
        """
        errors: dict[int, OttlaError] = {}
        rows: dict[int, int] = {}
        for placement in self._placements():
            for numbers, outcome in placement.pieces():
                if outcome.error is not None:
                    which = id(outcome.error)
                    errors[which] = outcome.error
                    rows[which] = rows.get(which, 0) + len(numbers)
        return [
            (error if isinstance(error, NotDelivered) else as_not_delivered(error), rows[which])
            for which, error in errors.items()
        ]

    def outcomes(self, timeout: float | None = None) -> Iterator[Decided]:
        """Yield the outcome of all rows, delivered and failed. Waits and raises `TimeoutError` like `result`."""
        waiting.wait(self, timeout)
        yield from self.decided()

    def decided(self) -> Iterator[Decided]:
        """Yield the outcomes that are known by now, without waiting."""
        before = 0
        for shipment in self._sent:
            for placement in tuple(shipment.placements):
                carrier, rows, first = placement.carrier, placement.rows, placement.first
                tp = TopicPartition(carrier.topic, carrier.partition)
                for numbers, outcome in placement.pieces():
                    chosen = np.asarray(rows[numbers.start - first : numbers.stop - first], np.int64)
                    numbers_in_call = shipment.numbers
                    if numbers_in_call is None:
                        chosen = chosen + before
                    elif isinstance(numbers_in_call, range):
                        chosen = chosen + numbers_in_call.start
                    else:
                        chosen = numbers_in_call[chosen]
                    error = None if outcome.error is None else as_not_delivered(outcome.error)
                    yield Decided(tp, chosen, outcome.offset_of(numbers.start), error)
            before += shipment.count

    def add_done_callback(self, function: Callable[[BulkDelivery], None]) -> None:
        """Call `function` with this delivery when it is done. It runs on the sender's thread and must not block."""
        check_callable("a callback", function, arguments=1)
        waiting.add_callback(self, function)

    def __await__(self) -> Generator[Any, None, SentMany]:
        yield from waiting.awaited(self)
        return self.result(0)

    def __repr__(self) -> str:
        return f"<BulkDelivery, {_state(self)}>"

    def _placements(self) -> Iterator[Placement]:
        return (placement for shipment in self._sent for placement in shipment.placements)

    def _shipments(self) -> Iterator[Shipment]:
        return iter(self._sent)


def joined(ranges: list[OffsetRange]) -> Iterator[OffsetRange]:
    """Join ranges that touch."""
    previous: OffsetRange | None = None
    for current in ranges:
        if (
            previous is not None
            and previous.topic_partition == current.topic_partition
            and previous.stop == current.start
        ):
            previous = OffsetRange(previous.topic, previous.partition, previous.start, current.stop)
            continue
        if previous is not None:
            yield previous
        previous = current
    if previous is not None:
        yield previous


def after_fork() -> None:
    """Invalidate inherited deliveries. Called in a forked child."""
    global _forks
    _forks += 1


def _state(delivery: Any) -> str:
    """The state of a delivery, for `repr`."""
    if not delivery.done:
        return "waiting"
    error = delivery.exception(0)
    return "acknowledged" if error is None else f"failed: {error}"
