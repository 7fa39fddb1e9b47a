"""The planner: looks at the logs and the store, and publishes what is new as units. One node of a group does this.

A cluster, a store and the group's settings come in; units go into the store. `planning` decides, this module asks and
tells. What cannot be planned holds up nothing else.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from ottla.admin.lookup import find_ranges
from ottla.engines.fleet import kafka_memory
from ottla.engines.fleet.first_seen import FirstSeen
from ottla.engines.fleet.kafka_memory import RememberedPosition
from ottla.engines.fleet.planning import Log, Misplaced, Round, Units, plan, portions
from ottla.engines.fleet.store import Store
from ottla.engines.fleet.units import LEAP, Lease, PartitionState, Snapshot, label
from ottla.errors import BrokerError, ErrorCode, LeaseLost, OttlaError
from ottla.events import (
    Event,
    PlanningFailed,
    PositionMisplaced,
    StoreWentBack,
    TopicReplaced,
    UnitsPlanned,
)
from ottla.fetch import bounds
from ottla.fetch.options import OnLost
from ottla.fetch.record_sizes import RecordSizes
from ottla.model import Isolation, TopicPartition
from ottla.net import Cluster
from ottla.net.deadline import Deadline

_log = logging.getLogger(__name__)
Tell = Callable[[Event], None]
Lanes = Mapping[TopicPartition, PartitionState]
Start = str | datetime
_REMEMBER_SECONDS = 1.0
_RENEW_SECONDS = 3600.0
"""Kafka forgets offsets that nobody commits for some days."""
_ASK_SECONDS = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a planner goes by."""

    group: str
    topics: tuple[str, ...] = ()
    """Those that this node was started with."""
    units: Units = field(default_factory=Units)
    start: Start = "latest"
    """Where a topic begins of which nothing is known."""
    on_lost: OnLost = OnLost.ERROR
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    commit_group: str | None = None


class _Found(NamedTuple):
    """What the brokers say."""

    ids: dict[str, str]
    partitions: dict[str, int]
    """How many each topic has."""
    logs: dict[TopicPartition, Log]


