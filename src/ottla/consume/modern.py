"""Membership by the protocol of KIP-848: the broker assigns, and one heartbeat carries everything both ways.

Time, answers and metadata come in; heartbeats to send, lookups and rests go out, and what the group decides goes into
the holdings. Pure: no socket, no clock, no thread.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from math import inf
from typing import Any
from uuid import UUID

from ottla.consume.options import GroupOptions
from ottla.consume.ownership import NOTHING, OwnedPartitions
from ottla.consume.steps import PATIENCE, Ask, Look, Pace, Rest, Step, Waits, refusal
from ottla.errors import ErrorCode, OttlaError
from ottla.model import TopicPartition
from ottla.net import Refresh, Topic

HEARTBEAT = 68
_LEAVING, _LEAVING_TO_RETURN = -1, -2
_FENCED = {ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch, ErrorCode.stale_member_epoch}
_FIRST_INTERVAL = 5.0
"""Seconds; what brokers have by default, until one says otherwise."""
_IMPATIENT_INTERVAL, _IMPATIENT_TIMES = 0.5, 10
"""A new member that got nothing asks again soon, a few times: brokers put off an assignment by about a second when they
have just made another."""


class _Phase(Enum):
    OUT = "no member, and not trying to be one"
    IN = "a member, or on the way to be one"
    LEAVING = "saying goodbye"


@dataclass(frozen=True, slots=True)
class _Told:
    """What the broker has of this member. It keeps what a heartbeat leaves out."""

    topics: frozenset[str]
    owned: frozenset[tuple[UUID, int]]


class Modern:
    """A member whose id is made here (KIP-1082) and never changes."""

    def __init__(
        self,
        group: str,
        *,
        options: GroupOptions,
        holdings: OwnedPartitions,
        member_id: str,
        waits: Waits,
        seconds: float,
        lowest: int = 0,
    ) -> None:
        self.member_id = member_id
        self.notes: list[str] = []
        self._group = group
        self._options = options
        self._holdings = holdings
        self._waits = waits
        self._seconds = seconds
        self._lowest = lowest
        self._pace = Pace(waits, session_timeout=options.session_timeout)
        self._phase = _Phase.OUT
        self._polled_before = -inf
        self._epoch = 0
        self._topics: frozenset[str] = frozenset()
        self._interval = _FIRST_INTERVAL
        self._due = -inf
        self._told: _Told | None = None
        self._telling: _Told | None = None
        self._target: dict[UUID, frozenset[int]] = {}
        self._names: dict[UUID, str] = {}
        self._ids: dict[str, UUID] = {}  # under which id the partitions of a name were given
        self._looks = 0
        self._look_at = -inf
        self._waited = 0  # answers in a row that gave it nothing
        self._had_some = False
        self._taken_since: float | None = None

    @property
    def generation(self) -> int:
        """The member epoch, -1 while it is no member."""
        return self._epoch if self._phase is _Phase.IN and self._epoch > 0 else -1

    def step(self, now: float, *, topics: frozenset[str], polled: float) -> Step:
        """What to do next."""
        poll_over = polled + self._options.max_poll_interval
        if self._phase is _Phase.OUT:
            if not topics or polled <= self._polled_before:
                return Rest()
            self._enter()
        elif now >= poll_over:
            return self._expire(polled)
        elif self._epoch > 0 and now >= self._pace.session_over:
            self._start_over("the coordinator was not heard for as long as a session lasts")
        if not topics:
            self._target = {}
        self._resolve()
        if not topics and not self._holdings.claimed:
            return self._leave()
        return self._next(now, topics, poll_over)

    def _next(self, now: float, topics: frozenset[str], poll_over: float) -> Step:
        if now < self._pace.not_before:
            return Rest(min(self._pace.not_before, poll_over))
        look_at = self._look_at if self._unresolved() else inf
        if now >= look_at:
            self._looks += 1
            return Look(topics, Refresh.NOW if self._looks > 1 else Refresh.IF_STALE)
        self._topics = topics or self._topics
        news = _Told(self._topics, self._owned())
        if self._epoch == 0 or self._told != news or now >= self._due:
            return self._heartbeat(news)
        return Rest(min(self._due, poll_over, look_at))

    def answered(self, ask: Ask, response: Any, now: float) -> None:
        """Takes in what a heartbeat brought."""
        if self._phase is _Phase.LEAVING:
            self._phase = _Phase.OUT
            return
        # A member that was in finds its group deleted: that is the same. At the door it means a group of another kind.
        is_gone = self._epoch > 0 and response.error_code is ErrorCode.group_id_not_found
        if response.error_code in _FENCED or is_gone:
            self._start_over(f"the coordinator does not know this member any more ({response.error_code.name.upper()})")
            self._pace.stumbled(now)
            return
        error = refusal(ask, response)
        if error is None:
            self._welcome(response, now)
        elif error.code is ErrorCode.unreleased_instance_id and self._may_be_released(now):
            self._pace.stumbled(now)
        else:
            self.failed(ask, error, now)

    def learned(self, topics: Collection[Topic], now: float) -> None:
        """Takes in the ids of topics."""
        self._names.update({topic.id: topic.name for topic in topics if topic.id is not None})
        self._look_at = now + self._waits(self._looks)
        self._resolve()

    def failed(self, step: Ask | Look, error: OttlaError, now: float) -> None:
        """Tries again later, unless that would only repeat the error."""
        if self._phase is _Phase.LEAVING:
            self._phase = _Phase.OUT
            return
        if isinstance(step, Ask):
            self._told = None  # the broker has it or not: say everything again
        self._pace.failed(error, now)

    def farewell(self) -> Ask | None:
        """The heartbeat that leaves; a static member says that it comes back."""
        if self._phase is _Phase.OUT or (self._epoch == 0 and self._telling is None):
            return None
        epoch = _LEAVING if self._options.instance_id is None else _LEAVING_TO_RETURN
        return self._ask("leaving", epoch, {"topic_partitions": None}, PATIENCE)

    def _enter(self) -> None:
        self._phase = _Phase.IN
        self._epoch = 0
        self._target = {}
        self._told = self._telling = None
        self._waited, self._had_some = 0, False

    def _start_over(self, why: str) -> None:
        self.notes.append(f"{why}: {len(self._holdings.claimed)} partitions are lost, joining again")
        self._holdings.lose()
        self._epoch = 0
        self._target = {}
        self._told = None

    def _expire(self, polled: float) -> Step:
        limit = self._options.max_poll_interval
        self.notes.append(f"no records were asked for in {limit:g} s (max_poll_interval): leaving until they are")
        self._holdings.lose()
        self._polled_before = polled
        return self._leave()

    def _leave(self) -> Step:
        goodbye = self.farewell()
        self._phase = _Phase.OUT if goodbye is None else _Phase.LEAVING
        return goodbye or Rest()

    def _heartbeat(self, news: _Told) -> Ask:
        told = None if self._epoch == 0 else self._told
        self._telling = news if self._epoch > 0 else _Told(news.topics, frozenset())
        fields: dict[str, Any] = {"topic_partitions": None}
        if told is None or told.owned != news.owned:
            fields["topic_partitions"] = _by_id(self._telling.owned)
        if told is None or told.topics != news.topics:
            fields["subscribed_topic_names"] = sorted(news.topics)
        if told is None:
            fields |= {
                "instance_id": self._options.instance_id,
                "rack_id": self._options.rack,
                "rebalance_timeout": timedelta(seconds=self._options.max_poll_interval),
                "server_assignor": self._options.server_assignor,
            }
        return self._ask("joining" if self._epoch == 0 else "heartbeat in", self._epoch, fields, self._seconds)

    def _ask(self, verb: str, epoch: int, fields: dict[str, Any], seconds: float) -> Ask:
        who = {"group_id": self._group, "member_id": self.member_id, "member_epoch": epoch}
        if epoch == _LEAVING_TO_RETURN:
            who["instance_id"] = self._options.instance_id or ""
        return Ask(HEARTBEAT, f"{verb} group {self._group}", who | fields, seconds, self._lowest)

    def _welcome(self, response: Any, now: float) -> None:
        self._pace.succeeded(now)
        if self._epoch == 0:
            self.notes.append(f"joined as member {self.member_id}, epoch {response.member_epoch}")
        self._told = self._telling
        self._taken_since = None
        self._epoch = int(response.member_epoch)
        self._interval = response.heartbeat_interval.total_seconds()
        if response.assignment is not None:
            topics = response.assignment.topic_partitions
            self._target = {topic.topic_id: frozenset(map(int, topic.partitions)) for topic in topics}
            self._looks, self._look_at = 0, -inf
            self._resolve()
        self._waited = 0 if self._target else self._waited + 1
        impatient = 0 < self._waited <= _IMPATIENT_TIMES and not self._had_some
        self._had_some |= bool(self._target)
        self._due = now + (min(self._interval, _IMPATIENT_INTERVAL) if impatient else self._interval)

    def _may_be_released(self, now: float) -> bool:
        """The member that has this instance id may just have died: it is out when its session is over."""
        self._taken_since = now if self._taken_since is None else self._taken_since
        return now - self._taken_since < self._options.session_timeout + PATIENCE

    def _unresolved(self) -> bool:
        return any(topic_id not in self._names for topic_id in self._target)

    def _resolve(self) -> None:
        """Offers what was given, by name. Partitions of a topic that was created anew are others than before: those are
        let go of first."""
        offered = NOTHING
        held = self._holdings.claimed
        for topic_id, indices in self._target.items():
            name = self._names.get(topic_id)
            if name is None:
                continue
            if self._ids.get(name, topic_id) != topic_id and any(one.topic == name for one in held):
                continue
            self._ids[name] = topic_id
            offered |= {TopicPartition(name, index) for index in indices}
        self._holdings.assign(offered)

    def _owned(self) -> frozenset[tuple[UUID, int]]:
        return frozenset((self._ids[p.topic], p.partition) for p in self._holdings.claimed if p.topic in self._ids)


def _by_id(owned: Collection[tuple[UUID, int]]) -> list[dict[str, Any]]:
    topics: dict[UUID, list[int]] = {}
    for topic_id, index in sorted(owned):
        topics.setdefault(topic_id, []).append(index)
    return [{"topic_id": topic_id, "partitions": indices} for topic_id, indices in topics.items()]
