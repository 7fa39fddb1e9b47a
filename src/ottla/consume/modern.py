"""Group membership by the protocol of KIP-848, as a state machine: the broker assigns, and one heartbeat carries all.

Time, responses and metadata come in; heartbeats, metadata lookups and rests go out, and the group's decisions go into
the `OwnedPartitions`. Pure: no socket, no clock, no thread.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from math import inf
from typing import Any
from uuid import UUID

from ottla.consume.options import GroupOptions
from ottla.consume.ownership import NOTHING, OwnedPartitions
from ottla.consume.steps import PATIENCE, Ask, Look, Pace, Rest, Step, Waits, poll_missed, refusal
from ottla.errors import ErrorCode, OttlaError
from ottla.model import TopicPartition
from ottla.net import Refresh, Topic

HEARTBEAT = 68
_LEAVING, _LEAVING_TO_RETURN = -1, -2
_FENCED = {ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch, ErrorCode.stale_member_epoch}
_FIRST_INTERVAL = 5.0
"""Seconds between heartbeats until the broker sends its own interval; this is the brokers' default."""
_IMPATIENT_INTERVAL, _IMPATIENT_TIMES = 0.5, 10
"""Seconds and number of early heartbeats of a new member without partitions: brokers delay an assignment by about a
second if they have just made another one."""


class _Phase(Enum):
    OUT = "not a member, and not trying to be one"
    IN = "a member, or joining"
    LEAVING = "leaving the group"


@dataclass(frozen=True, slots=True)
class _Reported:
    """What the broker knows about this member. It keeps the values that a heartbeat omits."""

    topics: frozenset[str]
    owned: frozenset[tuple[UUID, int]]