class Planner:
    """Plans for as long as its node has the right to."""

    def __init__(self, cluster: Cluster, store: Store, policy: Policy, tell: Tell) -> None:
        self._cluster = cluster
        self._store = store
        self._policy = policy
        self._tell = tell
        self._sizes = RecordSizes(cluster)
        self._remembered: dict[TopicPartition, RememberedPosition] = {}
        self._recalled: set[TopicPartition] = set()
        self._first_seen = FirstSeen(store)
        self._there: frozenset[TopicPartition] = frozenset()
        """Partitions that the brokers told of last."""
        self._last: Snapshot | None = None
        self._wanted: dict[str, str] = dict.fromkeys(policy.topics, "")
        """The topics that the group had last, as far as this node knows, and their ids."""
        self._remember_at = self._renew_at = 0.0
        self._kept: object = None
        self._told: dict[object, object] = {}
        self._halts: dict[str, str] = {}
        """Found in this round."""
        self.halted: dict[str, str] = {}
        """Partitions and topics that are not planned, and why, as the last round found."""

    def begin(self) -> None:
        """The right to plan is new: what others did in the meantime is not known."""
        self._recalled.clear()
        self._remembered.clear()
        self._first_seen.forget()
        self._last = None
        self._told.clear()

    def round(self, lease: Lease) -> bool:
        """Looks once and plans what is due, if anything is. Raises `LeaseLost` when somebody else plans by now."""
        self._halts = {}
        try:
            due = self._round(lease)
        except LeaseLost:
            raise
        except Exception as error:
            self._tell_failed(error)
            raise
        self.halted = self._halts
        self._told.pop("round", None)
        return bool(due.moves)

    def _round(self, lease: Lease) -> Round:
        seen = self._look(lease)
        self._wanted = dict(seen.topics)
        found = self._ask(seen)
        seen = self._check_topics(seen, found)
        lanes = {lane.at: lane for lane in seen.lanes}
        logs = {at: log for at, log in found.logs.items() if at.topic not in self._halts}
        self._recall(lanes, logs, seen.number)
        starts = self._starts(lanes, logs)
        sizes = self._sizes.of(
            list(found.ids), {at: log.start for at, log in logs.items()}, {at: log.stop for at, log in logs.items()}
        )
        known = {at: log for at, log in logs.items() if at in lanes or at in starts}
        policy = self._policy
        due = plan(known, lanes, starts.__getitem__, units=policy.units, on_lost=policy.on_lost, record_bytes=sizes)
        self._tell_misplaced(due)
        self._publish(lease, due)
        self._last, self._wanted = seen, dict(seen.topics)
        self._there = frozenset(logs)
        self._remember(lanes, seen)
        return due

    def _publish(self, lease: Lease, due: Round) -> None:
        """Step by step, each of which stands for itself: what a later one does not get to is planned in the next
        round."""
        units = offsets = 0
        try:
            for moves in portions(due.moves):
                if not self._store.plan(lease, moves):
                    raise LeaseLost(f"group {self._policy.group} is planned by another node by now")
                units += sum(len(move.units) for move in moves)
                offsets += sum(len(unit) for move in moves for unit in move.units)
        finally:
            if units:
                self._tell(UnitsPlanned(self._policy.group, units=units, planned_records=offsets))

    def end(self) -> None:
        """Keeps how far the group is, since the next planner may be long in coming."""
        seen = self._store.look()
        self._remember_at = 0.0
        self._remember({lane.at: lane for lane in seen.lanes}, seen)

    # What there is

    def _look(self, lease: Lease) -> Snapshot:
        seen = self._store.look()
        last = self._last
        if seen.planner is None or seen.planner.lease != lease:
            raise LeaseLost(f"group {self._policy.group} is planned by another node by now")
        if last is not None and _is_less(seen, last):
            self._went_back(f"it counted up to {last.number} and goes on after {seen.number}", last.number)
            self._store.add_topics({name: found for name, found in last.topics.items() if name not in seen.topics})
            seen = self._store.look()
        if last is None:
            seen = self._restored(seen)
        return seen

    def _restored(self, seen: Snapshot) -> Snapshot:
        """At the beginning of a term: are the topics there that the group had?"""
        lost: dict[str, str] = {}
        if not seen.topics and not seen.lanes:
            # A store that came back empty: what this node has seen or was started with was there once.
            lost = dict(self._wanted)
        known = kafka_memory.recall(self._cluster, self._policy.group, None)
        highest = max((one.number for one in known.values()), default=0)
        if highest > seen.number:
            lost |= {at.topic: "" for at, one in known.items() if not one.removed and at.topic not in lost}
        lost = {name: one for name, one in lost.items() if name not in seen.topics}
        if not lost:
            return seen
        if highest > seen.number:
            self._went_back(f"Kafka remembers that the group works on {', '.join(sorted(lost))}", highest)
        self._store.add_topics(lost)
        return self._store.look()

    def _ask(self, seen: Snapshot) -> _Found:
        """Topics that nobody knows and partitions without leader are left out, and said to be."""
        deadline = Deadline.after(_ASK_SECONDS)
        ids: dict[str, str] = {}
        counts: dict[str, int] = {}
        partitions: list[TopicPartition] = []
        # Not `Cluster.topic`, which waits for one that nobody knows: all the others would wait with it.
        known = self._cluster.metadata(sorted(seen.topics), deadline=deadline).topics if seen.topics else {}
        for name in seen.topics:
            topic = known.get(name)
            error = ErrorCode.unknown_topic_or_partition if topic is None else topic.error
            if topic is None or error is not ErrorCode.none:
                self._halt(name, str(BrokerError(error, f"looking up topic {name}")))
                continue
            ids[name] = str(topic.id or "")
            counts[name] = len(topic.partitions)
            partitions += [TopicPartition(name, one.index) for one in topic.partitions]
        ranges = find_ranges(self._cluster, partitions, deadline=deadline, isolation=self._policy.isolation)
        for at in partitions:
            if at not in ranges:
                self._halt(label(at), "no leader tells where its log begins and ends")
        return _Found(ids, counts, {at: Log(one.start, one.stop) for at, one in ranges.items()})

    def _check_topics(self, seen: Snapshot, found: _Found) -> Snapshot:
        """A topic that was deleted and made anew is another one, whatever its offsets look like."""
        new: dict[str, str] = {}
        for name, now in found.ids.items():
            before = seen.topics[name] or self._first_seen.id_before(name, seen)
            if now and before and now != before and not self._replace(name, before, now, seen, found):
                continue
            if now and now != seen.topics[name]:
                new[name] = now
            self._first_seen.note(name, now, found.partitions[name], seen)
        if new:
            self._store.add_topics(new)
        return self._store.look() if new else seen

    def _replace(self, name: str, before: str, now: str, seen: Snapshot, found: _Found) -> bool:
        """Whether planning goes on with the topic that has the name now."""
        goes_on = self._policy.on_lost is not OnLost.ERROR
        if self._is_news(("replaced", name), now):
            self._tell(TopicReplaced(name, before=before, after=now, goes_on=goes_on))
        if not goes_on:
            self._halt(name, "the topic was deleted and created again: `work reset` begins with the new one")
            return False
        for lane in seen.lanes:
            if lane.at.topic == name:
                self._remembered.pop(lane.at, None)
                log = found.logs.get(lane.at)
                self._store.reset(lane.at, None if log is None else self._resumed(log))
        return True

    def _resumed(self, log: Log) -> int:
        return log.stop if self._policy.on_lost is OnLost.LATEST else log.start

    # What is remembered

    def _recall(self, lanes: Lanes, logs: Mapping[TopicPartition, Log], number: int) -> None:
        """Once in a term, for each partition: does the store know less than it did?"""
        unknown = [at for at in logs if at not in self._recalled]
        if not unknown:
            return
        found = kafka_memory.recall(self._cluster, self._policy.group, unknown)
        behind = [at for at, one in found.items() if at in lanes and _is_behind(lanes[at], one)]
        highest = max((one.number for one in found.values()), default=0)
        missing = [at for at in found if at not in lanes]
        if behind or missing or highest > number:
            some = ", ".join(map(str, [*behind, *missing][:3])) or "numbers of leases"
            self._went_back(f"Kafka remembers more of {some} than the store has", highest)
        self._recalled.update(unknown)
        self._remembered.update(found)

    def _went_back(self, reason: str, number: int) -> None:
        self._tell(StoreWentBack(self._policy.group, store=self._store.address, reason=reason))
        self._store.raise_number(number + LEAP)

    def _remember(self, lanes: Lanes, seen: Snapshot) -> None:
        now = time.monotonic()
        kept = {at: lane for at, lane in lanes.items() if at in self._there}
        removed = {at: lane for at, lane in lanes.items() if at.topic not in seen.topics}
        state = ({at: (lane.done, lane.planned) for at, lane in (kept | removed).items()}, {*removed}, seen.number)
        if now < self._remember_at or (state == self._kept and now < self._renew_at):
            return
        self._remember_at = now + _REMEMBER_SECONDS
        try:
            kafka_memory.remember(self._cluster, self._policy.group, kept, seen)
            with suppress(BrokerError):  # of a topic that was deleted, Kafka remembers nothing
                kafka_memory.remember(self._cluster, self._policy.group, removed, seen)
            if self._policy.commit_group is not None:
                kafka_memory.publish(self._cluster, self._policy.commit_group, kept, seen)
        except OttlaError as error:
            # Work goes on without: the next round tries again.
            if self._is_news("memory", str(error)):
                _log.warning("group %s: how far it is could not be kept in Kafka: %s", self._policy.group, error)
            return
        self._kept, self._renew_at = state, now + _RENEW_SECONDS

    # Where to begin

    def _starts(self, lanes: Lanes, logs: Mapping[TopicPartition, Log]) -> dict[TopicPartition, int]:
        """For partitions that the store does not know. One that was added to a topic begins with its log."""
        known = {at.topic for at in lanes}
        starts: dict[TopicPartition, int] = {}
        fresh: list[TopicPartition] = []
        for at, log in logs.items():
            if at in lanes:
                continue
            remembered = self._remembered.get(at)
            if remembered is not None:
                starts[at] = remembered.done
            elif at.topic in known and not self._first_seen.had(at):
                starts[at] = log.start
            else:
                fresh.append(at)
        return starts | self._placed(fresh, logs)

    def _placed(self, fresh: list[TopicPartition], logs: Mapping[TopicPartition, Log]) -> dict[TopicPartition, int]:
        start = self._policy.start
        if start == "earliest":
            return {at: logs[at].start for at in fresh}
        if start == "latest":
            return {at: logs[at].stop for at in fresh}
        if not fresh:
            return {}
        deadline = Deadline.after(_ASK_SECONDS)
        found = bounds.resolve(self._cluster, fresh, start, isolation=self._policy.isolation, deadline=deadline)
        return {at: min(max(offset, logs[at].start), logs[at].stop) for at, offset in found.items()}

    # Telling

    def _tell_misplaced(self, due: Round) -> None:
        for one in due.misplaced:
            if one.goes_on is None:
                self._halt(label(one.at), f"its position {one.position} {one.wrong.value}")
            if self._is_news(one.at, one):
                self._tell(_misplaced(one))

    def _halt(self, what: str, why: str) -> None:
        self._halts[what] = why
        if self._is_news(("halt", what), why):
            _log.warning("group %s does not plan %s: %s", self._policy.group, what, why)
            self._tell(PlanningFailed(self._policy.group, what=what, reason=why))

    def _tell_failed(self, error: Exception) -> None:
        """Nothing is planned, whoever's fault that is: all topics are said to be held up by it."""
        why = str(error) if isinstance(error, OttlaError) else f"{type(error).__name__}: {error}"
        self.halted = dict.fromkeys(self._wanted, why)
        if self._is_news("round", why):
            self._tell(PlanningFailed(self._policy.group, what="", reason=why))

    def _is_news(self, what: object, value: object) -> bool:
        if self._told.get(what) == value:
            return False
        self._told[what] = value
        return True


def _is_less(now: Snapshot, before: Snapshot) -> bool:
    """Numbers and counts only grow in a store that forgets nothing. Positions can be reset by hand, but not while
    numbers leap, as they do when a server was started again."""
    if now.number < before.number or any(one < other for one, other in zip(now.counts, before.counts, strict=True)):
        return True
    lanes = {lane.at: lane for lane in now.lanes}
    return now.number - before.number >= LEAP and any(
        lane.at not in lanes or lanes[lane.at].planned < lane.planned or lanes[lane.at].done < lane.done
        for lane in before.lanes
    )


def _is_behind(lane: PartitionState, remembered: RememberedPosition) -> bool:
    return lane.planned < remembered.planned or lane.done < remembered.done


def _misplaced(one: Misplaced) -> PositionMisplaced:
    return PositionMisplaced(
        *one.at,
        position=one.position,
        start=one.log.start,
        stop=one.log.stop,
        resume=-1 if one.goes_on is None else one.goes_on,
        reason=f"the position {one.wrong.value}",
    )
