"""What a send gives back: a small value that leads to the outcome of its records, once there is one.

Nothing is made for a record but this value. Records that were handed over together share one `Shipment`, which knows
in which batches they are; the outcome is that of the batch. Waiting, callbacks and `await` hang on the shipment and
cost nothing to those who do not use them.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from ottla.config import check_callable
from ottla.errors import NotDelivered, OttlaError, UsedAfterFork, copied
from ottla.model import OffsetRange, TopicPartition
from ottla.net.waiting import Flag

SENDER_THREAD = "ottla-sender"
_log = logging.getLogger(__name__)
_forks = 0
"""How often this process is the child of a fork, since the first of its parents."""


def fresh(error: OttlaError) -> NotDelivered:
    """What is told of an error: always a NotDelivered, with the reason as its cause, and always a new one.

    The error is that of a batch and shared by its records. A traceback on it would grow with each of them, and would
    lead from its frames to deliveries and back: a cycle that is never freed, since the garbage collector does not look
    into deliveries.
    """
    return copied(error) if isinstance(error, NotDelivered) else NotDelivered(str(error), cause=error)


class Sent(NamedTuple):
    """Where a record is. `offset` is -1 with acks=0, when nobody tells."""

    topic: str
    partition: int
    offset: int
    timestamp: float
    """Seconds since 1970: the record's own, or that of the broker's clock if the topic says so."""


@dataclass(frozen=True, slots=True)
class SentMany:
    """Where the records of a list or table are."""

    records: int
    ranges: tuple[OffsetRange, ...]
    """Sorted by partition and offset; empty with acks=0. Records of other producers are never inside."""


class Outcome(NamedTuple):
    """How it ended for the records of a batch from `first` on, up to the next outcome of that batch."""

    first: int
    base_offset: int
    append_time: int
    error: OttlaError | None = None
    made: int = -1
    """How many records a batch hook made of these; -1 when they are what was sent."""

    def offset_of(self, index: int) -> int:
        """The offset of the record with this number in the batch, -1 when nobody knows."""
        if self.base_offset < 0 or self.made >= 0:
            return self.base_offset
        return self.base_offset + index - self.first


class Carrier(Protocol):
    """A batch, as far as a shipment is concerned."""

    topic: str
    partition: int
    outcomes: tuple[Outcome, ...]
    """Empty until it is decided."""


class Refusal:
    """Stands in for a batch where records never got into one."""

    def __init__(self, topic: str, partition: int, error: OttlaError) -> None:
        self.topic = topic
        self.partition = partition
        self.outcomes: tuple[Outcome, ...] = (Outcome(0, -1, -1, error),)


class Placement(msgspec.Struct, gc=False, frozen=True):
    """Some rows of a shipment in one batch: `rows[0]` is its record number `first`, and so on.

    `rows` is a range, or an array of ascending row numbers. The garbage collector does not look at placements: with
    many partitions there are nearly as many as records, and looking at them took a quarter of the time. None is in a
    cycle once its batch has its outcome.
    """

    carrier: Carrier
    rows: range | npt.NDArray[np.int64]
    first: int

    def index_of(self, row: int) -> int:
        """The number of the record in the batch, -1 if it is not in it."""
        if isinstance(self.rows, range):
            return self.first + row - self.rows.start if row in self.rows else -1
        at = int(np.searchsorted(self.rows, row))
        return self.first + at if at < len(self.rows) and self.rows[at] == row else -1

    def pieces(self) -> Iterator[tuple[range, Outcome]]:
        """The outcomes, each with the numbers in the batch of those of our records that have it."""
        outcomes = self.carrier.outcomes
        for outcome, following in zip(outcomes, [*outcomes[1:], None], strict=True):
            end = self.first + len(self.rows)
            stop = end if following is None else min(end, following.first)
            numbers = range(max(self.first, outcome.first), stop)
            if numbers:
                yield numbers, outcome


class Shipment:
    """Rows of one topic that were handed over together, and in which batches they are.

    The sender places and settles them; any thread may ask and watch.
    """

    __slots__ = ("_forks", "_watchers", "count", "now_ms", "numbers", "placements", "times", "topic", "unsettled")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.count = 0
        self.unsettled = -1
        """Rows without an outcome; -1 before the sender has seen them."""
        self.placements: list[Placement] = []
        self.numbers: npt.NDArray[np.int64] | range | None = None
        """Of the rows in what their call was given; None when they follow those of the shipment before."""
        self.times: npt.NDArray[np.int64] | None = None
        self.now_ms = 0
        self._watchers: list[Callable[[], bool]] = []
        self._forks = _forks

    def check_process(self) -> None:
        """Raises in a forked child of the process that made it: it will never hear of an outcome."""
        if self._forks != _forks:
            raise UsedAfterFork(
                f"this delivery to {self.topic} is that of a producer made before fork(): only its process gets to know"
                " what becomes of the record"
            )

    def settle(self, rows: int) -> None:
        """So many more rows have their outcome."""
        self.unsettled -= rows
        if self._watchers:
            self._tell()

    def watch(self, check: Callable[[], bool]) -> None:
        """Calls `check` after every outcome until it returns true, which it must do only once."""
        self._watchers.append(check)
        # The outcome may have come before the watcher was there; both look, in the opposite order.
        if check():
            self.unwatch(check)

    def unwatch(self, check: Callable[[], bool]) -> None:
        """Forgets it: nobody waits any more."""
        try:
            self._watchers.remove(check)
        except ValueError:
            pass  # it was told

    def outcome_of(self, row: int) -> tuple[Carrier, int, Outcome] | None:
        """Batch, number in the batch and outcome of a row; None while it is open."""
        for placement in self.placements:
            index = placement.index_of(row)
            if index >= 0:
                outcomes = placement.carrier.outcomes
                found = next((o for o in reversed(outcomes) if o.first <= index), None)
                return None if found is None else (placement.carrier, index, found)
        return None

    def time_of(self, row: int) -> float:
        """The timestamp that was sent with a row."""
        return (self.now_ms if self.times is None else int(self.times[row])) / 1000

    def _tell(self) -> None:
        # They stay in sight until they have said yes: an outcome that comes meanwhile must find them.
        for check in tuple(self._watchers):
            if check():
                self.unwatch(check)


class Delivery(msgspec.Struct, gc=False, eq=False):
    """The delivery of one record: ask for it, wait for it, await it, or be called when it is there."""

    _shipment: Shipment
    _row: int

    @property
    def done(self) -> bool:
        """Whether there is an outcome."""
        return self._shipment.outcome_of(self._row) is not None

    def result(self, timeout: float | None = None) -> Sent:
        """Where the record is, after waiting for the acknowledgement; raises why it was not delivered.

        TimeoutError when there is no outcome after `timeout` seconds; the delivery goes on. Without a timeout, the
        producer's `delivery_timeout` ends the wait, except for a batch in the spool: that has no deadline.
        """
        _wait(self, timeout)
        carrier, index, outcome = self._decided()
        if outcome.error is not None:
            raise fresh(outcome.error)
        offset = outcome.offset_of(index)
        appended = outcome.append_time
        time = appended / 1000 if appended >= 0 else self._shipment.time_of(self._row)
        return Sent(carrier.topic, carrier.partition, offset, time)

    def exception(self, timeout: float | None = None) -> NotDelivered | None:
        """Why the record was not delivered, or None when it was; waits like `result`."""
        _wait(self, timeout)
        error = self._decided()[2].error
        return None if error is None else fresh(error)

    def add_done_callback(self, function: Callable[[Delivery], None]) -> None:
        """Calls `function` with this delivery when it is done: on the sender's thread, so it must not block."""
        check_callable("a callback", function, arguments=1)
        _add_callback(self, function)

    def __await__(self) -> Generator[Any, None, Sent]:
        yield from _awaited(self)
        return self.result(0)

    def __repr__(self) -> str:
        return f"<Delivery to {self._shipment.topic}, {_state(self)}>"

    def _decided(self) -> tuple[Carrier, int, Outcome]:
        found = self._shipment.outcome_of(self._row)
        assert found is not None
        return found

    def _shipments(self) -> Iterator[Shipment]:
        yield self._shipment


