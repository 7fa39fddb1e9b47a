"""Membership by the classic protocol: members join, one of them assigns, everybody gets his share, until the next time.

Time, answers and metadata come in; requests to send, lookups and rests go out, and what the group decides goes into
the holdings. Pure: no socket, no clock, no thread.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from math import inf
from typing import Any

from ottla.consume.classic_leader import ClassicLeader
from ottla.consume.classic_messages import MemberSubscription, read_assignment
from ottla.consume.classic_requests import JOIN, SYNC, ClassicRequests
from ottla.consume.options import GroupOptions
from ottla.consume.ownership import NOTHING, OwnedPartitions
from ottla.consume.steps import Ask, Look, Pace, Rest, Step, Waits, refusal
from ottla.errors import BrokerError, ErrorCode, OttlaError
from ottla.net import Refresh, Topic

_MARGIN = 0.1
"""The share of the rebalance timeout that is left for the request itself, when partitions are not let go of."""


class _Phase(Enum):
    OUT = "no member, and not trying to be one"
    LEAVING = "saying goodbye"
    JOIN = "must join, as soon as what has to be given up is given up"
    LEAD = "leader: must find out about the topics and assign"
    SYNC = "must ask for its share"
    STABLE = "has its share, sends heartbeats"


class Classic:
    """A member of a classic group."""

    def __init__(
        self,
        group: str,
        *,
        options: GroupOptions,
        holdings: OwnedPartitions,
        waits: Waits,
        seconds: float,
        metadata_age: float,
    ) -> None:
        self.member_id = ""
        self.notes: list[str] = []
        self._letters = ClassicRequests(group, options)
        self._options = options
        self._holdings = holdings
        self._seconds = seconds
        self._metadata_age = metadata_age
        self._pace = Pace(waits, session_timeout=options.session_timeout)
        self._phase = _Phase.OUT
        self._polled_before = -inf
        self._generation = -1
        self._protocol = ""
        self._reason = "new member"
        self._joined_with: frozenset[str] = frozenset()
        self._joining_with: frozenset[str] = frozenset()
        self._must_release_by: float | None = None
        self._due = -inf
        self._leading: ClassicLeader | None = None
        self._shares: Mapping[str, bytes] = {}
        self._look_at = inf
        self._claimed = NOTHING
        self._gives_up = False

    @property
    def generation(self) -> int:
        """-1 while it is no member."""
        return self._generation

    def step(self, now: float, *, topics: frozenset[str], polled: float) -> Step:
        """What to do next."""
        poll_over = polled + self._options.max_poll_interval
        if self._phase is _Phase.OUT:
            if not topics or polled <= self._polled_before:
                return Rest()
            self._join_again("new member")
        elif now >= poll_over:
            return self._expire(polled)
        elif self._generation >= 0 and now >= self._pace.session_over:
            self._lose("the coordinator was not heard for as long as a session lasts")
        if not topics:
            self._holdings.assign(NOTHING)
            if not self._holdings.claimed:
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
        """Takes in what the coordinator said."""
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
        """Takes in how many partitions topics have; the leader assigns, or joins again because there are others."""
        assert self._leading is not None
        self._look_at = now + self._metadata_age
        if self._phase is _Phase.LEAD:
            self._shares = self._leading.shares(topics)
            self._phase = _Phase.SYNC
        elif self._leading.differs(topics):
            self._join_again("the topics' partitions have changed")

    def failed(self, step: Ask | Look, error: OttlaError, now: float) -> None:
        """Tries again later, unless that would only repeat the error."""
        if self._phase is _Phase.LEAVING:
            self._out()
            return
        self._pace.failed(error, now)

    def farewell(self) -> Ask | None:
        """A static member does not leave: it may come back before its session is over (KIP-345)."""
        if self._phase in (_Phase.OUT, _Phase.LEAVING) or not self.member_id or self._options.instance_id is not None:
            return None
        return self._letters.leave(self.member_id, reason="the consumer was closed, or asked for no records")

    # -- going out

    def _expire(self, polled: float) -> Step:
        limit = self._options.max_poll_interval
        self.notes.append(f"no records were asked for in {limit:g} s (max_poll_interval): leaving until they are")
        self._holdings.lose()
        self._polled_before = polled
        return self._leave()

    def _leave(self) -> Step:
        goodbye = self.farewell()
        if goodbye is None:
            self._out()
            return Rest()
        self._phase = _Phase.LEAVING
        return goodbye

    def _out(self) -> None:
        self._phase = _Phase.OUT
        self.member_id, self._generation = "", -1

    def _lose(self, why: str) -> None:
        self.notes.append(f"{why}: {len(self._holdings.claimed)} partitions are lost, joining again")
        self._holdings.lose()
        self._generation = -1
        self._join_again("lost its place")

    # -- joining

    def _join_again(self, reason: str) -> None:
        self._phase = _Phase.JOIN
        self._reason = reason
        self._must_release_by = None

    def _release(self, now: float, poll_over: float) -> Step | None:
        """Heartbeats until everything is given up that must be before joining; None when it is time to join."""
        if self._options.keeps_while_joining:
            return None
        self._holdings.assign(NOTHING)
        if not self._holdings.claimed:
            return None
        if self._must_release_by is None:
            share = self._options.max_poll_interval * (1 - _MARGIN)
            self._must_release_by = now + max(0.0, share - self._options.heartbeat_interval)
        if now >= self._must_release_by:
            self.notes.append(f"{len(self._holdings.claimed)} partitions were not let go of in time and are lost")
            self._holdings.lose()
            return None
        if self._generation >= 0 and now >= self._due:
            return self._heartbeat()
        due = self._due if self._generation >= 0 else inf
        return Rest(min(due, self._must_release_by, poll_over))

    def _join(self, topics: frozenset[str], now: float, poll_over: float) -> Ask:
        self._joining_with = topics
        claimed = self._claimed = self._holdings.claimed
        # Who claims nothing says the same every time: a broker may then answer without disturbing the others.
        generation = self._generation if claimed else -1
        said = MemberSubscription(topics, claimed, generation, self._options.rack)
        # No longer than its own program may stay away, however slow the others are.
        return self._letters.join(self.member_id, said, reason=self._reason, seconds=poll_over - now)

    def _joined(self, response: Any) -> None:
        self.member_id = response.member_id
        self._generation = int(response.generation_id)
        self._protocol = response.protocol_name or ""
        self._joined_with = self._joining_with
        self._shares = {}
        self._leading = None
        self._look_at = inf
        self._phase = _Phase.SYNC
        if response.leader == self.member_id:
            self._leading = ClassicLeader(self._protocol, response.members)
            self.notes += self._leading.notes
            if getattr(response, "skip_assignment", False):  # KIP-814: a static leader came back, all stays as it is
                self._look_at = -inf
            else:
                self._phase = _Phase.LEAD

    def _look(self) -> Look:
        assert self._leading is not None
        return Look(self._leading.topics, Refresh.NOW)

    # -- the share

    def _sync(self, seconds: float) -> Ask:
        return self._letters.sync(
            self.member_id, self._generation, protocol=self._protocol, shares=self._shares, seconds=seconds
        )

    def _synced(self, response: Any, now: float) -> None:
        given = read_assignment(bytes(response.assignment))
        meant = frozenset(partition for partition in given if partition.topic in self._joined_with)
        self._holdings.assign(meant)
        self._phase = _Phase.STABLE
        role = "leader" if self._leading is not None else "member"
        count = len(self._holdings.assigned)
        where = f"generation {self._generation} ({self._protocol})"
        self.notes.append(f"{role} {self.member_id} has {count} partitions in {where}")
        # Also what was claimed and never in use: whoever is to have it waits until it is claimed no more.
        self._gives_up = bool(self._claimed - meant)
        if meant != given:  # a static member came back with other topics
            self._join_again("got partitions of other topics")
            self._pace.stumbled(now)

    # -- in between

    def _reconsider(self, topics: frozenset[str]) -> None:
        if topics and topics != self._joined_with:
            self._join_again("other topics")
        elif self._gives_up and not self._holdings.unreleased:
            self._join_again("let go of what others are to have")

    def _stay(self, now: float, poll_over: float) -> Step:
        if now >= self._due:
            return self._heartbeat()
        look_at = self._look_at if self._leading is not None else inf
        if now >= look_at:
            return self._look()
        return Rest(min(self._due, look_at, poll_over))

    def _heartbeat(self) -> Ask:
        return self._letters.heartbeat(self.member_id, self._generation, seconds=self._seconds)

    # -- refusals

    def _refused(self, ask: Ask, error: BrokerError, response: Any, now: float) -> None:
        match error.code:
            case ErrorCode.member_id_required:
                if self.member_id or not response.member_id:  # it has a name, or gets none: for ever, maybe
                    self._pace.stumbled(now)
                self.member_id = response.member_id  # KIP-394: come again with this name
            case ErrorCode.rebalance_in_progress:
                self._pace.succeeded(now)
                self._due = now + self._options.heartbeat_interval
                if self._phase is not _Phase.JOIN:
                    self._join_again("the group is changing")
                if ask.api in (JOIN, SYNC):
                    self._pace.stumbled(now)
            case ErrorCode.unknown_member_id:
                self.member_id = ""
                self._lose("the coordinator does not know this member any more")
                self._pace.stumbled(now)
            case ErrorCode.illegal_generation:
                self._lose("the group went on without this member")
                if ask.api in (JOIN, SYNC):
                    self._pace.stumbled(now)
            case _:
                self.failed(ask, error, now)
