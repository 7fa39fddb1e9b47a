"""Forwards batches to the target cluster: takes partitions over, keeps the journal, sends, and judges the answers.

Lanes and pieces of the source's log come in; requests go out, and cursors for the fetcher that say where to continue.
It is the actor of a loop (`net/loop.py`) and never blocks: taking over, metadata and the journal are background tasks.
What may be sent and what an answer means is decided in `lane.py`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from ottla.errors import BrokerError, ErrorCode, Fenced, MirrorError, OttlaError, WireError, copied
from ottla.events import Events, MirrorFaultAccepted, MirrorStopped, MirrorTookOver
from ottla.fetch.cursor import Cursor, Piece
from ottla.fetch.fetcher import Fetcher
from ottla.mirror.holding import Begun, Taker
from ottla.mirror.journal import Journal
from ottla.mirror.journaling import Journaling, rows_of
from ottla.mirror.lane import Lane, Outbound, Phase, Verdict
from ottla.mirror.recode import Recoder
from ottla.mirror.rules import Policy
from ottla.mirror.takeover import Fault, Finding
from ottla.mirror.target_leaders import UNKNOWN, TargetLeaders
from ottla.mirror.throttle import Throttle
from ottla.model import TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.deadline import Deadline
from ottla.net.links import Link
from ottla.net.loop import Answer, Loop
from ottla.wire import produce as wire

_log = logging.getLogger(__name__)
_MOST_REQUESTS = 5
_REQUEST_BYTES = 16 << 20
"""The most that one request carries, unless a single batch is larger."""
_MARK_SECONDS = 5.0
"""How often the journal learns how far lanes are. It bounds what a takeover reads, and how old a status is."""
_LANE_BYTES = 16 << 20
"""What one lane may hold before its partition is no longer fetched, so that a slow one leaves room for the others."""
_ALL_REPLICAS = -1
_STOP_SECONDS = 5.0


class _Sent(NamedTuple):
    lane: Lane
    outbound: Outbound
    identity: tuple[int, int]
    """The term in which it was sent: an answer for another one is void."""


class _Request(NamedTuple):
    batches: list[_Sent]
    topic_ids: Mapping[str, UUID] | None
    """The ids that it has in place of names, if the broker takes them."""


class Forwarder:
    """The target's side of a mirror. `start` starts its thread, `stop` ends it."""

    def __init__(
        self,
        cluster: Cluster,
        source: Cluster,
        fetcher: Fetcher,
        journal: Journal,
        *,
        policy: Policy,
        throttle: Throttle,
        events: Events,
        channel: str = "mirror",
    ) -> None:
        self._cluster = cluster
        self._source = source
        self._fetcher = fetcher
        self._journal = journal
        self._policy = policy
        self._throttle = throttle
        self._events = events
        self._loop: Loop[_Request] = Loop(
            cluster, channel=channel, name=f"ottla-{channel}", most_requests=_MOST_REQUESTS, events=events
        )
        self._taker = Taker(source, cluster, journal, policy)
        self._leaders = TargetLeaders(cluster, self._loop)  # type: ignore[arg-type]  # it sends no requests
        self._journaling = Journaling(journal, self._loop.background, cluster.retry, self._loop.chance)
        self._lanes: dict[TopicPartition, Lane] = {}
        """By source partition."""
        self._by_target: dict[TopicPartition, Lane] = {}
        self._idle: dict[TopicPartition, Lane] = {}
        """Lanes that are to take over, by target."""
        self._busy: dict[TopicPartition, Lane] = {}
        """Lanes with batches to send, by target, in the order of the next requests."""
        self._recoder = Recoder()
        self._marked_at = 0.0
        self._changed: Callable[[], None] = lambda: None

    # Any thread

    def start(self, changed: Callable[[], None]) -> None:
        """Start forwarding. `changed` is called on the loop's thread whenever a lane is done or has failed."""
        self._changed = changed
        self._loop.start(self)

    def stop(self) -> None:
        """Write down how far the lanes are, and end."""
        if not self._loop.has_stopped:
            unmarked = self._loop.result_of(lambda: rows_of(lane for lane in self.lanes() if not lane.is_marked))
            self._journaling.write_marks(unmarked, seconds=_STOP_SECONDS)
        self._loop.stop(self, Deadline.after(_STOP_SECONDS))

    def add(self, lanes: Iterable[Lane]) -> None:
        """Mirror these lanes from now on."""
        new = list(lanes)
        self._loop.call(lambda: self._add(new))

    def retry(self, lanes: Iterable[Lane]) -> None:
        """Let failed lanes take over again."""
        failed = list(lanes)
        self._loop.call(lambda: self._retry_failed(failed))

    def take(self, piece: Piece) -> None:
        """Forward a piece of the source's log."""
        self._loop.call(lambda: self._take(piece))

    def source_failed(self, cursor: Cursor, error: OttlaError) -> None:
        """End the lane of a cursor that cannot be read any further."""
        self._loop.call(lambda: self._source_failed(cursor, error))

    def lanes(self) -> list[Lane]:
        """Return all lanes. Their state may change at any moment."""
        return list(self._lanes.values())

    @property
    def has_stopped(self) -> bool:
        """Whether its loop has ended."""
        return self._loop.has_stopped

    # The actor

    def begin(self) -> None:
        """Do nothing: lanes take over in turns (`Actor.begin`)."""

    def turn(self, now: float) -> float:
        """Handle answers, take over, write the journal, send (`Actor.turn`)."""
        for answer in self._loop.answers():
            self._handle(answer, now)
            del answer
        for link in self._loop.links.changed():
            if link.is_away:
                self._leaders.doubt_led_by(link.broker.id)
        ids = self._leaders.turn(now)
        if ids:
            self._restart_replaced(ids)
        self._take_over_idle(now)
        self._write_journal(now)
        next_at = self._send_requests(now)
        resumes = (lane.resume_at for lane in self._idle.values())
        return min(next_at, self._loop.links.next_at(now), self._leaders.next_at(), now + _MARK_SECONDS, *resumes)

    def recover(self) -> None:
        """Never called: only the loop's own thread, which is never interrupted, takes its turns."""
        raise AssertionError("only its own thread drives a forwarder's loop")

    def end(self, error: OttlaError | None) -> None:
        """Fail the lanes if the loop crashed (`Actor.end`)."""
        if error is not None:
            for lane in self._lanes.values():
                self._release(lane.fail(error))
        self._loop.background.join(Deadline.after(0.5))
        self._changed()

    # Lanes

    def _add(self, new: Sequence[Lane]) -> None:
        for lane in new:
            self._lanes[lane.source] = self._by_target[lane.target] = self._idle[lane.target] = lane
        self._leaders.add(lane.target for lane in new)

    def _retry_failed(self, lanes: Iterable[Lane]) -> None:
        for lane in lanes:
            if lane.phase is Phase.FAILED:
                lane.phase = Phase.IDLE
                lane.resume_at = 0.0
                self._idle[lane.target] = lane

    def _take_over_idle(self, now: float) -> None:
        for lane in [lane for lane in self._idle.values() if now >= lane.resume_at]:
            del self._idle[lane.target]
            lane.phase = Phase.TAKING_OVER
            self._loop.background.run(
                ("take over", lane.target),
                lambda lane=lane: self._taker.begin(lane.source, lane.target, first=lane.first),  # type: ignore[misc]
                done=lambda begun, lane=lane: self._begun(lane, begun),  # type: ignore[misc]
                failed=lambda error, lane=lane: self._not_begun(lane, error),  # type: ignore[misc]
            )

    def _restart_replaced(self, ids: Mapping[str, UUID | None]) -> None:
        """End the terms of lanes whose target topic was deleted and created again; taking over judges that."""
        for target, lane in self._by_target.items():
            topic_id = ids.get(target.topic)
            if lane.term is not None and topic_id is not None and lane.term.target_id not in (None, topic_id):
                self._restart(lane)

    def _write_journal(self, now: float) -> None:
        """Write what batches wait for, and from time to time how far everything is."""
        if not self._journaling.is_ready(now):
            return
        urgent = [lane for lane in self._busy.values() if lane.needs_journal]
        if now >= self._marked_at + _MARK_SECONDS:
            self._marked_at = now
            self._look_after(now)
            urgent += [lane for lane in self._lanes.values() if lane.phase is Phase.RUNNING and not lane.is_marked]
        self._journaling.write(urgent)

    def _look_after(self, now: float) -> None:
        """Renew terms that are old, and give up lanes that have failed for too long."""
        for lane in list(self._lanes.values()):
            if lane.is_outdated(now, time.time()):
                self._restart(lane)
            elif lane.phase is not Phase.FAILED and lane.failing_since <= now - self._policy.patience:
                assert lane.error is not None
                self._fail(lane, lane.error)

    def _begun(self, lane: Lane, begun: Begun) -> None:
        source = begun.term.start.source
        limit = min(begun.accepts.max_bytes, lane.most_bytes)
        lane.accepts = replace(begun.accepts, max_bytes=limit)
        cursor = Cursor(lane.source, source, lane.stop, epoch=begun.term.start_epoch, topic_id=begun.term.source_id)
        cursor.start = min(lane.first, source)  # a log that was cut back may continue before the position
        lane.taken_over(begun.term, cursor, time.monotonic(), time.time())
        for fault in begun.accepted:
            self._accept_fault(lane, fault)
        self._events.emit(MirrorTookOver(self._journal.link, *lane.source, *lane.target, source, begun.term.epoch))
        if lane.phase is Phase.RUNNING:
            self._fetcher.add([cursor])
        else:
            self._changed()

    def _not_begun(self, lane: Lane, error: OttlaError) -> None:
        is_final = isinstance(error, Fenced | MirrorError) or (isinstance(error, BrokerError) and not error.retriable)
        now = time.monotonic()
        lane.not_taken_over(error, now, resume_at=now + self._backoff(lane))
        self._idle[lane.target] = lane
        if is_final or lane.failing_since <= now - self._policy.patience:
            self._fail(lane, error)

    def _restart(self, lane: Lane) -> None:
        """End the term of a lane; it takes over again."""
        if lane.cursor is not None:
            self._fetcher.remove([lane.cursor])
        self._busy.pop(lane.target, None)
        self._release(lane.give_up_term())
        self._idle[lane.target] = lane

    def _fail(self, lane: Lane, error: OttlaError) -> None:
        if lane.cursor is not None:
            self._fetcher.remove([lane.cursor])
        self._busy.pop(lane.target, None)
        self._idle.pop(lane.target, None)
        self._release(lane.fail(error))
        self._events.emit(MirrorStopped(self._journal.link, *lane.source, *lane.target, str(error)))
        self._changed()

    def _accept_fault(self, lane: Lane, fault: MirrorError) -> None:
        _log.warning("link %s: %s: accepted: %s", self._journal.link, lane.source, fault)
        self._events.emit(MirrorFaultAccepted(self._journal.link, *lane.source, *lane.target, fault.fault, str(fault)))

    def _release(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            self._fetcher.buffer.used_up(piece)

    # Pieces

    def _take(self, piece: Piece) -> None:
        lane = self._lanes.get(piece.cursor.tp)
        if lane is None or lane.cursor is not piece.cursor:
            self._fetcher.buffer.used_up(piece)
            return
        if _is_of_another_topic(lane, piece):  # its offsets mean something else: taking over judges that
            self._fetcher.buffer.used_up(piece)
            self._restart(lane)
            return
        lane.add(piece, self._recoder)
        if lane.blocked is not None:
            self._fetcher.remove([piece.cursor])
        if lane.queue:
            self._busy[lane.target] = lane
            if lane.waiting_bytes > _LANE_BYTES:
                piece.cursor.paused = True
            return
        self._release(lane.reached_end())
        self._look_at_end(lane)

    def _look_at_end(self, lane: Lane) -> None:
        """See whether a lane without batches has anything left to do."""
        if lane.blocked is not None:
            self._fail(lane, lane.blocked)
        elif lane.phase is Phase.DONE:
            self._changed()

    def _source_failed(self, cursor: Cursor, error: OttlaError) -> None:
        lane = self._lanes.get(cursor.tp)
        if lane is not None and lane.cursor is cursor:
            self._fail(lane, error)

    # Requests

    def _send_requests(self, now: float) -> float:
        """Send what may be sent. Returns when something else may be."""
        links = self._loop.links
        next_at = now + _MARK_SECONDS
        by_leader: dict[int, list[Lane]] = {}
        wall_time = time.time()
        for target, lane in list(self._busy.items()):
            if lane.is_outdated(now, wall_time):
                self._restart(lane)  # this process was frozen: brokers may have forgotten who is shut out
                continue
            if lane.sendable(now) is None:
                if lane.resume_at > now:
                    next_at = min(next_at, lane.resume_at)
                continue
            ready_at = self._throttle.ready_at(target.topic)
            if ready_at > now:
                next_at = min(next_at, ready_at)
                continue
            by_leader.setdefault(self._leaders.of(target), []).append(lane)
        for leader, lanes in by_leader.items():
            link = None if leader == UNKNOWN else links.get(leader)
            if link is None:
                for lane in lanes:
                    self._leaders.doubt(lane.target)
            elif not link.is_up:
                links.connect(link, now)
            else:
                while link.has_room and self._send(link, lanes, now):
                    pass
        return next_at

    def _send(self, link: Link, lanes: Sequence[Lane], now: float) -> bool:
        """Send one request with a batch of each lane that has one. Returns whether there was any."""
        connection = link.connection
        assert connection is not None
        try:
            version = connection.version(wire.API_KEY, highest=wire.BY_ID)
        except OttlaError as error:  # a broker that is too old: no retry changes that
            for lane in lanes:
                self._fail(lane, error)
            return False
        batches: list[_Sent] = []
        size = 0
        for lane in self._policy.by_priority(lanes):
            outbound = lane.sendable(now) if self._throttle.ready_at(lane.target.topic) <= now else None
            if outbound is None or lane.term is None:
                continue
            if batches and size + outbound.size_bytes > _REQUEST_BYTES:
                continue
            size += outbound.size_bytes
            batches.append(_Sent(lane, outbound, lane.term.identity))
            lane.sent(outbound, now, time.time())
            self._throttle.spend(lane.target.topic, outbound.size_bytes, now)
        if not batches:
            return False
        seconds = self._cluster.timeouts.request
        # By id, a topic that was created again takes nothing: taking over judges that before anything is in it.
        ids = _target_ids(batches) if version >= wire.BY_ID else None
        body = wire.produce_request(
            {sent.lane.target: sent.outbound.parts() for sent in batches},
            acks=_ALL_REPLICAS,
            timeout_ms=int(seconds * 1000),
            topic_ids=ids,
        )
        version = wire.BY_ID if ids is not None else min(version, wire.HIGHEST_VERSION)
        self._loop.request(_Request(batches, ids), link, wire.API_KEY, version, body, seconds=seconds)
        return True

    def _handle(self, answer: Answer[_Request], now: float) -> None:
        request = answer.request
        if answer.error is not None:
            self._retry_all(request, answer.error, now)
            return
        try:
            rows = wire.produce_response(answer.body, topic_ids=request.topic_ids)
            produced = {TopicPartition(row.topic, row.partition): row for row in rows}
        except WireError as error:
            self._loop.distrust(answer.link, error)
            self._retry_all(request, error, now)
            return
        for sent in request.batches:
            lane = sent.lane
            if lane.term is None or lane.term.identity != sent.identity:
                continue
            row = produced.get(lane.target)
            if row is None:
                missing = BrokerError(
                    int(ErrorCode.unknown_server_error), f"writing {lane.target}", "not in the response"
                )
                lane.retry(sent.outbound, missing, now, resume_at=now + self._backoff(lane))
            elif row.error_code:
                self._refused(lane, sent.outbound, row, now)
            else:
                self._accepted(lane, sent.outbound, row.base_offset)

    def _accepted(self, lane: Lane, outbound: Outbound, base_offset: int) -> None:
        if lane.is_too_low(outbound, base_offset):  # the log is not the one we knew: taking over judges that
            self._restart(lane)
            return
        foreign = lane.counts.foreign
        self._release(lane.accept(outbound, base_offset))
        if lane.counts.foreign > foreign:
            detail = f"{lane.counts.foreign - foreign:,} offsets before {base_offset} are not ours"
            try:
                found = [Finding(Fault.FOREIGN_WRITER, detail)]
                (fault,) = self._policy.judge(lane.source, lane.target, found)
            except MirrorError as error:
                self._fail(lane, error)
                return
            self._accept_fault(lane, fault)
        cursor = lane.cursor
        if cursor is not None and cursor.paused and lane.waiting_bytes <= _LANE_BYTES // 2:
            self._fetcher.resume(cursor)
        if not lane.queue:
            self._busy.pop(lane.target, None)
            self._look_at_end(lane)

    def _refused(self, lane: Lane, outbound: Outbound, row: wire.Produced, now: float) -> None:
        error = BrokerError(row.error_code, f"mirroring {lane.source} to {lane.target}", row.message)
        match lane.verdict_on(outbound, row.error_code):
            case Verdict.RETRY:
                leader = row.leader
                if leader is not None and self._leaders.moved(lane.target, leader=leader.id, epoch=leader.epoch):
                    lane.retry(outbound, error, now, resume_at=now)
                    return
                if error.row.refresh:
                    self._leaders.doubt(lane.target)
                if not self._is_intact(lane, outbound, error):
                    return
                lane.retry(outbound, error, now, resume_at=now + self._backoff(lane))
            case Verdict.TAKE_OVER:
                lane.error = error
                self._restart(lane)
            case Verdict.FENCED:
                reason = f"another mirror of link {self._journal.link} has taken over {lane.target}"
                self._fail(lane, Fenced(reason, records=0, cause=error))
            case Verdict.FAIL:
                self._fail(lane, error)

    def _is_intact(self, lane: Lane, outbound: Outbound, error: BrokerError) -> bool:
        """Whether a batch that the broker calls corrupt was intact at the source. Fails the lane if it was not."""
        if error.code is not ErrorCode.corrupt_message:
            return True
        try:
            outbound.original.verify()
        except WireError as damage:
            self._fail(lane, copied(damage))
            return False
        return True

    def _retry_all(self, request: _Request, error: OttlaError, now: float) -> None:
        for sent in request.batches:
            lane = sent.lane
            self._leaders.doubt(lane.target)
            if lane.term is not None and lane.term.identity == sent.identity:
                lane.retry(sent.outbound, error, now, resume_at=now + self._backoff(lane))

    def _backoff(self, lane: Lane) -> float:
        return self._cluster.retry.wait(lane.failures + 1, self._loop.chance.random())


def _target_ids(batches: Iterable[_Sent]) -> dict[str, UUID] | None:
    """Return the ids of the topics that the batches are meant for; None if one of them is not known."""
    ids: dict[str, UUID] = {}
    for sent in batches:
        target_id = None if sent.lane.term is None else sent.lane.term.target_id
        if target_id is None or ids.setdefault(sent.lane.target.topic, target_id) != target_id:
            return None
    return ids


def _is_of_another_topic(lane: Lane, piece: Piece) -> bool:
    """Whether a piece is of a topic that was created again since the term began."""
    known = None if lane.term is None else lane.term.source_id
    return known is not None and piece.topic_id is not None and piece.topic_id != known
