"""What a producer decides: what is sent where and when, what an answer means, what is given up and why.

Events come in as calls (records handed over, topics looked up, brokers up or down, answers, lost connections, time),
and effects go out as values, to be carried out in order: send, connect, look up, ask for an identity, read the end of a
log, put on disk, settle, report. No thread, socket, disk or clock: `sender.py` drives it in a producer, and simulated
histories in the tests.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from ottla.config import Retry
from ottla.errors import BrokerError, ErrorCode, Fenced, NotDelivered, OttlaError, WireError, error_row
from ottla.events import Dropped, EpochBumped, Event, Flushed, FlushRetried
from ottla.model import TopicPartition
from ottla.net.refresh import MetadataRefresh
from ottla.produce import topics
from ottla.produce.delivery import Outcome
from ottla.produce.hook import cut
from ottla.produce.lane import LAST_EPOCH, Lane, Verdict, verdict_on
from ottla.produce.outgoing import Identity, Outgoing
from ottla.produce.packing import Settle, Topic, shrink
from ottla.produce.participants import Gate, Join
from ottla.produce.topics import Report, Topics
from ottla.wire.produce import Produced

MOST_REQUESTS = 5
"""In flight to one broker: it works on one at a time, the others wait in its socket."""
MOST_REQUEST_BYTES = 8 << 20
_DISK_SECONDS = 0.1
"""How long a lane waits before it tries a disk again that refused."""
_OPEN_SECONDS = 1.0
"""How long a batch that cannot be sent stays open: all its records have the deadline of the first one."""
_ABSENT = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.not_enough_replicas,
        ErrorCode.unknown_topic_or_partition,
    }
)
"""Errors after which a batch is certainly not in the log."""
_NEVER = math.inf


# Effects


class Carried(NamedTuple):
    """A batch in a request."""

    topic: Topic
    lane: Lane
    batch: Outgoing


class Caller:
    """Stands for a caller who sends a record himself, as long as his request is known to anybody."""

    __slots__ = ("__weakref__",)


class Send(NamedTuple):
    """A request to a broker: one batch of each partition. `answered`, `posted` or `lost` must follow."""

    broker: int
    acks: int
    carried: Mapping[TopicPartition, Carried]
    caller: Caller | None = None


class Connect(NamedTuple):
    """There is something to send to this broker, which is not connected. `link_changed` follows."""

    broker: int


class Identify(NamedTuple):
    """A producer id is needed. `identified` or `not_identified` must follow."""


class Search(NamedTuple):
    """Where in a log to look: from `floor` on, or, if that is -1 or not in the log, from the first record that is as
    old as the batches."""

    at: TopicPartition
    floor: int
    created: float
    timestamp_ms: int


class ReadTail(NamedTuple):
    """The end of a log has to be searched for batches. `tail_read` or `tail_not_read` must follow."""

    topic: Topic
    lane: Lane
    search: Search
    wanted: Mapping[Identity, int]


class Store(NamedTuple):
    """A batch must be on disk before it is sent. `stored`, `not_stored` or `damaged` must follow at once."""

    lane: Lane
    batch: Outgoing


class Replace(NamedTuple):
    """A batch goes on as its parts: on disk, too, if it is there."""

    lane: Lane
    whole: Outgoing
    parts: list[Outgoing]


Effect = Send | Connect | Identify | ReadTail | Store | Replace | Join | topics.Effect


# State


class _Peer:
    """A broker, as far as sending is concerned."""

    __slots__ = ("away_since", "error", "is_up", "requests")

    def __init__(self) -> None:
        self.is_up = False
        self.away_since: float | None = None
        self.requests = 0
        self.error: OttlaError | None = None

    @property
    def has_room(self) -> bool:
        return self.is_up and self.requests < MOST_REQUESTS


class Core:
    """The decisions of one producer. Its owner is one thread, which carries out `effects` after every call."""

    def __init__(
        self,
        watch: MetadataRefresh,
        *,
        retry: Retry,
        chance: random.Random,
        spooling: bool = False,
        gate: Gate | None = None,
        compress: topics.Compress | None = None,
    ) -> None:
        self.effects: deque[Effect] = deque()
        self.topics = Topics(watch, self.effects, compress=compress)
        self.account = self.topics.account
        self.is_reporting = True
        """Whether anybody wants to know what is sent."""
        self._watch = watch
        self._retry = retry
        self._chance = chance
        self._spooling = spooling
        self._gate = gate
        self._peers: dict[int, _Peer] = {}
        self._producer: tuple[int, int] | None = None
        """Producer id and epoch for lanes that have none."""
        self._identifying = False
        self._identify_at = 0.0
        self._next_at = _NEVER
        self._now = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to send or to wait for."""
        return not self.topics.active and not self.topics.are_waiting

    @property
    def flying(self) -> int:
        """Batches under way."""
        return sum(lane.flying for _, lane in self.topics.lanes)

    @property
    def is_transactional(self) -> bool:
        """Whether batches are part of transactions."""
        return self._gate is not None

    def _lanes(self) -> list[tuple[Topic, Lane]]:
        """Those with something to send or to wait for, every batch in their lines complete."""
        self.topics.finish_sealing()
        return self.topics.lanes

    def next_at(self) -> float:
        """When `dispatch` or `look` has something to do, if nothing else happens."""
        return min(self._next_at, self.topics.next_look())

    # Brokers

    def link_changed(self, broker: int, *, is_up: bool, away_since: float | None, error: OttlaError | None) -> None:
        """A broker is connected, or not; it is away if it could not be reached. Its partitions may move, and records
        without a key avoid them."""
        peer = self._peers.setdefault(broker, _Peer())
        peer.is_up, peer.away_since, peer.error = is_up, away_since, error
        is_away = away_since is not None
        self.topics.broker_changed(broker, is_away=is_away)
        if not is_up and not is_away and self.topics.leads(broker):
            self.effects.append(Connect(broker))  # was it idleness, or is the broker gone?

    def _peer(self, broker: int) -> _Peer | None:
        """A broker that metadata has named."""
        if broker not in self._peers and broker in self.topics.brokers:
            self._peers[broker] = _Peer()
        return self._peers.get(broker)

    # Identity

    def identified(self, producer_id: int, epoch: int = 0) -> None:
        """Lanes that have no identity number their batches under this one."""
        self._identifying = False
        self._producer = producer_id, epoch

    def not_identified(self, error: OttlaError, now: float) -> None:
        """It is asked for again, after a while."""
        self._identifying = False
        self._watch.error = error
        self._identify_at = now + self._retry.maximum

    def start_over(self, producer_id: int, epoch: int) -> None:
        """Batches are numbered under this identity from now on, in every partition."""
        self._producer = producer_id, epoch
        for topic in self.topics.all():
            for lane in topic.lanes.values():
                lane.start_over()

    def forget_idle(self, now: float, *, seconds: float) -> None:
        """Topics to which nothing was sent for so long are not asked for any more, and take no memory.

        Not of a transactional producer: the numbers of its lanes are the coordinator's, and go on.
        """
        if self.is_transactional:
            return
        for topic in self.topics.all():
            if now - topic.used_at > seconds and topic.is_idle and self._retired(topic):
                self.topics.forget(topic)

    def _retired(self, topic: Topic) -> bool:
        """Whether its lanes are not used any more. A lane that begins in the place of one of them gets a higher epoch
        than it had, so that no number is given twice."""
        lanes = list(topic.lanes.values())
        if any(lane.at in self.topics.active for lane in lanes):
            return False
        if self._producer is not None:
            producer_id, epoch = self._producer
            after = [lane.epoch + 1 for lane in lanes if not lane.may_adopt(producer_id, epoch)]
            epoch = max([epoch, *after])
            self._producer = (producer_id, epoch) if epoch <= LAST_EPOCH else None
        return True

    def _identify(self, lane: Lane) -> bool:
        """Gives the lane our identity if it needs one; whether what is new in it can be numbered."""
        if lane.needs_identity and self._producer is not None and lane.may_adopt(*self._producer):
            lane.adopt(*self._producer)
        return not lane.needs_identity

    # Transactions

    def joined(self, join: Join) -> None:
        """The coordinator knows the partitions."""
        assert self._gate is not None
        self._gate.joined(join)

    def not_joined(self, join: Join, error: OttlaError) -> None:
        """The coordinator refused: nothing of the transaction can be sent."""
        assert self._gate is not None
        self._gate.refused(join, error)

    # Sending

    def dispatch(self, now: float) -> bool:
        """Decides what is sent now, at most one batch of each lane; whether there may be more, once the effects are
        carried out."""
        self._now = now
        self._next_at = _NEVER
        ready: dict[int, list[tuple[Topic, Lane]]] = {}
        needs_identity = False
        for topic, lane in self._lanes():
            if lane.is_idle:
                del self.topics.active[lane.at]
                continue
            if lane.ready_to_check:
                if lane.resume_at > now:
                    self._next_at = min(self._next_at, lane.resume_at)
                    continue
                self._check(topic, lane)
            if not self._may_go(lane):
                continue
            if not self._identify(lane) and not (lane.line and lane.line[0].identity):
                needs_identity = True
                continue
            when = _when(lane)
            if when > now:
                self._next_at = min(self._next_at, when)
                continue
            leader = topic.leaders.get(lane.at.partition, -1)
            peer = self._peer(leader)
            if peer is None:
                self._watch.doubt(topic.name)
            elif peer.has_room:
                ready.setdefault(leader, []).append((topic, lane))
            elif not peer.is_up:
                self.effects.append(Connect(leader))
        self._ask_for_identity(needs_identity, now)
        self._ask_to_join()
        before = len(self.effects)
        chosen = {broker: self._choose(lanes, now) for broker, lanes in ready.items()}
        if any(isinstance(effect, Store) for effect in list(self.effects)[before:]):
            return True  # first on disk, then all of them in one request
        sends = [Send(broker, acks, carried) for broker, by_acks in chosen.items() for acks, carried in by_acks.items()]
        for send in sends:
            self._send(send, now)
        return bool(sends)

    def _may_go(self, lane: Lane) -> bool:
        if lane.checking or lane.must_check or lane.waits:
            return False
        return self._gate is None or self._gate.lets_through(lane.at)

    def _ask_for_identity(self, needs_identity: bool, now: float) -> None:
        # A transactional producer is told its identity.
        if needs_identity and not self._identifying and not self.is_transactional:
            if now < self._identify_at:
                self._next_at = min(self._next_at, self._identify_at)
                return
            self._identifying = True
            self._producer = None
            self.effects.append(Identify())

    def _ask_to_join(self) -> None:
        if self._gate is None:
            return
        why = self._gate.over or (self._gate.refusal if self._gate.sending else None)
        if why is not None:
            self.fail_all(why)  # also what was handed in after that was known
        join = self._gate.next_join()
        if join is not None:
            self.effects.append(join)

    def _choose(self, lanes: list[tuple[Topic, Lane]], now: float) -> dict[int, dict[TopicPartition, Carried]]:
        """The batches of the next requests to one broker, by acks."""
        by_acks: dict[int, dict[TopicPartition, Carried]] = {}
        size = 0
        # Not always the same ones first: a request has an upper size.
        self._chance.shuffle(lanes)
        for topic, lane in lanes:
            batch = self._next_batch(topic, lane, now)
            if batch is None:
                continue
            by_acks.setdefault(topic.settings.acks_code, {})[lane.at] = Carried(topic, lane, batch)
            size += batch.size_bytes
            if size >= MOST_REQUEST_BYTES:
                break
        return by_acks

    def _next_batch(self, topic: Topic, lane: Lane, now: float) -> Outgoing | None:
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
        for _, lane, batch in send.carried.values():
            if self.is_reporting:
                self.effects.append(Report(_sending(batch)))
            lane.sent(batch, now)
        self._peers[send.broker].requests += 1
        self.effects.append(send)

    def sent_by_caller(self, send: Send, now: float) -> None:
        """A caller has sent a record himself: one batch, of a lane that was idle, under its next number."""
        for topic, lane, batch in send.carried.values():
            topic.used_at = now
            self.topics.active[lane.at] = topic, lane
            self.account.hold(batch, batch.size_bytes)
            if self.is_reporting:
                self.effects.append(Report(_sending(batch)))
            lane.add_numbered(batch)
            lane.sent(batch, now)
        peer = self._peer(send.broker)
        assert peer is not None
        peer.requests += 1

    def stored(self, lane: Lane, batch: Outgoing) -> None:
        """It is on disk, and in memory: it may be sent."""
        lane.stored = batch

    def not_stored(self, lane: Lane, now: float) -> None:
        """The disk refused: the lane waits a moment."""
        lane.resume_at = max(lane.resume_at, now + _DISK_SECONDS)

    def damaged(self, lane: Lane, batch: Outgoing, error: NotDelivered) -> None:
        """It was on disk only, and cannot be read."""
        lane.given_up(batch)
        self._fail(batch, error)

    # Answers

    def answered(
        self, send: Send, answers: Mapping[TopicPartition, Produced], now: float, *, moved: Collection[TopicPartition]
    ) -> None:
        """The broker has answered; `moved` are partitions for which it has named another leader."""
        self._peers[send.broker].requests -= 1
        for at, carried in send.carried.items():
            answer = answers.get(at)
            if answer is None:
                self._again(carried, WireError(f"the answer of broker {send.broker} leaves {at} out"), now)
            elif carried.batch.decided:
                carried.lane.forgotten(carried.batch)
            elif answer.error_code == 0:
                carried.lane.acknowledged(carried.batch, answer.base_offset)
                self._settle(carried.batch, Outcome(0, answer.base_offset, answer.append_time))
            else:
                self._refused(carried, answer, now, has_moved=at in moved)

    def posted(self, send: Send) -> None:
        """It has left, and no answer is due."""
        self._peers[send.broker].requests -= 1
        for _, lane, batch in send.carried.values():
            lane.acknowledged(batch, -1)
            self._settle(batch, Outcome(0, -1, -1))

    def lost(self, send: Send, error: OttlaError, now: float) -> None:
        """The connection ended before the answer came."""
        self._peers[send.broker].requests -= 1
        for carried in send.carried.values():
            self._again(carried, error, now)
            self._watch.doubt(carried.topic.name)

    def _refused(self, carried: Carried, answer: Produced, now: float, *, has_moved: bool) -> None:
        topic, lane, batch = carried
        reasons = [answer.message, *(f"record {i}: {why}" for i, why in answer.record_errors[:3])]
        error = BrokerError(answer.error_code, "the broker answered", "; ".join(filter(None, reasons)) or None)
        batch.error = error
        verdict = verdict_on(answer.error_code, records=batch.count)
        if verdict is Verdict.RETRY:
            self._again(carried, error, now)
            self._find_leader(carried, answer, has_moved=has_moved)
        elif verdict is Verdict.CHECK and topic.numbered and self._may_check(lane, batch, error):
            lane.misnumbered(batch, resume_at=now + self._wait(lane))
            if error.code is ErrorCode.invalid_producer_epoch:
                lane.disown()
        elif verdict is Verdict.SPLIT and not batch.is_doubtful:
            self._split(carried, error)
        elif verdict is Verdict.SPLIT and topic.numbered and not self.is_transactional:
            # The limit was higher before: what is in the log must not come again in parts.
            lane.misnumbered(batch, resume_at=now + self._wait(lane))
        else:
            lane.refused(batch)
            kind = Fenced if verdict is Verdict.FENCED or self._is_fenced(error) else NotDelivered
            # An earlier attempt may have been stored; and nobody knows what an unknown error has done.
            maybe = batch.attempts > 1 or batch.inherited or error.code is ErrorCode.unknown_server_error
            self._fail(batch, _not_delivered(batch, str(error), kind=kind, maybe_written=maybe, cause=error))

    def _may_check(self, lane: Lane, batch: Outgoing, error: BrokerError) -> bool:
        """In a transaction only behind a batch that is sent again: its epochs are not ours to choose."""
        if not self.is_transactional:
            return True
        is_front = bool(lane.line) and lane.line[0] is batch
        return error.code is ErrorCode.out_of_order_sequence_number and not is_front

    def _is_fenced(self, error: BrokerError) -> bool:
        return self.is_transactional and error.code is ErrorCode.invalid_producer_epoch

    def _find_leader(self, carried: Carried, answer: Produced, *, has_moved: bool) -> None:
        at = carried.lane.at
        if has_moved and answer.leader is not None:
            carried.topic.leaders = {**carried.topic.leaders, at.partition: answer.leader.id}
            carried.lane.resume_at = 0.0
        elif error_row(answer.error_code).refresh:
            self._watch.doubt(at.topic)

    def _again(self, carried: Carried, error: OttlaError, now: float) -> None:
        _, lane, batch = carried
        batch.error = error
        batch.is_doubtful = batch.is_doubtful or not _is_surely_absent(error)
        if batch.decided:
            lane.forgotten(batch)
            return
        lane.again(batch, resume_at=now + self._wait(lane))

    def _wait(self, lane: Lane) -> float:
        """Seconds before the next attempt after one more failure."""
        return self._retry.wait(lane.failures + 1, self._chance.random())

    def _split(self, carried: Carried, error: OttlaError) -> None:
        topic, lane, batch = carried
        shrink(topic, batch)
        try:
            parts = cut(batch, level=topic.settings.level)
        except OttlaError as failed:
            lane.refused(batch)
            self._fail(batch, NotDelivered(f"{error}; and it cannot be cut: {failed}", records=batch.count))
            return
        for part in parts:
            self.account.hold(part, part.size_bytes)
        lane.replaced(batch, parts)
        self.account.release(batch)
        self.effects.append(Replace(lane, batch, parts))

    # The log

    def _check(self, topic: Topic, lane: Lane) -> None:
        """Reads the end of the partition's log before batches that were sent get other numbers, or none."""
        lane.checking = True
        wanted = {batch.identity: batch.count for batch in lane.line if batch.identity is not None}
        if not wanted:
            self.tail_read(topic, lane, {})
            return
        oldest = min((batch.created for batch in lane.line), default=0.0)
        times = [batch.header.base_timestamp for batch in lane.line if batch.header is not None]
        search = Search(lane.at, floor=lane.floor, created=oldest, timestamp_ms=min(times, default=0))
        self.effects.append(ReadTail(topic, lane, search, wanted))

    def tail_read(self, topic: Topic, lane: Lane, found: Mapping[Identity, int]) -> None:
        """The end of the log was searched: these batches are in it, at these offsets."""
        front = lane.line[0] if lane.line else None
        first_try = lane.is_stale or (front is not None and front.inherited and front.attempts == 0)
        for batch, offset in lane.checked(found):
            self._settle(batch, Outcome(0, offset, -1))
        for batch in lane.line:
            batch.is_doubtful = False
        if first_try:
            return  # first under the identity that they may have been sent with: the broker drops what it has
        lane.number_again()
        if not lane.needs_identity:
            at = lane.at
            reason = "numbers could not go on"
            self.effects.append(Report(EpochBumped(topic.name, at.partition, lane.producer_id, lane.epoch, reason)))

    def tail_not_read(self, lane: Lane, error: OttlaError, now: float) -> None:
        """It must still be searched, after a while."""
        for batch in lane.line:
            batch.error = error
        lane.unchecked(resume_at=now + self._wait(lane))

    # Ends

    def expire(self, now: float) -> None:
        """Gives up what has waited for too long."""
        self._now = now
        for topic, lane in self._lanes():
            limit = topic.settings.delivery_timeout
            if lane.open is not None and now >= min(lane.open.deadline, lane.open.due + min(_OPEN_SECONDS, limit / 10)):
                self.topics.seal(topic, lane)
            for batch in [batch for batch in lane.line if batch.deadline <= now]:
                self._give_up(topic, lane, batch, f"not acknowledged within {limit:g} s")
        self.topics.expire(now)

    def fail_all(self, error: OttlaError) -> None:
        """Nothing that is not under way will be delivered."""
        self.topics.fail_waiting(error)
        reason = getattr(error, "reason", str(error))
        kind = Fenced if isinstance(error, Fenced) else NotDelivered
        for topic, lane in self._lanes():
            self.topics.seal(topic, lane)
            for batch in [batch for batch in lane.line if not batch.flying]:
                lane.given_up(batch)
                failed = _not_delivered(batch, reason, kind=kind, maybe_written=batch.attempts > 0, cause=error)
                self._fail(batch, failed)

    def end(self, reason: str, *, kept: Callable[[Lane, Outgoing], bool]) -> None:
        """The producer ends: what `kept` says stays on disk for the next one, the rest is given up."""
        for topic, lane in self._lanes():
            self.topics.seal(topic, lane)
            for batch in list(lane.line):
                if kept(lane, batch):
                    lane.given_up(batch)
                else:
                    self._give_up(topic, lane, batch, reason)

    def _give_up(self, topic: Topic, lane: Lane, batch: Outgoing, reason: str) -> None:
        """Nobody waits for this batch any longer."""
        leader = topic.leaders.get(lane.at.partition, -1)
        peer = self._peer(leader)
        cause = batch.error or (None if peer is None else peer.error)
        last = f"; last error: {cause}" if cause is not None else ""
        where = "no leader is known" if peer is None else self._described(leader, peer)
        lane.given_up(batch)
        text = f"{reason}, {batch.attempts} attempts; {where}{last}"
        maybe = batch.attempts > 0 or batch.inherited
        self._fail(batch, _not_delivered(batch, text, maybe_written=maybe, cause=cause))

    def _described(self, broker: int, peer: _Peer) -> str:
        name = self.topics.brokers.get(broker, f"broker {broker}")
        return (
            name if peer.away_since is None else f"{name}, away for {self._now - peer.away_since:.1f} s: {peer.error}"
        )

    def _fail(self, batch: Outgoing, error: OttlaError) -> None:
        self._settle(batch, Outcome(0, -1, -1, error))

    def _settle(self, batch: Outgoing, outcome: Outcome) -> None:
        self.topics.settle(Settle(batch, outcome))

    # Memory and disk

    def drop_unsent(self, size_bytes: int) -> None:
        """Gives up the oldest records that were never sent, until so many bytes of memory are free."""

        def freed_by(batch: Outgoing) -> int:
            return batch.held_bytes if not batch.attempts and not batch.inherited else 0

        self.topics.drop_waiting(self._drop(size_bytes, freed_by))

    def drop_stored(self, size_bytes: int) -> None:
        """Gives up the oldest batches on disk that are not under way, until so many bytes of disk are free."""
        self._drop(size_bytes, lambda batch: batch.size_bytes if batch.ticket and not batch.flying else 0)

    def _drop(self, size_bytes: int, freed_by: Callable[[Outgoing], int]) -> int:
        """Oldest first; `freed_by` says what giving a batch up would free, 0 when it must stay. What is left."""
        candidates = [
            (batch.created, number, topic, lane, batch)
            for number, (topic, lane) in enumerate(self._lanes())
            for batch in lane.line
            if freed_by(batch)
        ]
        for _, _, topic, lane, batch in sorted(candidates, key=lambda entry: entry[:2]):
            if size_bytes <= 0:
                break
            size_bytes -= freed_by(batch)
            self.effects.append(Report(_dropped(lane, batch)))
            self._give_up(topic, lane, batch, "dropped to make room: they were the oldest")
        return size_bytes

    def to_be_kept(self, *, older_than: float, now: float) -> Iterator[tuple[Lane, list[Outgoing]]]:
        """Lanes whose oldest batch has waited since before `older_than`, and all their batches, to be put on disk."""
        for topic, lane in self._lanes():
            if lane.open is not None and lane.open.opened <= older_than and lane.open.due <= now:
                self.topics.seal(topic, lane)
            if lane.line and lane.line[0].opened <= older_than:
                yield lane, self._numbered(lane)

    def all_to_be_kept(self) -> Iterator[tuple[Lane, list[Outgoing]]]:
        """All lanes, and all their batches."""
        for topic, lane in self._lanes():
            self.topics.seal(topic, lane)
            yield lane, self._numbered(lane)

    def _numbered(self, lane: Lane) -> list[Outgoing]:
        """Numbered now, so that the disk says under which identity they may be sent; if not, they are written again."""
        if self._identify(lane):
            for batch in lane.line:
                lane.number(batch, transactional=self.is_transactional)
        return list(lane.line)


