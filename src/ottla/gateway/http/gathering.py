"""Writes the single records of requests that come at about the same time together. For one event loop.

Records come in one by one; each leads to an `Outcome`. A record leaves with all others of its topic that came in the
same pass of the event loop, and while a few groups are on their way the next one gathers. So with many clients one
batch serves many requests, and a client that is alone does not wait. A group that is not acknowledged soon holds up no
other. Records of a topic reach the producer in the order in which they came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from ottla.errors import InputError, OttlaError
from ottla.gateway.http import answers
from ottla.gateway.http.answers import Landed, Outcome
from ottla.gateway.http.problems import Problem, problem_of
from ottla.gateway.http.waking import Waker
from ottla.gateway.intake import Incoming, Intake
from ottla.produce.delivery import BulkDelivery, Delivery

_MOST_BYTES = 16 << 10
"""Larger records go on their own: copying them costs more than a batch of their own."""
_MOST_RECORDS = 512
_MOST_GROUP_BYTES = 1 << 20
"""The producer takes over so little whole or not at all."""
_MOST_UNDER_WAY = 4
"""Groups of a topic on their way before the next one waits. With one the gateway idles while brokers write it."""
_HOLD_SECONDS = 0.004
"""How long a group on its way may keep the next one waiting."""
_LOOK_SECONDS = 0.05
"""How often a group is looked through for records that are decided before others, whose partition has no leader."""

Waiting = asyncio.Future[Outcome]


@dataclass(slots=True, eq=False)
class _Group:
    """Records of one topic that leave together, and who waits for each."""

    topic: str
    records: list[Incoming] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    size_bytes: int = 0
    has_left: bool = False
    until: float = 0.0
    """When the requests that still wait get 504: the outcome is unknown."""
    timer: asyncio.TimerHandle | None = None


class Gathering:
    """What requests of one event loop write single records with."""

    def __init__(self, intake: Intake, waker: Waker, *, unknown: Callable[[], Problem], seconds: float) -> None:
        self._intake = intake
        self._waker = waker
        self._loop = waker.loop
        self._unknown = unknown
        """Makes the answer for a record without an outcome after `seconds`."""
        self._seconds = seconds
        self._gathering: dict[str, _Group] = {}
        self._under_way: dict[str, set[_Group]] = {}
        """By topic, the groups that the next one may have to wait for."""

    def write(self, topic: str, record: Incoming) -> Waiting:
        """Take a record. The future has its outcome, or raises the `Problem` that it was refused with."""
        future: Waiting = self._loop.create_future()
        size_bytes = len(record.value or b"") + len(record.key or b"")
        group = self._gathering.get(topic)
        if size_bytes > _MOST_BYTES:
            if group is not None:  # what came before it: a client relies on the order of what it sent
                self._leave(group)
            self._leave(_Group(topic, [record], [future]))
            return future
        if group is None:
            group = self._gathering[topic] = _Group(topic)
            if len(self._under_way.get(topic, ())) < _MOST_UNDER_WAY:
                self._loop.call_soon(self._leave, group)
        group.records.append(record)
        group.waiting.append(future)
        group.size_bytes += size_bytes
        if len(group.records) >= _MOST_RECORDS or group.size_bytes >= _MOST_GROUP_BYTES:
            self._leave(group)
        return future

    def _leave(self, group: _Group) -> None:
        """Hand a group over, and let the next one wait for it."""
        if group.has_left:
            return
        group.has_left = True
        if self._gathering.get(group.topic) is group:
            del self._gathering[group.topic]
        delivery = self._handed_over(group)
        if delivery is None:
            return
        self._under_way.setdefault(group.topic, set()).add(group)
        group.until = self._loop.time() + self._seconds
        group.timer = self._loop.call_later(_HOLD_SECONDS, self._look, group, delivery)
        delivery.add_done_callback(lambda _: self._waker.call(lambda: self._arrived(group, delivery)))

    def _handed_over(self, group: _Group) -> Delivery | BulkDelivery | None:
        """Return the delivery of a group; None if it was refused, or leaves record by record."""
        records, waiting = group.records, group.waiting
        try:
            if len(records) == 1:
                return self._intake.send_one(group.topic, records[0])
            return self._intake.send(group.topic, records)
        except OttlaError as error:
            if isinstance(error, InputError) and len(records) > 1:  # of one record; its neighbors are sound
                for record, future in zip(records, waiting, strict=True):
                    self._leave(_Group(group.topic, [record], [future]))
                return None
            for future in waiting:
                if not future.done():
                    future.set_exception(problem_of(error))
            return None

    def _look(self, group: _Group, delivery: Delivery | BulkDelivery) -> None:
        """A group takes long: the next one leaves, and what of this one is decided is answered."""
        self._release(group)
        now = self._loop.time()
        if isinstance(delivery, BulkDelivery):
            self._settle(group, delivery)
        if now < group.until:
            group.timer = self._loop.call_later(_LOOK_SECONDS, self._look, group, delivery)
            return
        for future in group.waiting:
            if not future.done():
                future.set_exception(self._unknown())

    def _arrived(self, group: _Group, delivery: Delivery | BulkDelivery) -> None:
        """Everything of a group is decided."""
        if group.timer is not None:
            group.timer.cancel()
        if isinstance(delivery, BulkDelivery):
            self._settle(group, delivery)
        elif not group.waiting[0].done():
            group.waiting[0].set_result(_of_one(delivery))
        self._release(group)

    def _settle(self, group: _Group, delivery: BulkDelivery) -> None:
        """Answer for the records that are decided by now."""
        waiting = group.waiting
        for decided in delivery.decided():
            partition, offset, error = decided.at.partition, decided.offset, decided.error
            for at, row in enumerate(decided.rows.tolist()):
                future = waiting[row]
                if future.done():
                    continue
                if error is not None:
                    future.set_result(answers.of_one_failed(error))
                else:
                    future.set_result(Outcome(1, (Landed(_FIRST, partition, offset + at if offset >= 0 else -1),)))

    def _release(self, group: _Group) -> None:
        """Let the next group of the topic leave."""
        groups = self._under_way.get(group.topic)
        if groups is None or group not in groups:
            return
        groups.remove(group)
        if not groups:
            del self._under_way[group.topic]
        following = self._gathering.get(group.topic)
        if following is not None:
            self._leave(following)


_FIRST = range(1)


def _of_one(delivery: Delivery) -> Outcome:
    try:
        return answers.of_one(delivery.result(0))
    except OttlaError as error:
        return answers.of_one_failed(error)
