"""Group membership by the classic protocol, as a state machine.

All members join, the broker elects one of them leader, the leader assigns partitions, and each member syncs to get its
own. Every change of the group repeats that. Time, responses and metadata come in; requests, metadata lookups and rests
go out, and the group's decisions go into the `OwnedPartitions`. Pure: no socket, no clock, no thread.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from math import inf
from typing import Any

from ottla.consume.classic_leader import ClassicLeader
from ottla.consume.classic_messages import JOIN, SYNC, ClassicRequests, MemberSubscription, read_assignment
from ottla.consume.options import GroupOptions
from ottla.consume.ownership import NOTHING, OwnedPartitions
from ottla.consume.steps import Ask, Look, Pace, Rest, Step, Waits, poll_missed, refusal
from ottla.errors import BrokerError, ErrorCode, OttlaError
from ottla.net import Refresh, Topic

_MARGIN = 0.1
"""Fraction of the rebalance timeout kept back for the request itself if the program does not release partitions."""


class _Phase(Enum):
    OUT = "not a member, and not trying to be one"
    LEAVING = "leaving the group"
    JOIN = "must join as soon as it has released what it must release"
    LEAD = "leader: must look up the topics and assign partitions"
    SYNC = "must ask for its assignment"
    STABLE = "has its assignment, sends heartbeats"


class Classic:
    """A member of a classic group. Implements `steps.Machine`."""

    def __init__(
        self,
        group: str,
        *,
        options: GroupOptions,
        ownership: OwnedPartitions,
        waits: Waits,
        seconds: float,
        metadata_age: float,
    ) -> None:
        self.member_id = ""
        self.notes: list[str] = []
        self._requests = ClassicRequests(group, options)
        self._options = options
        self._ownership = ownership
        self._seconds = seconds
        self._metadata_age = metadata_age
        self._pace = Pace(waits, session_timeout=options.session_timeout)
        self._phase = _Phase.OUT
        self._polled_before = -inf
        """The last poll before it left for want of polls. Only a newer one lets it join again."""
        self._generation = -1
        self._protocol = ""
        self._reason = "new member"
        self._joined_with: frozenset[str] = frozenset()
        self._joining_with: frozenset[str] = frozenset()
        self._must_release_by: float | None = None
        """When partitions that are not released count as lost: the others wait for this member to join."""
        self._due = -inf
        self._leader: ClassicLeader | None = None
        self._assignments: Mapping[str, bytes] = {}
        self._refresh_at = inf
        """When a leader looks up the partition counts again."""
        self._claimed = NOTHING
        """What it said it owns when it joined last."""
        self._must_release = False
        """Whether it joins again once revoked partitions are released, so that others get them (KIP-429)."""

    @property
    def generation(self) -> int:
        """The generation, -1 while not a member."""
        return self._generation

    def step(self, now: float, *, topics: frozenset[str], polled: float) -> Step:
        """Return the next step."""
        poll_over = polled + self._options.max_poll_interval
        if self._phase is _Phase.OUT:
            if not topics or polled <= self._polled_before:
                return Rest()
            self._join_again("new member")
        elif now >= poll_over:
            return self._expire(polled)
        elif self._generation >= 0 and now >= self._pace.session_over:
            self._lose("no response from the coordinator within the session timeout")
        if not topics:
            self._ownership.assign(NOTHING)
            if not self._ownership.claimed:
                return self._leave()
        if now < self._pace.not_before:
            return Rest(min(self._pace.not_before, poll_over))
        return self._next(now, topics, poll_over)

    def _next(self, now: float, topics: frozenset[str], poll_over: float) -> Step:
        if self._phase is _Phase.STABLE:
            self._reconsider(topics)
        if self._phase is _Phase.JOIN and topics:
            return self._release(now, poll_over) or self._join(topics, now, poll_over)
        if self._phase is _Phase.LEAD:
            return self._look()
        if self._phase is _Phase.SYNC:
            return self._sync(poll_over - now)
        return self._stay(now, poll_over)

    def answered(self, ask: Ask, response: Any, now: float) -> None:
        """Process a response of the coordinator."""
        if self._phase is _Phase.LEAVING:
            self._out()
            return
        error = refusal(ask, response)
        if error is not None:
            self._refused(ask, error, response, now)
            return
        self._pace.succeeded(now)
        if ask.api == JOIN:
            self._joined(response)
        elif ask.api == SYNC:
            self._synced(response, now)
        self._due = now + self._options.heartbeat_interval

    def learned(self, topics: Collection[Topic], now: float) -> None:
        """Process the topics' partition counts: the leader assigns, or rejoins if the counts changed."""
        assert self._leader is not None
        self._refresh_at = now + self._metadata_age
        if self._phase is _Phase.LEAD:
            self._assignments = self._leader.assignments(topics)
            self._phase = _Phase.SYNC
        elif self._leader.differs(topics):
            self._join_again("the topics' partitions have changed")

    def failed(self, step: Ask | Look, error: OttlaError, now: float) -> None:
        """Retry later. Raises the error if a retry would only repeat it."""
        if self._phase is _Phase.LEAVING:
            self._out()
            return
        self._pace.failed(error, now)

    def farewell(self) -> Ask | None:
        """Return the request that leaves. A static member does not send it: it may return in time (KIP-345)."""
        if self._phase in (_Phase.OUT, _Phase.LEAVING) or not self.member_id or self._options.instance_id is not None:
            return None
        return self._requests.leave(self.member_id, reason="the consumer was closed, or asked for no records")

    # -- leaving

    def _expire(self, polled: float) -> Step:
        self.notes.append(poll_missed(self._options.max_poll_interval))
        self._ownership.lose()
        self._polled_before = polled
        return self._leave()

    def _leave(self) -> Step:
        leave_request = self.farewell()
        if leave_request is None:
            self._out()
            return Rest()
        self._phase = _Phase.LEAVING
        return leave_request

    def _out(self) -> None:
        self._phase = _Phase.OUT
        self.member_id, self._generation = "", -1

    def _lose(self, why: str) -> None:
        self.notes.append(f"{why}: lost {len(self._ownership.claimed)} partitions, rejoining")
        self._ownership.lose()
        self._generation = -1
        self._join_again("lost its membership")

    # -- joining

    def _join_again(self, reason: str) -> None:
        self._phase = _Phase.JOIN
        self._reason = reason
        self._must_release_by = None

    def _release(self, now: float, poll_over: float) -> Step | None:
        """Send heartbeats until everything is released that must be released before joining; None once it may join."""
        if self._options.keeps_while_joining:
            return None
        self._ownership.assign(NOTHING)
        if not self._ownership.claimed:
            return None
        if self._must_release_by is None:
            share = self._options.max_poll_interval * (1 - _MARGIN)
            self._must_release_by = now + max(0.0, share - self._options.heartbeat_interval)
        if now >= self._must_release_by:
            self.notes.append(f"{len(self._ownership.claimed)} partitions were not released in time and are lost")
            self._ownership.lose()
            return None
        if self._generation >= 0 and now >= self._due:
            return self._heartbeat()
        due = self._due if self._generation >= 0 else inf
        return Rest(min(due, self._must_release_by, poll_over))

    def _join(self, topics: frozenset[str], now: float, poll_over: float) -> Ask:
        self._joining_with = topics
        claimed = self._claimed = self._ownership.claimed
        # A member that claims nothing sends the same bytes each time, so the broker need not start a rebalance.
        generation = self._generation if claimed else -1
        subscription = MemberSubscription(topics, claimed, generation, self._options.rack)
        # However slow the other members are, wait no longer than this program may go without a poll.
        return self._requests.join(self.member_id, subscription, reason=self._reason, seconds=poll_over - now)

    def _joined(self, response: Any) -> None:
        self.member_id = response.member_id
        self._generation = int(response.generation_id)
        self._protocol = response.protocol_name or ""
        self._joined_with = self._joining_with
        self._assignments = {}
        self._leader = None
        self._refresh_at = inf
        self._phase = _Phase.SYNC
        if response.leader == self.member_id:
            self._leader = ClassicLeader(self._protocol, response.members)
            self.notes += self._leader.notes
            if getattr(response, "skip_assignment", False):  # KIP-814: a static leader returned, nothing changes
                self._refresh_at = -inf
            else:
                self._phase = _Phase.LEAD

    def _look(self) -> Look:
        assert self._leader is not None
        return Look(self._leader.topics, Refresh.NOW)

    # -- the assignment

    def _sync(self, seconds: float) -> Ask:
        return self._requests.sync(
            self.member_id, self._generation, protocol=self._protocol, assignments=self._assignments, seconds=seconds
        )

    def _synced(self, response: Any, now: float) -> None:
        assigned = read_assignment(bytes(response.assignment))
        usable = frozenset(partition for partition in assigned if partition.topic in self._joined_with)
        self._ownership.assign(usable)
        self._phase = _Phase.STABLE
        role = "leader" if self._leader is not None else "member"
        count = len(self._ownership.assigned)
        where = f"generation {self._generation} ({self._protocol})"
        self.notes.append(f"{role} {self.member_id} has {count} partitions in {where}")
        # This includes what was claimed but never read: its new owner waits until this member stops claiming it.
        self._must_release = bool(self._claimed - usable)
        if usable != assigned:  # A static member returned with a different subscription.
            self._join_again("got partitions of other topics")
            self._pace.stumbled(now)

    # -- stable

    def _reconsider(self, topics: frozenset[str]) -> None:
        if topics and topics != self._joined_with:
            self._join_again("subscription changed")
        elif self._must_release and not self._ownership.unreleased:
            self._join_again("released revoked partitions")

    def _stay(self, now: float, poll_over: float) -> Step:
        if now >= self._due:
            return self._heartbeat()
        refresh_at = self._refresh_at if self._leader is not None else inf
        if now >= refresh_at:
            return self._look()
        return Rest(min(self._due, refresh_at, poll_over))

    def _heartbeat(self) -> Ask:
        return self._requests.heartbeat(self.member_id, self._generation, seconds=self._seconds)

    # -- errors

    def _refused(self, ask: Ask, error: BrokerError, response: Any, now: float) -> None:
        match error.code:
            case ErrorCode.member_id_required:
                if self.member_id or not response.member_id:  # It has an id, or gets none: this could repeat forever.
                    self._pace.stumbled(now)
                self.member_id = response.member_id  # KIP-394: join again with this id
            case ErrorCode.rebalance_in_progress:
                self._pace.succeeded(now)
                self._due = now + self._options.heartbeat_interval
                if self._phase is not _Phase.JOIN:
                    self._join_again("the group is rebalancing")
                if ask.api in (JOIN, SYNC):
                    self._pace.stumbled(now)
            case ErrorCode.unknown_member_id:
                self.member_id = ""
                self._lose("the coordinator no longer knows this member")
                self._pace.stumbled(now)
            case ErrorCode.illegal_generation:
                self._lose("the group moved on without this member")
                if ask.api in (JOIN, SYNC):
                    self._pace.stumbled(now)
            case _:
                self.failed(ask, error, now)