class Decided(NamedTuple):
    """Rows of a list or table that ended in the same way: at `offset` and the following, or with an `error`.

    `offset` is -1 when nobody knows it.
    """

    at: TopicPartition
    rows: npt.NDArray[np.int64]
    """Ascending, counted from the beginning of the call."""
    offset: int
    error: OttlaError | None


class BulkDelivery:
    """The delivery of the records of one call, all together."""

    __slots__ = ("_sent", "_settled")

    def __init__(self, shipments: list[Shipment]) -> None:
        self._sent = shipments
        self._settled = 0
        """How many of them, from the first on, are known to have their outcome."""

    @property
    def done(self) -> bool:
        """Whether every record has an outcome."""
        at = self._settled  # in a variable: other threads look, too
        while at < len(self._sent) and self._sent[at].unsettled == 0:
            at += 1
        self._settled = at
        return at == len(self._sent)

    def result(self, timeout: float | None = None) -> SentMany:
        """The offset ranges, after waiting for every acknowledgement; raises the first reason if any record failed."""
        _wait(self, timeout)
        ranges: list[OffsetRange] = []
        records = 0
        for placement in self._placements():
            for numbers, outcome in placement.pieces():
                if outcome.error is not None:
                    raise fresh(outcome.error)
                records += len(numbers)
                if outcome.base_offset >= 0:
                    start = outcome.offset_of(numbers.start)
                    stop = start + (len(numbers) if outcome.made < 0 else outcome.made)
                    carrier = placement.carrier
                    ranges.append(OffsetRange(carrier.topic, carrier.partition, start, stop))
        return SentMany(records, tuple(_joined(sorted(ranges))))

    def exception(self, timeout: float | None = None) -> NotDelivered | None:
        """The first reason why a record was not delivered, or None; waits like `result`."""
        _wait(self, timeout)
        errors = (outcome.error for placement in self._placements() for _, outcome in placement.pieces())
        return next((fresh(error) for error in errors if error is not None), None)

    def outcomes(self, timeout: float | None = None) -> Iterator[Decided]:
        """What became of which rows, delivered and failed ones alike; waits like `result`."""
        _wait(self, timeout)
        before = 0
        for shipment in self._sent:
            for placement in shipment.placements:
                carrier, rows, first = placement.carrier, placement.rows, placement.first
                at = TopicPartition(carrier.topic, carrier.partition)
                for numbers, outcome in placement.pieces():
                    chosen = np.asarray(rows[numbers.start - first : numbers.stop - first], np.int64)
                    given = shipment.numbers
                    chosen = chosen + before if given is None else np.asarray(given)[chosen]
                    error = None if outcome.error is None else fresh(outcome.error)
                    yield Decided(at, chosen, outcome.offset_of(numbers.start), error)
            before += shipment.count

    def add_done_callback(self, function: Callable[[BulkDelivery], None]) -> None:
        """Calls `function` with this delivery when it is done: on the sender's thread, so it must not block."""
        check_callable("a callback", function, arguments=1)
        _add_callback(self, function)

    def __await__(self) -> Generator[Any, None, SentMany]:
        yield from _awaited(self)
        return self.result(0)

    def __repr__(self) -> str:
        return f"<BulkDelivery, {_state(self)}>"

    def _placements(self) -> Iterator[Placement]:
        return (placement for shipment in self._sent for placement in shipment.placements)

    def _shipments(self) -> Iterator[Shipment]:
        return iter(self._sent)


