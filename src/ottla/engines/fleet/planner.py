"""The planner: looks at the logs and the store, and publishes new offsets as units. One node of a group plans.

A cluster, a store and the node's settings come in; units go into the store and events to a callback. `planning` decides
what to plan; this module does the requests around it. A topic or partition that cannot be planned blocks no other.
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
Emit = Callable[[Event], None]
PartitionStates = Mapping[TopicPartition, PartitionState]
Start = str | int | datetime | bounds.CommittedBy
_REMEMBER_SECONDS = 1.0
"""Minimum time between two commits of positions to Kafka."""
_RENEW_SECONDS = 3600.0
"""Commit unchanged positions this often: Kafka deletes offsets that were not committed for some days."""
_REQUEST_SECONDS = 8.0
_NO_RANGE = "no leader could say where its log starts and ends"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The settings of a planner."""

    group: str
    topics: tuple[str, ...] = ()
    """The topics that this node was started with."""
    units: Units = field(default_factory=Units)
    start: Start = "latest"
    """Where a topic starts that has no position yet."""
    on_lost: OnLost = OnLost.ERROR
    isolation: Isolation = Isolation.READ_COMMITTED
    commit_group: str | None = None


class _ClusterState(NamedTuple):
    """What the brokers say about the group's topics."""

    ids: dict[str, str]
    partition_counts: dict[str, int]
    logs: dict[TopicPartition, Log]


