"""Decides what a producer sends, where and when, and what each answer means. What it gives up is in `expiry.py`.

Events come in as method calls: records handed over, metadata, brokers up or down, answers, lost connections, time.
Effects (`effects.py`) go out as values, which the owner carries out in order. This module has no thread, socket, disk
or clock. `sender.py` drives it in a producer; the tests drive it in simulated histories.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Collection, Iterator, Mapping

from ottla.config import Retry
from ottla.errors import BrokerError, ErrorCode, Fenced, NotDelivered, OttlaError, WireError, error_row
from ottla.events import EpochBumped, Event, Flushed, FlushRetried
from ottla.model import TopicPartition
from ottla.net.refresh import MetadataRefresh
from ottla.produce.broker_states import BrokerStates
from ottla.produce.delivery import Outcome
from ottla.produce.effects import Carried, Connect, Effect, Identify, ReadTail, Replace, Search, Send, Store
from ottla.produce.expiry import Expiry, not_delivered
from ottla.produce.hook import invalid_records, split_batch
from ottla.produce.lane import LAST_EPOCH, Lane, Verdict, is_surely_absent, verdict_on
from ottla.produce.outgoing import Identity, Outgoing
from ottla.produce.packing import Settle, Topic, shrink
from ottla.produce.participants import Gate, Join
from ottla.produce.topics import Compress, Report, Topics
from ottla.wire.produce import Produced

MOST_REQUEST_BYTES = 8 << 20
"""From this size on a request takes no more batches."""
_DISK_SECONDS = 0.1
"""Backoff of a lane after the disk refused a write."""
_NEVER = math.inf
"""A time that does not come."""


class Core:
    """The decisions of one producer. One thread owns it and carries out `effects` after every call."""

    def __init__(
        self,
        refresh: MetadataRefresh,
        *,
        retry: Retry,
        chance: random.Random,
        spooling: bool = False,
        gate: Gate | None = None,
        compress: Compress | None = None,
    ) -> None:
        # `Topics` appends to it as well, so that effects stay in the order in which things happen.
        self.effects: deque[Effect] = deque()
        self.topics = Topics(refresh, self.effects, compress=compress)
        self.account = self.topics.account
        self.is_reporting = True
        """Whether to report batches as they are sent: only if an event sink wants to know."""
        self._refresh = refresh
        self._retry = retry
        self._random = chance
        self._spooling = spooling
        self._gate = gate
        self._brokers = BrokerStates()
        self.expiry = Expiry(self.topics, self._brokers, self.effects)
        self._producer: tuple[int, int] | None = None
        """Producer id and epoch for lanes that have none."""
        self._identifying = False
        self._identify_at = 0.0
        self._next_at = _NEVER

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to send and nothing to wait for."""
        return not self.topics.active and not self.topics.has_waiting

    @property
    def in_flight(self) -> int:
        """How many batches were sent and are not answered yet."""
        return sum(lane.in_flight for _, lane in self.topics.lanes)

    @property
    def is_transactional(self) -> bool:
        """Whether batches are part of transactions."""
        return self._gate is not None

    def next_at(self) -> float:
        """When `dispatch` or `Topics.request_metadata` next has something to do."""
        return min(self._next_at, self.topics.next_lookup())

    # Brokers

    def link_changed(self, broker: int, *, is_up: bool, away_since: float | None, error: OttlaError | None) -> None:
        """Record that a broker's connection came up or went down.

        `away_since` is set if the broker could not be reached. Then its partitions may move, and records without a key
        avoid them.
        """
        self._brokers.changed(broker, is_up=is_up, away_since=away_since, error=error)
        is_away = away_since is not None
        self.topics.broker_changed(broker, is_away=is_away)
        if not is_up and not is_away and self.topics.leads(broker):
            self.effects.append(Connect(broker))  # find out whether the broker closed an idle connection or is gone

    # Identity

    def identified(self, producer_id: int, epoch: int = 0) -> None:
        """Set the producer id for lanes that have none."""
        self._identifying = False
        self._producer = producer_id, epoch

    def not_identified(self, error: OttlaError, now: float) -> None:
        """Schedule another request for a producer id."""
        self._identifying = False
        self._refresh.error = error
        self._identify_at = now + self._retry.maximum

    def start_over(self, producer_id: int, epoch: int) -> None:
        """Number batches under this identity from now on, in every partition."""
        self._producer = producer_id, epoch
        for topic in self.topics.all():
            for lane in topic.lanes.values():
                lane.start_over()

    def forget_idle(self, now: float, *, seconds: float) -> None:
        """Forget topics that were not used for this many seconds: they are no longer looked up and take no memory.

        A transactional producer forgets none: the coordinator chooses its epochs, so the sequences of its lanes must
        continue.
        """
        if self.is_transactional:
            return
        for topic in self.topics.all():
            if now - topic.used_at > seconds and topic.is_idle and self._retired(topic):
                self.topics.forget(topic)

    def _retired(self, topic: Topic) -> bool:
        """Whether the topic's lanes are unused and can go.

        A lane that later takes the place of one of them must start in a higher epoch, so that no number is used twice.
        """
        lanes = list(topic.lanes.values())
        if any(lane.tp in self.topics.active for lane in lanes):
            return False
        if self._producer is not None:
            producer_id, epoch = self._producer
            next_epochs = [lane.epoch + 1 for lane in lanes if not lane.may_adopt(producer_id, epoch)]
            epoch = max([epoch, *next_epochs])
            self._producer = (producer_id, epoch) if epoch <= LAST_EPOCH else None
        return True

    def _identify(self, lane: Lane) -> bool:
        """Give the lane our identity if it needs one. Returns whether its new batches can be numbered."""
        if lane.needs_identity and self._producer is not None and lane.may_adopt(*self._producer):
            lane.adopt(*self._producer)
        return not lane.needs_identity

    # Transactions

    def joined(self, join: Join) -> None:
        """Record that the coordinator added the partitions to the transaction."""
        assert self._gate is not None
        self._gate.joined(join)

    def not_joined(self, join: Join, error: OttlaError) -> None:
        """Record that the coordinator refused: nothing of this transaction can be sent."""
        assert self._gate is not None
        self._gate.refused(join, error)

    # Sending

    def dispatch(self, now: float) -> bool:
        """Decide what to send now, at most one batch per lane.

        Returns whether there may be more to send once the effects are carried out.
        """
        self._brokers.now = now
        self._next_at = _NEVER
        ready: dict[int, list[tuple[Topic, Lane]]] = {}
        needs_identity = False
        for topic, lane in self.topics.sealed_lanes():
            if lane.is_idle:
                del self.topics.active[lane.tp]
                continue
            if lane.ready_to_check:
                if lane.resume_at > now:
                    self._next_at = min(self._next_at, lane.resume_at)
                    continue
                self._check(topic, lane)
            if not self._may_send(lane):
                continue
            if not self._identify(lane) and not (lane.queue and lane.queue[0].identity):
                needs_identity = True
                continue
            send_at = lane.send_at
            if send_at > now:
                self._next_at = min(self._next_at, send_at)
                continue
            leader = topic.leaders.get(lane.tp.partition, -1)
            state = self._brokers.find(leader, self.topics.brokers)
            if state is None:
                self._refresh.doubt(topic.name)
            elif state.has_room:
                ready.setdefault(leader, []).append((topic, lane))
            elif not state.is_up:
                self.effects.append(Connect(leader))
        self._request_identity(needs_identity, now)
        self._request_join()
        before = len(self.effects)
        chosen = {broker: self._choose(lanes, now) for broker, lanes in ready.items()}
        if any(isinstance(effect, Store) for effect in list(self.effects)[before:]):
            return True  # write to disk first, then send all of them in one request
        sends = [Send(broker, acks, carried) for broker, by_acks in chosen.items() for acks, carried in by_acks.items()]
        for send in sends:
            self._send(send, now)
        return bool(sends)

    def _may_send(self, lane: Lane) -> bool:
        """Whether the lane may send: it waits for no check or answer, and its partition is in the transaction."""
        if lane.checking or lane.must_check or lane.waits:
            return False
        return self._gate is None or self._gate.lets_through(lane.tp)

    def _request_identity(self, needs_identity: bool, now: float) -> None:
        """Request a producer id, unless a request is in flight or the last one failed a moment ago."""
        # A transactional producer gets its identity from `start_over`.
        if needs_identity and not self._identifying and not self.is_transactional:
            if now < self._identify_at:
                self._next_at = min(self._next_at, self._identify_at)
                return
            self._identifying = True
            self._producer = None
            self.effects.append(Identify())

    def _request_join(self) -> None:
        """Ask the coordinator to add partitions, and fail everything once the transaction cannot succeed."""
        if self._gate is None:
            return
        error = self._gate.over or (self._gate.refusal if self._gate.sending else None)
        if error is not None:
            self.expiry.fail_all(error)  # including records handed in after the failure
        join = self._gate.next_join()
        if join is not None:
            self.effects.append(join)

    def _choose(self, lanes: list[tuple[Topic, Lane]], now: float) -> dict[int, dict[TopicPartition, Carried]]:
        """The batches of the next requests to one broker, by `acks`."""
        by_acks: dict[int, dict[TopicPartition, Carried]] = {}
        size = 0
        # Requests have a maximum size: shuffle, so that every partition gets its turn.
        self._random.shuffle(lanes)
        for topic, lane in lanes:
            batch = self._next_batch(topic, lane, now)
            if batch is None:
                continue
            by_acks.setdefault(topic.settings.acks_code, {})[lane.tp] = Carried(topic, lane, batch)
            size += batch.size_bytes
            if size >= MOST_REQUEST_BYTES:
                break
        return by_acks

    def _next_batch(self, topic: Topic, lane: Lane, now: float) -> Outgoing | None:
        """The batch of this lane to send now, numbered, or None.

        With a spool it must be on disk first: then a `Store` effect is requested, and the batch is found here in the
        next round.
        """
        batch = lane.sendable(now)
        if batch is None and lane.open is not None and lane.open.due <= now:
            self.topics.seal(topic, lane)
            batch = lane.sendable(now)
        if batch is None or (batch.identity is None and lane.needs_identity):
            return None
        lane.number(batch, transactional=self.is_transactional)
        if self._spooling and lane.stored is not batch:
            self.effects.append(Store(lane, batch))
            return None
        return batch

    def _send(self, send: Send, now: float) -> None:
        """Record that the batches are in flight, and request the effect."""
        for _, lane, batch in send.carried.values():
            if self.is_reporting:
                self.effects.append(Report(_sending(batch)))
            lane.sent(batch, now)
        self._brokers[send.broker].requests += 1
        self.effects.append(send)

    def sent_by_caller(self, send: Send, now: float) -> None:
        """Record a request that a caller made itself: its batch is in flight."""
        for topic, lane, batch in send.carried.values():
            topic.used_at = now
            self.topics.active[lane.tp] = topic, lane
            self.account.hold(batch, batch.size_bytes)
            if self.is_reporting:
                self.effects.append(Report(_sending(batch)))
            lane.add_numbered(batch)
            lane.sent(batch, now)
        state = self._brokers.find(send.broker, self.topics.brokers)
        assert state is not None
        state.requests += 1

    def stored(self, lane: Lane, batch: Outgoing) -> None:
        """Record that the batch is on disk and in memory: it may be sent."""
        lane.stored = batch

    def not_stored(self, lane: Lane, now: float) -> None:
        """Record that the disk refused: the lane backs off."""
        lane.resume_at = max(lane.resume_at, now + _DISK_SECONDS)

    def damaged(self, lane: Lane, batch: Outgoing, error: NotDelivered) -> None:
        """Fail a batch that was only on disk and cannot be read."""
        lane.given_up(batch)
        self.topics.fail(batch, error)

    # Answers

    def answered(
        self, send: Send, answers: Mapping[TopicPartition, Produced], now: float, *, moved: Collection[TopicPartition]
    ) -> None:
        """Handle a broker's answer. `moved` are the partitions for which it named another leader."""
        self._brokers[send.broker].requests -= 1
        for tp, carried in send.carried.items():
            answer = answers.get(tp)
            if answer is None:
                self._retry_batch(carried, WireError(f"broker {send.broker} did not answer for {tp}"), now)
            elif carried.batch.decided:
                carried.lane.forgotten(carried.batch)
            elif answer.error_code == 0:
                carried.lane.acknowledged(carried.batch, answer.base_offset)
                self.topics.settle(Settle(carried.batch, Outcome(0, answer.base_offset, answer.append_time)))
            else:
                self._refused(carried, answer, now, has_moved=tp in moved)

    def posted(self, send: Send) -> None:
        """Record that a request without an answer (acks=0) was sent."""
        self._brokers[send.broker].requests -= 1
        for _, lane, batch in send.carried.values():
            lane.acknowledged(batch, -1)
            self.topics.settle(Settle(batch, Outcome(0, -1, -1)))

    def lost(self, send: Send, error: OttlaError, now: float) -> None:
        """Handle a connection that was lost before the answer came."""
        self._brokers[send.broker].requests -= 1
        for carried in send.carried.values():
            self._retry_batch(carried, error, now)
            self._refresh.doubt(carried.topic.name)

    def _refused(self, carried: Carried, answer: Produced, now: float, *, has_moved: bool) -> None:
        """Handle an error code in the answer to a batch: retry, check the log, split, or fail."""
        topic, lane, batch = carried
        reasons = [answer.message, *(f"record {row}: {reason}" for row, reason in answer.record_errors[:3])]
        error = BrokerError(answer.error_code, "the broker answered", "; ".join(filter(None, reasons)) or None)
        batch.error = error
        verdict = verdict_on(answer.error_code, records=batch.count)
        if verdict is Verdict.RETRY:
            self._retry_batch(carried, error, now)
            self._find_leader(carried, answer, has_moved=has_moved)
        elif verdict is Verdict.CHECK and topic.numbered and self._may_check(lane, batch, error):
            lane.misnumbered(batch, resume_at=now + self._backoff(lane))
            if error.code is ErrorCode.invalid_producer_epoch:
                lane.disown()
        elif verdict is Verdict.SPLIT and not batch.is_doubtful:
            shrink(topic, batch)
            self._split(carried, error)
        elif verdict is Verdict.SIEVE and not self.is_transactional and (invalid := invalid_records(batch, answer)):
            self._split(carried, error, invalid)
        elif verdict is Verdict.SPLIT and topic.numbered and not self.is_transactional:
            # The limit may have been higher before: if the batch is in the log, its parts must not be written again.
            lane.misnumbered(batch, resume_at=now + self._backoff(lane))
        else:
            lane.refused(batch)
            kind = Fenced if verdict is Verdict.FENCED or self._is_fenced(error) else NotDelivered
            # An earlier attempt may have been stored, and after UNKNOWN_SERVER_ERROR even this one.
            maybe_written = batch.attempts > 1 or batch.inherited or error.code is ErrorCode.unknown_server_error
            self.topics.fail(
                batch, not_delivered(batch, str(error), kind=kind, maybe_written=maybe_written, cause=error)
            )

    def _may_check(self, lane: Lane, batch: Outgoing, error: BrokerError) -> bool:
        """Whether the log may be checked for a batch whose sequence the broker rejected.

        In a transaction only for a batch behind one that is being sent again: the coordinator chooses the epochs.
        """
        if not self.is_transactional:
            return True
        is_front = bool(lane.queue) and lane.queue[0] is batch
        return error.code is ErrorCode.out_of_order_sequence_number and not is_front

    def _is_fenced(self, error: BrokerError) -> bool:
        return self.is_transactional and error.code is ErrorCode.invalid_producer_epoch

    def _find_leader(self, carried: Carried, answer: Produced, *, has_moved: bool) -> None:
        """Use the leader that the answer named (KIP-951), or request metadata if the error says that ours is stale."""
        tp = carried.lane.tp
        if has_moved and answer.leader is not None:
            carried.topic.leaders = {**carried.topic.leaders, tp.partition: answer.leader.id}
            carried.lane.resume_at = 0.0
        elif error_row(answer.error_code).refresh:
            self._refresh.doubt(tp.topic)

    def _retry_batch(self, carried: Carried, error: OttlaError, now: float) -> None:
        """Send a batch again, after the backoff. If it was given up meanwhile, its answer no longer matters."""
        _, lane, batch = carried
        batch.error = error
        batch.is_doubtful = batch.is_doubtful or not is_surely_absent(error)
        if batch.decided:
            lane.forgotten(batch)
            return
        lane.retry(batch, resume_at=now + self._backoff(lane))

    def _backoff(self, lane: Lane) -> float:
        """Seconds to wait after one more failure of the lane."""
        return self._retry.wait(lane.failures + 1, self._random.random())

    def _split(self, carried: Carried, error: OttlaError, invalid: Collection[int] = ()) -> None:
        """Replace a batch by smaller ones without its invalid records, or fail it if it cannot be decoded."""
        topic, lane, batch = carried
        try:
            parts, refused = split_batch(batch, invalid, level=topic.settings.level)
        except OttlaError as failed:
            lane.refused(batch)
            self.topics.fail(batch, NotDelivered(f"{error}; and it cannot be split: {failed}", records=batch.count))
            return
        for part in parts:
            self.account.hold(part, part.size_bytes)
        lane.replaced(batch, parts)
        self.account.release(batch)
        self.effects.append(Replace(lane, batch, parts))
        for part in refused:
            self.topics.fail(part, not_delivered(part, str(error), maybe_written=False, cause=error))

    # The log

    def _check(self, topic: Topic, lane: Lane) -> None:
        """Read the end of the partition's log before batches that were sent are renumbered or given up."""
        lane.checking = True
        counts = {batch.identity: batch.count for batch in lane.queue if batch.identity is not None}
        if not counts:
            self.tail_read(topic, lane, {})
            return
        oldest = min((batch.created for batch in lane.queue), default=0.0)
        times = [batch.header.base_timestamp for batch in lane.queue if batch.header is not None]
        search = Search(lane.tp, floor=lane.floor, created=oldest, timestamp_ms=min(times, default=0))
        self.effects.append(ReadTail(topic, lane, search, counts))

    def tail_read(self, topic: Topic, lane: Lane, offsets: Mapping[Identity, int]) -> None:
        """Handle the result of a search: these batches are in the log, at these offsets."""
        front = lane.queue[0] if lane.queue else None
        first_try = lane.is_stale or (front is not None and front.inherited and front.attempts == 0)
        for batch, offset in lane.check_done(offsets):
            self.topics.settle(Settle(batch, Outcome(0, offset, -1)))
        for batch in lane.queue:
            batch.is_doubtful = False
        if first_try:
            return  # send them under the identity they may have been sent with first: the broker drops duplicates
        lane.renumber()
        if not lane.needs_identity:
            tp = lane.tp
            reason = "the broker rejected the sequence"
            self.effects.append(Report(EpochBumped(topic.name, tp.partition, lane.producer_id, lane.epoch, reason)))

    def tail_not_read(self, lane: Lane, error: OttlaError, now: float) -> None:
        """Schedule another search of the log."""
        for batch in lane.queue:
            batch.error = error
        lane.check_failed(resume_at=now + self._backoff(lane))

    # The disk

    def overdue_lanes(self, *, older_than: float, now: float) -> Iterator[tuple[Lane, list[Outgoing]]]:
        """Lanes whose oldest batch has waited since before `older_than`, with all their batches.

        They are to be written to disk. All of a lane, because the disk must keep the order of the queue.
        """
        for topic, lane in self.topics.sealed_lanes():
            if lane.open is not None and lane.open.opened <= older_than and lane.open.due <= now:
                self.topics.seal(topic, lane)
            if lane.queue and lane.queue[0].opened <= older_than:
                yield lane, self._numbered(lane)

    def all_lanes_numbered(self) -> Iterator[tuple[Lane, list[Outgoing]]]:
        """All lanes, with all their batches, to be written to disk."""
        for topic, lane in self.topics.sealed_lanes():
            self.topics.seal(topic, lane)
            yield lane, self._numbered(lane)

    def _numbered(self, lane: Lane) -> list[Outgoing]:
        """The lane's batches, numbered if possible, so that the disk records the identity they are sent under.

        A batch that gets its number later is written to disk again.
        """
        if self._identify(lane):
            for batch in lane.queue:
                lane.number(batch, transactional=self.is_transactional)
        return list(lane.queue)


def _sending(batch: Outgoing) -> Event:
    """The event for a batch that is sent: `Flushed` the first time, `FlushRetried` after that."""
    tp = batch.topic, batch.partition
    if batch.attempts and batch.error is not None:
        return FlushRetried(*tp, batch.count, batch.attempts + 1, batch.error)
    return Flushed(*tp, batch.count, batch.size_bytes, batch.raw_bytes)