class Modern:
    """A member of a KIP-848 group. Implements `steps.Machine`. It makes its own id (KIP-1082), which never changes."""

    def __init__(
        self,
        group: str,
        *,
        options: GroupOptions,
        ownership: OwnedPartitions,
        member_id: str,
        waits: Waits,
        seconds: float,
        lowest: int = 0,
    ) -> None:
        self.member_id = member_id
        self.notes: list[str] = []
        self._group = group
        self._options = options
        self._ownership = ownership
        self._waits = waits
        self._seconds = seconds
        self._lowest = lowest
        self._pace = Pace(waits, session_timeout=options.session_timeout)
        self._phase = _Phase.OUT
        self._polled_before = -inf
        """The last poll before it left for want of polls. Only a newer one lets it join again."""
        self._epoch = 0
        self._topics: frozenset[str] = frozenset()
        self._interval = _FIRST_INTERVAL
        self._due = -inf
        """When the next heartbeat is due, even if there is nothing new to report."""
        self._reported: _Reported | None = None
        """What the broker has confirmed to know; None if that is unknown."""
        self._reporting: _Reported | None = None
        """What the last heartbeat said. It counts as reported once that is answered."""
        self._must_list_owned = False
        """Whether the broker waits for a list of partitions, though it is the one that was reported before."""
        self._target: dict[UUID, frozenset[int]] = {}
        self._names: dict[UUID, str] = {}
        self._ids: dict[str, UUID] = {}  # The topic id under which the partitions of a name were assigned.
        self._lookups = 0
        self._lookup_at = -inf
        self._empty_responses = 0  # Consecutive responses without partitions.
        self._had_partitions = False
        self._instance_taken_since: float | None = None

    @property
    def generation(self) -> int:
        """The member epoch, -1 while not a member."""
        return self._epoch if self._phase is _Phase.IN and self._epoch > 0 else -1

    def step(self, now: float, *, topics: frozenset[str], polled: float) -> Step:
        """Return the next step."""
        poll_over = polled + self._options.max_poll_interval
        if self._phase is _Phase.OUT:
            if not topics or polled <= self._polled_before:
                return Rest()
            self._enter()
        elif now >= poll_over:
            return self._expire(polled)
        elif self._epoch > 0 and now >= self._pace.session_over:
            self._start_over("no response from the coordinator within the session timeout")
        if not topics:
            self._target = {}
        self._resolve()
        if not topics and not self._ownership.claimed:
            return self._leave()
        return self._next(now, topics, poll_over)

    def _next(self, now: float, topics: frozenset[str], poll_over: float) -> Step:
        if now < self._pace.not_before:
            return Rest(min(self._pace.not_before, poll_over))
        lookup_at = self._lookup_at if self._unresolved() else inf
        if now >= lookup_at:
            self._lookups += 1
            # Cached metadata usually knows the id. If not, the topic is newer than the cache.
            return Look(topics, Refresh.NOW if self._lookups > 1 else Refresh.IF_STALE)
        self._topics = topics or self._topics
        state = _Reported(self._topics, self._owned())
        if self._epoch == 0 or self._reported != state or self._must_list_owned or now >= self._due:
            return self._heartbeat(state)
        return Rest(min(self._due, poll_over, lookup_at))

    def answered(self, ask: Ask, response: Any, now: float) -> None:
        """Process the response to a heartbeat."""
        if self._phase is _Phase.LEAVING:
            self._phase = _Phase.OUT
            return
        # For a member, a missing group was deleted: same as fenced. While joining, it is a group of another type.
        is_gone = self._epoch > 0 and response.error_code is ErrorCode.group_id_not_found
        if response.error_code in _FENCED or is_gone:
            self._start_over(f"the coordinator no longer knows this member ({response.error_code.name.upper()})")
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
        """Process the ids of topics."""
        self._names.update({topic.id: topic.name for topic in topics if topic.id is not None})
        self._lookup_at = now + self._waits(self._lookups)
        self._resolve()

    def failed(self, step: Ask | Look, error: OttlaError, now: float) -> None:
        """Retry later. Raises the error if a retry would only repeat it."""
        if self._phase is _Phase.LEAVING:
            self._phase = _Phase.OUT
            return
        if isinstance(step, Ask):
            self._reported = None  # It is unknown whether the broker got it, so report everything again.
        self._pace.failed(error, now)

    def farewell(self) -> Ask | None:
        """Return the heartbeat that leaves; that of a static member says that it will return."""
        if self._phase is _Phase.OUT or (self._epoch == 0 and self._reporting is None):
            return None
        epoch = _LEAVING if self._options.instance_id is None else _LEAVING_TO_RETURN
        return self._ask("leaving", epoch, {"topic_partitions": None}, PATIENCE)

    def _enter(self) -> None:
        self._phase = _Phase.IN
        self._epoch = 0
        self._target = {}
        self._reported = self._reporting = None
        self._empty_responses, self._had_partitions = 0, False

    def _start_over(self, why: str) -> None:
        self.notes.append(f"{why}: lost {len(self._ownership.claimed)} partitions, rejoining")
        self._ownership.lose()
        self._epoch = 0
        self._target = {}
        self._reported = None

    def _expire(self, polled: float) -> Step:
        self.notes.append(poll_missed(self._options.max_poll_interval))
        self._ownership.lose()
        self._polled_before = polled
        return self._leave()

    def _leave(self) -> Step:
        leave_request = self.farewell()
        self._phase = _Phase.OUT if leave_request is None else _Phase.LEAVING
        return leave_request or Rest()

    def _heartbeat(self, state: _Reported) -> Ask:
        reported = None if self._epoch == 0 else self._reported
        # A member that joins owns nothing: brokers refuse one that says otherwise.
        self._reporting = state if self._epoch > 0 else _Reported(state.topics, frozenset())
        fields: dict[str, Any] = {"topic_partitions": None}  # null: as reported before
        if reported is None or reported.owned != state.owned or self._must_list_owned:
            fields["topic_partitions"] = _by_id(self._reporting.owned)
        if reported is None or reported.topics != state.topics:
            fields["subscribed_topic_names"] = sorted(state.topics)
        if reported is None:
            fields |= {
                "instance_id": self._options.instance_id,
                "rack_id": self._options.rack,
                "rebalance_timeout": timedelta(seconds=self._options.max_poll_interval),
                "server_assignor": self._options.server_assignor,
            }
        return self._ask("joining" if self._epoch == 0 else "heartbeat in", self._epoch, fields, self._seconds)

    def _ask(self, verb: str, epoch: int, fields: dict[str, Any], seconds: float) -> Ask:
        member = {"group_id": self._group, "member_id": self.member_id, "member_epoch": epoch}
        if epoch == _LEAVING_TO_RETURN:
            member["instance_id"] = self._options.instance_id or ""
        return Ask(HEARTBEAT, f"{verb} group {self._group}", member | fields, seconds, self._lowest)

    def _welcome(self, response: Any, now: float) -> None:
        self._pace.succeeded(now)
        if self._epoch == 0:
            self.notes.append(f"joined as member {self.member_id}, epoch {response.member_epoch}")
        self._reported = self._reporting
        self._must_list_owned = False
        self._instance_taken_since = None
        self._epoch = int(response.member_epoch)
        self._interval = response.heartbeat_interval.total_seconds()
        if response.assignment is not None:  # null: the target has not changed
            topics = response.assignment.topic_partitions
            target = {topic.topic_id: frozenset(map(int, topic.partitions)) for topic in topics}
            # The broker waits for a list without what it takes back, also if it has never been in one.
            gone = _pairs(self._target) - _pairs(target)
            self._must_list_owned = self._reported is not None and not gone <= self._reported.owned
            self._target = target
            self._lookups, self._lookup_at = 0, -inf
            self._resolve()
        self._empty_responses = 0 if self._target else self._empty_responses + 1
        impatient = 0 < self._empty_responses <= _IMPATIENT_TIMES and not self._had_partitions
        self._had_partitions |= bool(self._target)
        self._due = now + (min(self._interval, _IMPATIENT_INTERVAL) if impatient else self._interval)

    def _may_be_released(self, now: float) -> bool:
        """Return whether to keep trying: a dead member with the same instance id is removed after its session."""
        self._instance_taken_since = now if self._instance_taken_since is None else self._instance_taken_since
        return now - self._instance_taken_since < self._options.session_timeout + PATIENCE

    def _unresolved(self) -> bool:
        return any(topic_id not in self._names for topic_id in self._target)

    def _resolve(self) -> None:
        """Offer the assigned partitions by topic name.

        If a topic was deleted and created again, the partitions of the old topic must be released first.
        """
        offered = NOTHING
        claimed = self._ownership.claimed
        for topic_id, indices in self._target.items():
            name = self._names.get(topic_id)
            if name is None:
                continue
            if self._ids.get(name, topic_id) != topic_id and any(partition.topic == name for partition in claimed):
                continue
            self._ids[name] = topic_id
            offered |= {TopicPartition(name, index) for index in indices}
        self._ownership.assign(offered)

    def _owned(self) -> frozenset[tuple[UUID, int]]:
        return frozenset((self._ids[p.topic], p.partition) for p in self._ownership.claimed if p.topic in self._ids)


def _pairs(target: Mapping[UUID, Collection[int]]) -> frozenset[tuple[UUID, int]]:
    return frozenset((topic_id, index) for topic_id, indices in target.items() for index in indices)


def _by_id(owned: Collection[tuple[UUID, int]]) -> list[dict[str, Any]]:
    topics: dict[UUID, list[int]] = {}
    for topic_id, index in sorted(owned):
        topics.setdefault(topic_id, []).append(index)
    return [{"topic_id": topic_id, "partitions": indices} for topic_id, indices in topics.items()]