class Planner:
    """Plans for as long as its node holds the lease to plan."""

    def __init__(self, cluster: Cluster, store: Store, policy: Policy, emit: Emit) -> None:
        self._cluster = cluster
        self._store = store
        self._policy = policy
        self._emit = emit
        self._sizes = RecordSizes(cluster)
        self._remembered: dict[TopicPartition, RememberedPosition] = {}
        self._recalled: set[TopicPartition] = set()
        """Partitions whose position in Kafka was looked up in this term."""
        self._first_seen = FirstSeen(store)
        self._existing: frozenset[TopicPartition] = frozenset()
        """The partitions that the brokers named last."""
        self._last: Snapshot | None = None
        """The store as the last round of this term saw it."""
        self._topics: dict[str, str] = dict.fromkeys(policy.topics, "")
        """The topics that the group had last, as far as this node knows, and their ids."""
        self._remember_at = self._renew_at = 0.0
        self._committed: object = None
        self._reported: dict[object, object] = {}
        """What was emitted or logged last about each subject, so that nothing is repeated in every round."""
        self._halts: dict[str, str] = {}
        """As `halted`, for the current round."""
        self.halted: dict[str, str] = {}
        """Partitions and topics that the last round did not plan, and why."""

    def begin(self) -> None:
        """Begin a term: forget everything that other planners may have changed."""
        self._recalled.clear()
        self._remembered.clear()
        self._first_seen.forget()
        self._last = None
        self._reported.clear()

    def round(self, lease: Lease) -> bool:
        """Run one round, and return whether it planned anything.

        Raises `LeaseLost` if another node plans now, and any other `OttlaError` if nothing could be planned.
        """
        self._halts = {}
        try:
            due = self._round(lease)
        except LeaseLost:
            raise
        except Exception as error:
            self._report_failed_round(error)
            raise
        self.halted = self._halts
        self._reported.pop("round", None)
        return bool(due.moves)

    def _round(self, lease: Lease) -> Round:
        snapshot = self._look(lease)
        self._topics = dict(snapshot.topics)
        cluster_state = self._query(snapshot)
        snapshot = self._check_topics(snapshot, cluster_state)
        states = {state.partition: state for state in snapshot.partitions}
        logs = {partition: log for partition, log in cluster_state.logs.items() if partition.topic not in self._halts}
        self._recall(states, logs, snapshot.number)
        starts = self._starts(states, logs)
        logs = self._with_open_transactions(logs, starts | {tp: state.planned for tp, state in states.items()})
        sizes = self._sizes.of(
            list(cluster_state.ids),
            {partition: log.start for partition, log in logs.items()},
            {partition: log.stop for partition, log in logs.items()},
        )
        known = {partition: log for partition, log in logs.items() if partition in states or partition in starts}
        policy = self._policy
        due = plan(known, states, starts.__getitem__, units=policy.units, on_lost=policy.on_lost, record_bytes=sizes)
        self._report_misplaced(due)
        self._publish(lease, due)
        self._last, self._topics = snapshot, dict(snapshot.topics)
        self._existing = frozenset(logs)
        self._remember(states, snapshot)
        return due

    def _publish(self, lease: Lease, due: Round) -> None:
        """Write the moves in several independent steps. If one fails, the next round plans the rest."""
        units = offsets = 0
        try:
            for moves in portions(due.moves):
                if not self._store.plan(lease, moves):
                    raise LeaseLost(f"another node plans group {self._policy.group} now")
                units += sum(len(move.units) for move in moves)
                offsets += sum(len(unit) for move in moves for unit in move.units)
        finally:
            if units:
                self._emit(UnitsPlanned(self._policy.group, units=units, planned_records=offsets))

    def end(self) -> None:
        """Commit the positions to Kafka before the lease is given up. The next planner may not come for a long time.

        Raises `StoreUnavailable` if the store does not answer.
        """
        snapshot = self._store.look()
        self._remember_at = 0.0
        self._remember({state.partition: state for state in snapshot.partitions}, snapshot)

    # The state of the store and the cluster

    def _look(self, lease: Lease) -> Snapshot:
        """Return the state of the store. If the store has lost data, restore what this node and Kafka know."""
        snapshot = self._store.look()
        last = self._last
        if snapshot.planner is None or snapshot.planner.lease != lease:
            raise LeaseLost(f"another node plans group {self._policy.group} now")
        if last is not None and _is_less(snapshot, last):
            self._went_back(f"its counter was at {last.number} and is now at {snapshot.number}", last.number)
            self._store.add_topics(
                {name: topic_id for name, topic_id in last.topics.items() if name not in snapshot.topics}
            )
            snapshot = self._store.look()
        if last is None:
            snapshot = self._restored(snapshot)
        return snapshot

    def _restored(self, snapshot: Snapshot) -> Snapshot:
        """At the beginning of a term, add back topics that the group had and the store has forgotten."""
        lost: dict[str, str] = {}
        if not snapshot.topics and not snapshot.partitions:
            # The store is empty: it had the topics that this node has seen or was started with.
            lost = dict(self._topics)
        known = kafka_memory.recall(self._cluster, self._policy.group, None)
        highest = max((position.number for position in known.values()), default=0)
        if highest > snapshot.number:
            lost |= {
                partition.topic: ""
                for partition, position in known.items()
                if not position.removed and partition.topic not in lost
            }
        lost = {name: topic_id for name, topic_id in lost.items() if name not in snapshot.topics}
        if not lost:
            return snapshot
        if highest > snapshot.number:
            self._went_back(f"Kafka remembers that the group works on {', '.join(sorted(lost))}", highest)
        self._store.add_topics(lost)
        return self._store.look()

    def _query(self, snapshot: Snapshot) -> _ClusterState:
        """Ask the brokers for topics and logs. Unknown topics and partitions without leader are halted and left out."""
        deadline = Deadline.after(_REQUEST_SECONDS)
        ids: dict[str, str] = {}
        counts: dict[str, int] = {}
        partitions: list[TopicPartition] = []
        # Not `Cluster.topic`, which retries an unknown topic for seconds: all others would wait for it.
        known = self._cluster.metadata(sorted(snapshot.topics), deadline=deadline).topics if snapshot.topics else {}
        for name in snapshot.topics:
            topic = known.get(name)
            error = ErrorCode.unknown_topic_or_partition if topic is None else topic.error
            if topic is None or error is not ErrorCode.none:
                self._halt(name, str(BrokerError(error, f"looking up topic {name}")))
                continue
            ids[name] = str(topic.id or "")
            counts[name] = len(topic.partitions)
            partitions += [TopicPartition(name, partition.index) for partition in topic.partitions]
        ranges = find_ranges(self._cluster, partitions, deadline=deadline, isolation=self._policy.isolation)
        for partition in partitions:
            if partition not in ranges:
                self._halt(label(partition), _NO_RANGE)
        return _ClusterState(ids, counts, {tp: Log(log.start, log.stop) for tp, log in ranges.items()})

    def _with_open_transactions(
        self, logs: Mapping[TopicPartition, Log], positions: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Log]:
        """Return the logs, extended to positions that are in an open transaction or after it.

        Such a position comes from a node that reads uncommitted records. It is not after the end of the log, though it
        is after what committed readers see: planning waits there until the transaction ends, and goes back nowhere.
        """
        beyond = [tp for tp, log in logs.items() if positions.get(tp, 0) > log.stop]
        if not beyond or self._policy.isolation is not Isolation.READ_COMMITTED:
            return dict(logs)
        deadline = Deadline.after(_REQUEST_SECONDS)
        whole = find_ranges(self._cluster, beyond, deadline=deadline, isolation=Isolation.READ_UNCOMMITTED)
        extended = dict(logs)
        for tp in beyond:
            if tp not in whole:
                self._halt(label(tp), _NO_RANGE)
                del extended[tp]
            elif positions[tp] <= whole[tp].stop:
                extended[tp] = Log(logs[tp].start, positions[tp])
        return extended

    def _check_topics(self, snapshot: Snapshot, cluster_state: _ClusterState) -> Snapshot:
        """Compare topic ids: a topic that was deleted and recreated is another topic, whatever its offsets are."""
        new: dict[str, str] = {}
        for name, current in cluster_state.ids.items():
            before = snapshot.topics[name] or self._first_seen.id_before(name, snapshot)
            if (
                current
                and before
                and current != before
                and not self._replace(name, before, current, snapshot, cluster_state)
            ):
                continue
            if current and current != snapshot.topics[name]:
                new[name] = current
            self._first_seen.note(name, current, cluster_state.partition_counts[name], snapshot)
        if new:
            self._store.add_topics(new)
        return self._store.look() if new else snapshot

    def _replace(self, name: str, before: str, current: str, snapshot: Snapshot, cluster_state: _ClusterState) -> bool:
        """Switch to a recreated topic, if `on_lost` allows it. Returns whether planning continues with it."""
        goes_on = self._policy.on_lost is not OnLost.ERROR
        if self._is_news(("replaced", name), current):
            self._emit(TopicReplaced(name, before=before, after=current, goes_on=goes_on))
        if not goes_on:
            self._halt(name, "the topic was deleted and created again: reset its positions to begin with the new one")
            return False
        for state in snapshot.partitions:
            if state.partition.topic == name:
                self._remembered.pop(state.partition, None)
                log = cluster_state.logs.get(state.partition)
                self._store.reset(state.partition, None if log is None else self._resumed(log))
        return True

    def _resumed(self, log: Log) -> int:
        """Return where a recreated topic starts."""
        return log.stop if self._policy.on_lost is OnLost.LATEST else log.start

    # What Kafka remembers

    def _recall(self, states: PartitionStates, logs: Mapping[TopicPartition, Log], number: int) -> None:
        """Compare each partition with Kafka, once per term: does the store know less than it once did?"""
        unknown = [partition for partition in logs if partition not in self._recalled]
        if not unknown:
            return
        positions = kafka_memory.recall(self._cluster, self._policy.group, unknown)
        behind = [tp for tp, position in positions.items() if tp in states and _is_behind(states[tp], position)]
        highest = max((position.number for position in positions.values()), default=0)
        missing = [partition for partition in positions if partition not in states]
        if behind or missing or highest > number:
            examples = ", ".join(map(str, [*behind, *missing][:3])) or "lease numbers"
            self._went_back(f"Kafka remembers more of {examples} than the store has", highest)
        self._recalled.update(unknown)
        self._remembered.update(positions)

    def _went_back(self, reason: str, number: int) -> None:
        """Emit the event, and raise the lease numbers above all that may have been issued."""
        self._emit(StoreWentBack(self._policy.group, store=self._store.address, reason=reason))
        self._store.raise_number(number + LEAP)

    def _remember(self, states: PartitionStates, snapshot: Snapshot) -> None:
        """Commit the positions to Kafka if they have changed, or were committed long ago."""
        now = time.monotonic()
        kept = {partition: state for partition, state in states.items() if partition in self._existing}
        removed = {partition: state for partition, state in states.items() if partition.topic not in snapshot.topics}
        positions = {partition: (state.done, state.planned) for partition, state in (kept | removed).items()}
        commitment = (positions, {*removed}, snapshot.number)
        if now < self._remember_at or (commitment == self._committed and now < self._renew_at):
            return
        self._remember_at = now + _REMEMBER_SECONDS
        try:
            kafka_memory.remember(self._cluster, self._policy.group, kept, snapshot)
            with suppress(BrokerError):  # a removed topic may have been deleted, and Kafka then refuses its offsets
                kafka_memory.remember(self._cluster, self._policy.group, removed, snapshot)
            if self._policy.commit_group is not None:
                kafka_memory.publish(self._cluster, self._policy.commit_group, kept, snapshot)
        except OttlaError as error:
            # Planning does not depend on it, and the next round tries again.
            if self._is_news("memory", str(error)):
                _log.warning("group %s: its positions could not be committed to Kafka: %s", self._policy.group, error)
            return
        self._committed, self._renew_at = commitment, now + _RENEW_SECONDS

    # Where to start

    def _starts(self, states: PartitionStates, logs: Mapping[TopicPartition, Log]) -> dict[TopicPartition, int]:
        """Return the start of each partition that the store does not know."""
        known = {partition.topic for partition in states}
        starts: dict[TopicPartition, int] = {}
        fresh: list[TopicPartition] = []
        for partition, log in logs.items():
            if partition in states:
                continue
            remembered = self._remembered.get(partition)
            if remembered is not None:
                starts[partition] = remembered.done
            elif partition.topic in known and not self._first_seen.had(partition):
                starts[partition] = log.start  # the partition was added later: all of its records are new
            else:
                fresh.append(partition)
        return starts | self._placed(fresh, logs)

    def _placed(self, fresh: list[TopicPartition], logs: Mapping[TopicPartition, Log]) -> dict[TopicPartition, int]:
        """Resolve `start` for partitions of topics that are new to the group."""
        start = self._policy.start
        if start == "earliest":
            return {partition: logs[partition].start for partition in fresh}
        if start == "latest":
            return {partition: logs[partition].stop for partition in fresh}
        if not fresh:
            return {}
        deadline = Deadline.after(_REQUEST_SECONDS)
        offsets = bounds.resolve(self._cluster, fresh, start, isolation=self._policy.isolation, deadline=deadline)
        return {tp: min(max(offset, logs[tp].start), logs[tp].stop) for tp, offset in offsets.items()}

    # Reports

    def _report_misplaced(self, due: Round) -> None:
        for misplaced in due.misplaced:
            if misplaced.goes_on is None:
                self._halt(label(misplaced.partition), f"its position {misplaced.position} {misplaced.wrong.value}")
            if self._is_news(misplaced.partition, misplaced):
                self._emit(_misplaced_event(misplaced))

    def _halt(self, name: str, reason: str) -> None:
        """Record that a topic or partition is not planned in this round."""
        self._halts[name] = reason
        if self._is_news(("halt", name), reason):
            _log.warning("group %s does not plan %s: %s", self._policy.group, name, reason)
            self._emit(PlanningFailed(self._policy.group, what=name, reason=reason))

    def _report_failed_round(self, error: Exception) -> None:
        """Record that nothing is planned: the error halts every topic."""
        reason = str(error) if isinstance(error, OttlaError) else f"{type(error).__name__}: {error}"
        self.halted = dict.fromkeys(self._topics, reason)
        if self._is_news("round", reason):
            self._emit(PlanningFailed(self._policy.group, what="", reason=reason))

    def _is_news(self, subject: object, value: object) -> bool:
        """Whether this value differs from the last one for the subject, which it replaces."""
        if self._reported.get(subject) == value:
            return False
        self._reported[subject] = value
        return True


def _is_less(current: Snapshot, before: Snapshot) -> bool:
    """Whether the store has forgotten something since `before`."""
    # Numbers and counters only grow in a store that forgets nothing.
    counters = zip(current.counts, before.counts, strict=True)
    if current.number < before.number or any(count < earlier for count, earlier in counters):
        return True
    # Positions may be reset by hand. They only prove a loss if the numbers leaped, which means a server restart.
    states = {state.partition: state for state in current.partitions}
    return current.number - before.number >= LEAP and any(
        state.partition not in states
        or states[state.partition].planned < state.planned
        or states[state.partition].done < state.done
        for state in before.partitions
    )


def _is_behind(state: PartitionState, remembered: RememberedPosition) -> bool:
    """Whether the store knows less of a partition than Kafka remembers."""
    return state.planned < remembered.planned or state.done < remembered.done


def _misplaced_event(misplaced: Misplaced) -> PositionMisplaced:
    return PositionMisplaced(
        *misplaced.partition,
        position=misplaced.position,
        start=misplaced.log.start,
        stop=misplaced.log.stop,
        resume=-1 if misplaced.goes_on is None else misplaced.goes_on,
        reason=f"the position {misplaced.wrong.value}",
    )