def _joined(ranges: list[OffsetRange]) -> Iterator[OffsetRange]:
    """Ranges that touch become one."""
    held: OffsetRange | None = None
    for one in ranges:
        if held is not None and held.topic_partition == one.topic_partition and held.stop == one.start:
            held = OffsetRange(held.topic, held.partition, held.start, one.stop)
            continue
        if held is not None:
            yield held
        held = one
    if held is not None:
        yield held


def is_sender_thread() -> bool:
    """Whether this is the thread that delivers, as in callbacks, hooks and event sinks."""
    return threading.current_thread().name.startswith(SENDER_THREAD)


def after_fork() -> None:
    """In the child: the deliveries that it has inherited are of no use."""
    global _forks
    _forks += 1


def check_may_wait(what: str) -> None:
    """Raises on the sender's thread, which would wait for itself."""
    if is_sender_thread():
        raise RuntimeError(f"a callback waits for {what}, but it runs on the thread that delivers: it must not wait")


def _wait(delivery: Delivery | BulkDelivery, timeout: float | None) -> None:
    if delivery.done:
        return
    _check_process(delivery)
    check_may_wait("a delivery")
    if timeout is None or timeout > 0:
        is_done = Flag()
        forget = _call_when_done(delivery, lambda _: is_done.set())
        try:
            while not is_done.wait(timeout) and timeout in (None, math.inf):
                pass
        finally:
            forget()
    if not delivery.done:
        raise TimeoutError(f"no outcome after {timeout or 0:.1f} s; the delivery goes on")


def _call_when_done(delivery: Any, function: Callable[[Any], None]) -> Callable[[], None]:
    calls = [function]
    """Whoever takes it out calls it."""

    def check() -> bool:
        if calls and delivery.done:
            try:
                call = calls.pop()
            except IndexError:
                return True  # another thread was faster
            _guarded(call, delivery)
        return not calls

    for shipment in delivery._shipments():
        shipment.watch(check)

    def forget() -> None:
        calls.clear()
        for shipment in delivery._shipments():
            shipment.unwatch(check)

    return forget


def _add_callback(delivery: Any, function: Callable[[Any], None]) -> None:
    if not delivery.done:
        _check_process(delivery)
    _call_when_done(delivery, function)


def _check_process(delivery: Any) -> None:
    for shipment in delivery._shipments():
        shipment.check_process()


def _guarded(function: Callable[[Any], None], delivery: Any) -> None:
    try:
        function(delivery)
    except BaseException:  # sys.exit() and the like must not end the sender, nor keep others waiting
        _log.exception("a delivery callback raised; the delivery itself is not touched by that")


def _awaited(delivery: Any) -> Generator[Any, None, None]:
    if delivery.done:
        return
    _check_process(delivery)
    import asyncio  # whoever awaits has imported it

    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def finish() -> None:
        if not future.done():
            future.set_result(None)

    def wake(_: Any) -> None:
        try:
            loop.call_soon_threadsafe(finish)
        except RuntimeError:  # the loop was closed meanwhile: nobody waits any more
            pass

    _call_when_done(delivery, wake)
    yield from future


def _state(delivery: Any) -> str:
    if not delivery.done:
        return "waiting"
    error = delivery.exception(0)
    return "acknowledged" if error is None else f"failed: {error}"
