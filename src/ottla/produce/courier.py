"""Carries batches to brokers and makes of their answers what the lanes need to know.

Lanes with something to send come in, requests go out over the links: one batch of each partition that a broker leads,
many partitions in a request. Answers, lost connections and passing time go back to the lanes; decided batches go to
`Outcomes`. It is driven by the sender's loop and never blocks.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ottla.config import Retry
from ottla.errors import (
    BrokerError,
    ConnectionLost,
    ErrorCode,
    Fenced,
    NotDelivered,
    OttlaError,
    WireError,
    error_row,
)
from ottla.events import EpochBumped, Events, Flushed, FlushRetried
from ottla.model import TopicPartition
from ottla.net import Cluster
from ottla.net.connection import Pending
from ottla.net.deadline import Deadline
from ottla.net.errands import Errands
from ottla.net.links import Link, Links
from ottla.net.pending import Reply
from ottla.produce import tail
from ottla.produce.ends import Ends
from ottla.produce.hook import cut
from ottla.produce.keeper import Keeper
from ottla.produce.lane import Lane, Verdict, verdict_on
from ottla.produce.lanes import Lanes
from ottla.produce.outcomes import Outcomes
from ottla.produce.outgoing import Identity, Outgoing
from ottla.produce.packing import Topic, seal, shrink
from ottla.wire import produce as wire

MOST_REQUEST_BYTES = 8 << 20
_NEVER = math.inf
_DISK_SECONDS = 0.1
"""How long a lane waits before it tries a disk again that refused."""


class Carried(NamedTuple):
    """A batch in a request."""

    topic: Topic
    lane: Lane
    batch: Outgoing


@dataclass(slots=True)
class Request:
    """What was sent to one broker at once."""

    link: Link
    carried: dict[TopicPartition, Carried]
    pending: Pending | None = None


class Tools(NamedTuple):
    """What a courier works with."""

    cluster: Cluster
    errands: Errands
    outcomes: Outcomes
    events: Events
    retry: Retry
    chance: random.Random


class Courier:
    """The sending half of a producer; used by the sender's thread."""

    def __init__(
        self,
        tools: Tools,
        lanes: Lanes,
        *,
        links: Links,
        ends: Ends,
        keeper: Keeper | None,
        may_carry: Callable[[Lane], bool],
        doubt: Callable[[str], None],
        transactional_id: str | None = None,
    ) -> None:
        self._tools = tools
        self._lanes = lanes
        self._links = links
        self._ends = ends
        self._keeper = keeper
        self._may_carry = may_carry
        self._doubt = doubt
        self._transactional_id = transactional_id
        self._answered: list[Request] = []

    # Sending

    def dispatch(self, now: float) -> float:
        """Sends what can be sent, several batches of a lane if there are; when to look again, if nothing happens."""
        sent = True
        while sent:
            look_again, sent = self._dispatch_once(now)
        return look_again

    def _dispatch_once(self, now: float) -> tuple[float, bool]:
        look_again = _NEVER
        sent = False
        ready: dict[int, list[tuple[Topic, Lane]]] = {}
        self._lanes.need_identity = False
        for topic, lane in self._lanes:
            if lane.is_idle:
                self._lanes.retire(lane)
                continue
            if lane.ready_to_check:
                if lane.resume_at > now:
                    look_again = min(look_again, lane.resume_at)
                    continue
                self._check(topic, lane)
            when = self._when(lane)
            if when > now:
                look_again = min(look_again, when)
                continue
            link = self._links.get(topic.leaders.get(lane.at.partition, -1))
            if link is None:
                self._doubt(topic.name)
            elif link.has_room:
                ready.setdefault(link.broker.id, []).append((topic, lane))
            elif not link.is_up:
                self._links.connect(link, now)
                look_again = min(look_again, link.resume_at) if link.resume_at > now else look_again
        for broker_id, lanes in ready.items():
            link = self._links.get(broker_id)
            assert link is not None
            sent = self._send_to(link, lanes, now) or sent
        return look_again, sent

    def _when(self, lane: Lane) -> float:
        """When the lane has something to send; never, while it first needs an answer."""
        if lane.checking or lane.must_check or lane.waits or not self._may_carry(lane):
            return _NEVER
        if not self._lanes.identify(lane) and not (lane.line and lane.line[0].identity):
            self._lanes.need_identity = True
            return _NEVER
        if lane.has_unsent:
            return lane.resume_at
        return _NEVER if lane.open is None else max(lane.open.due, lane.resume_at)

    def _send_to(self, link: Link, lanes: list[tuple[Topic, Lane]], now: float) -> bool:
        by_acks: dict[int, dict[TopicPartition, Carried]] = {}
        size = 0
        # Not always the same ones first: a request has an upper size.
        self._tools.chance.shuffle(lanes)
        for topic, lane in lanes:
            batch = self._next_batch(topic, lane, now)
            if batch is None:
                continue
            by_acks.setdefault(topic.settings.acks_code, {})[lane.at] = Carried(topic, lane, batch)
            size += batch.size_bytes
            if size >= MOST_REQUEST_BYTES:
                break
        for acks, carried in by_acks.items():
            self._send(Request(link, carried), acks, now)
        return bool(by_acks)

    def _next_batch(self, topic: Topic, lane: Lane, now: float) -> Outgoing | None:
        batch = lane.sendable(now)
        if batch is None and lane.open is not None and lane.open.due <= now:
            seal(topic, lane, self._tools.outcomes.hold)
            batch = lane.sendable(now)
        if batch is None:
            return None
        if batch.identity is None and lane.needs_identity:
            return None
        lane.number(batch, transactional=self._transactional_id is not None)
        if self._keeper is None:
            return batch
        try:
            if self._keeper.may_send(batch, lane):
                return batch
            lane.resume_at = max(lane.resume_at, now + _DISK_SECONDS)
            return None
        except NotDelivered as error:
            lane.given_up(batch)
            self._ends.fail(batch, error)
            return None

    def _send(self, request: Request, acks: int, now: float) -> None:
        seconds = self._tools.cluster.timeouts.request
        body = wire.produce_request(
            {at: carried.batch.parts() for at, carried in request.carried.items()},
            acks=acks,
            timeout_ms=int(seconds * 800),  # so that a broker that waits for replicas answers before we give up
            transactional_id=self._transactional_id,
        )
        for _, lane, batch in request.carried.values():
            self._tell_sent(batch)
            lane.sent(batch, now)
        request.link.requests += 1

        def answered(pending: Pending) -> None:
            request.pending = pending
            self._answered.append(request)

        connection = request.link.connection
        if connection is None:  # lost by the request before this one, to the same broker
            self._lost(request, ConnectionLost(request.link.broker.address, "the connection has just ended"), now)
            return
        try:
            connection.start(
                wire.API_KEY,
                connection.version(wire.API_KEY, highest=wire.HIGHEST_VERSION),
                body,
                deadline=Deadline.after(seconds),
                reply=Reply.NONE if acks == 0 else Reply.DUE,
                answered=answered,
            )
        except OttlaError as error:
            self._lost(request, error, now)

    def _tell_sent(self, batch: Outgoing) -> None:
        events = self._tools.events
        if not events.active:
            return
        at = batch.topic, batch.partition
        if batch.attempts == 0:
            events.emit(Flushed(*at, batch.count, batch.size_bytes, batch.raw_bytes))
        elif batch.error is not None:
            events.emit(FlushRetried(*at, batch.count, batch.attempts + 1, batch.error))

    # Answers

    @property
    def has_answers(self) -> bool:
        """Whether `collect` has something to do."""
        return bool(self._answered)

    def collect(self, now: float) -> None:
        """Works on the answers that have come since the last call."""
        while self._answered:
            for request in self._answered_now():
                pending, request.pending = request.pending, None  # a circle, and it holds batches and answer
                assert pending is not None
                if pending.error is not None:
                    self._lost(request, pending.error, now)
                elif pending.reply is Reply.NONE:
                    self._posted(request, now)
                else:
                    self._read(request, pending, now)

    def _answered_now(self) -> list[Request]:
        answered, self._answered = self._answered, []
        return answered

    def _posted(self, request: Request, now: float) -> None:
        request.link.requests -= 1
        for _, lane, batch in request.carried.values():
            lane.acknowledged(batch, -1)
            self._ends.succeed(batch, -1, -1, now)

    def _read(self, request: Request, pending: Pending, now: float) -> None:
        request.link.requests -= 1
        try:
            answers = {TopicPartition(a.topic, a.partition): a for a in wire.produce_response(pending.result())}
        except WireError as error:
            if request.link.connection is not None:
                request.link.connection.close()
            request.link.requests += 1
            self._lost(request, error, now)
            return
        for at, carried in request.carried.items():
            answer = answers.get(at)
            if answer is None:
                self._again(carried, WireError(f"the answer of {request.link.broker} leaves {at} out"), now)
            elif carried.batch.decided:
                carried.lane.forgotten(carried.batch)
            elif answer.error_code == 0:
                carried.lane.acknowledged(carried.batch, answer.base_offset)
                self._ends.succeed(carried.batch, answer.base_offset, answer.append_time, now)
            else:
                self._refused(carried, answer, now, asked=request.link.broker.id)

    def _refused(self, carried: Carried, answer: wire.Produced, now: float, *, asked: int) -> None:
        topic, lane, batch = carried
        reasons = [answer.message, *(f"record {i}: {why}" for i, why in answer.record_errors[:3])]
        error = BrokerError(answer.error_code, "the broker answered", "; ".join(filter(None, reasons)) or None)
        batch.error = error
        verdict = verdict_on(answer.error_code, records=batch.count)
        if verdict is Verdict.RETRY:
            self._again(carried, error, now)
            self._look_up(carried, answer, asked)
        elif verdict is Verdict.CHECK and topic.numbered and self._may_check(lane, batch, error):
            lane.misnumbered(batch, resume_at=now + self._wait(lane))
            if error.code is ErrorCode.invalid_producer_epoch:
                lane.disown()
        elif verdict is Verdict.SPLIT:
            self._split(carried, error)
        else:
            lane.refused(batch)
            kind = Fenced if verdict is Verdict.FENCED or self._is_fenced(error) else NotDelivered
            at, count = lane.at, batch.count
            # An earlier attempt may have been stored; and nobody knows what an unknown error has done.
            maybe = batch.attempts > 1 or batch.inherited or error.code is ErrorCode.unknown_server_error
            failed = kind(
                str(error), topic=at.topic, partition=at.partition, records=count, maybe_written=maybe, cause=error
            )
            self._ends.fail(batch, failed)

    def _may_check(self, lane: Lane, batch: Outgoing, error: BrokerError) -> bool:
        """In a transaction only behind a batch that is sent again: its epochs are not ours to choose."""
        if self._transactional_id is None:
            return True
        is_front = bool(lane.line) and lane.line[0] is batch
        return error.code is ErrorCode.out_of_order_sequence_number and not is_front

    def _is_fenced(self, error: BrokerError) -> bool:
        return self._transactional_id is not None and error.code is ErrorCode.invalid_producer_epoch

    def _look_up(self, carried: Carried, answer: wire.Produced, asked: int) -> None:
        at = carried.lane.at
        leader = answer.leader
        # Only another one than was asked: that one would be asked again at once, for ever.
        if (
            leader is not None
            and leader.id >= 0
            and leader.id != asked
            and self._tools.cluster.leader_moved(at.topic, at.partition, leader=leader.id, epoch=leader.epoch)
        ):
            carried.topic.leaders = {**carried.topic.leaders, at.partition: leader.id}
            carried.lane.resume_at = 0.0
        elif error_row(answer.error_code).refresh:
            self._doubt(at.topic)

    def _again(self, carried: Carried, error: OttlaError, now: float) -> None:
        _, lane, batch = carried
        batch.error = error
        if batch.decided:
            lane.forgotten(batch)
            return
        lane.again(batch, resume_at=now + self._wait(lane))

    def _wait(self, lane: Lane) -> float:
        """Seconds before the next attempt after one more failure."""
        return self._tools.retry.wait(lane.failures + 1, self._tools.chance.random())

    def _lost(self, request: Request, error: OttlaError, now: float) -> None:
        """The connection ended before the answer came."""
        request.link.requests -= 1
        if request.link.connection is not None:
            self._links.lost(request.link, error)
        for carried in request.carried.values():
            self._again(carried, error, now)
            self._doubt(carried.topic.name)

    def _split(self, carried: Carried, error: OttlaError) -> None:
        topic, lane, batch = carried
        shrink(topic, batch)
        try:
            parts = cut(batch, level=topic.settings.level)
        except OttlaError as failed:
            lane.refused(batch)
            self._ends.fail(batch, NotDelivered(f"{error}; and it cannot be cut: {failed}", records=batch.count))
            return
        hold = self._tools.outcomes.hold
        for part in parts:
            hold(part, part.size_bytes)
        lane.replaced(batch, parts)
        if self._keeper is not None:
            self._keeper.cut(batch, parts, lane)
        hold(batch, -batch.held_bytes)
        batch.records = None

    # The log

    def _check(self, topic: Topic, lane: Lane) -> None:
        """Reads the end of the partition's log before batches that were sent get other numbers, or none."""
        lane.checking = True
        wanted = {batch.identity: batch.count for batch in lane.line if batch.identity is not None}
        oldest = min((batch.created for batch in lane.line), default=0.0)
        times = [batch.header.base_timestamp for batch in lane.line if batch.header is not None]
        search = tail.Search(lane.at, floor=lane.floor, created=oldest, timestamp_ms=min(times, default=0))
        cluster = self._tools.cluster
        if not wanted:
            self._checked(topic, lane, {})
            return

        def failed(error: OttlaError) -> None:
            for batch in lane.line:
                batch.error = error
            lane.unchecked(resume_at=time.monotonic() + self._wait(lane))

        self._tools.errands.run(
            ("tail", lane.at),
            lambda: tail.find(cluster, search, wanted),
            done=lambda found: self._checked(topic, lane, found),
            failed=failed,
        )

    def _checked(self, topic: Topic, lane: Lane, found: dict[Identity, int]) -> None:
        front = lane.line[0] if lane.line else None
        first_try = lane.is_stale or (front is not None and front.inherited and front.attempts == 0)
        for batch, offset in lane.checked(found):
            self._ends.succeed(batch, offset, -1, batch.sent_at or 0.0)
        if first_try:
            return  # first under the identity that they may have been sent with: the broker drops what it has
        lane.number_again()
        if not lane.needs_identity:
            self._tools.events.emit(
                EpochBumped(topic.name, lane.at.partition, lane.producer_id, lane.epoch, "numbers could not go on")
            )