def _is_surely_absent(error: OttlaError) -> bool:
    """Whether a broker that answers so has not put the batch into its log."""
    return isinstance(error, BrokerError) and error.code in _ABSENT


def _when(lane: Lane) -> float:
    """When the lane has something to send."""
    if lane.has_unsent:
        return lane.resume_at
    return _NEVER if lane.open is None else max(lane.open.due, lane.resume_at)


def _sending(batch: Outgoing) -> Event:
    at = batch.topic, batch.partition
    if batch.attempts and batch.error is not None:
        return FlushRetried(*at, batch.count, batch.attempts + 1, batch.error)
    return Flushed(*at, batch.count, batch.size_bytes, batch.raw_bytes)


def _dropped(lane: Lane, batch: Outgoing) -> Dropped:
    assert batch.header is not None
    times = batch.header.base_timestamp / 1000, batch.header.max_timestamp / 1000
    return Dropped(*lane.at, batch.count, batch.size_bytes, *times, "dropped to make room")


def _not_delivered(
    batch: Outgoing,
    reason: str,
    *,
    kind: type[NotDelivered] = NotDelivered,
    maybe_written: bool,
    cause: OttlaError | None,
) -> NotDelivered:
    return kind(
        reason,
        topic=batch.topic,
        partition=batch.partition,
        records=batch.count,
        maybe_written=maybe_written,
        cause=cause,
    )
