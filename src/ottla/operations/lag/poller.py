"""Looks at all groups of a cluster, with a few requests to each broker, whatever the number of groups.

Comes in: a cluster and a selection. Goes out: a `Sample`. In this order: each broker lists its groups; their
coordinators are asked for commits and members, hundreds of groups in a request; then leaders for where logs begin and
end, all partitions in one request; then for batch headers of what is unread. Commits are read before ends, so that no
group is ahead of its log. A broker that is away costs what it knows, and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from ottla.admin.all_brokers import Traffic
from ottla.admin.groups import ListedGroup
from ottla.admin.lookup import Epochs, Errors, Offsets, ask_leaders
from ottla.admin.many_groups import GroupReading, list_groups, read_groups
from ottla.admin.offsets import At, OffsetSpec
from ottla.errors import BrokerError, ErrorCode, NetworkError, OttlaError
from ottla.model import Isolation, TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.deadline import Deadline
from ottla.net.metadata import Broker, Metadata
from ottla.net.targets import LeaderOf
from ottla.operations.lag.header_reader import HeaderReader
from ottla.operations.lag.limits import Limits
from ottla.operations.lag.names import Selection, shown_as
from ottla.operations.lag.values import GroupSample, GroupType, Log, Sample, Times

_PATIENCE = 3.0
"""Seconds to wait for a coordinator that is loading, or a leader that is being elected."""
_STEP_SHARE = 0.25
"""Of the time of a poll, for the answers of one step: a broker that is frozen must leave time for the next."""
_HEADER_SHARE = 0.5
"""Of the time that is left, for headers."""
_MOVING_SECONDS = 30.0
"""For how long a group that no broker lists counts as moving."""
_Key = tuple[str, str]


class Poller:
    """Polls one cluster, which stays open. Not thread-safe; the clock returns seconds since 1970.

    `selection` says of which groups and topics, `with_times` whether seconds are wanted, `all_topics` whether also of
    topics that no group reads.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        selection: Selection | None = None,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        with_times: bool = True,
        all_topics: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.cluster = cluster
        self._selection = selection or Selection()
        self._isolation = isolation
        self._with_times = with_times
        self._all_topics = all_topics
        self._clock = clock
        self._headers = HeaderReader(cluster, isolation=isolation)
        self._limits = Limits(cluster)
        self._coordinators: dict[_Key, tuple[Broker, ListedGroup]] = {}
        self._unlisted: dict[_Key, float] = {}
        """Since when no broker has listed a group that may be moving."""
        self.missing: dict[_Key, str] = {}
        """The groups of earlier polls that the last one could not see, and why."""

    def poll(
        self, *, others: Callable[[], Sequence[GroupSample]] | None = None, timeout: float | None = None
    ) -> Sample:
        """Return what the cluster has now.

        Raises the errors of `Cluster.metadata` if no broker answers, and `BrokerError` if none counts as up. `others`
        returns readers that are no groups of Kafka, and is called before the ends of logs are looked up.
        """
        deadline = self.cluster.deadline(timeout)
        began, traffic = time.monotonic(), Traffic()
        brokers = self.cluster.metadata([], deadline=deadline).brokers
        if not brokers:  # one answers, and counts as down itself, as all others
            raise BrokerError(ErrorCode.broker_not_available, "reading groups", "the cluster has no broker that is up")
        readings, away = self._read(list(brokers.values()), deadline, traffic)
        at = self._clock()
        groups = [*self._samples(readings), *(others() if others is not None else ())]
        names = {tp.topic for group in groups if group.ends is None for tp in (*group.committed, *group.owners)}
        logs, leaders = self._logs(groups, names, away, deadline, traffic)
        times: Mapping[tuple[TopicPartition, int], Times] = {}
        unread = _unread(groups, logs)
        if self._with_times and unread:
            limit = deadline.sooner(deadline.remaining() * _HEADER_SHARE)
            times = self._headers.read(unread, logs, leaders, deadline=limit, traffic=traffic)
        retention, sizes = self._limits.refresh(
            {tp.topic for tp, _ in unread}, now=time.monotonic(), deadline=deadline.sooner(_PATIENCE)
        )
        return Sample(
            at=at,
            cluster=self.cluster.known.cluster_id or "",
            groups=tuple(groups),
            logs=logs,
            times=times,
            retention=retention,
            sizes=sizes,
            away={broker.id: str(error) for broker, error in away.items()},
            brokers=len(brokers),
            seconds=time.monotonic() - began,
            traffic=traffic,
        )

    def _read(
        self, brokers: Sequence[Broker], deadline: Deadline, traffic: Traffic
    ) -> tuple[list[GroupReading], dict[Broker, OttlaError]]:
        """Return all groups that are shown. Waits a little for coordinators that move or load."""
        attempts = self.cluster.attempts("reading groups", deadline.sooner(_PATIENCE))
        done: dict[str, GroupReading] = {}
        while True:
            limit = deadline.sooner(deadline.seconds * _STEP_SHARE)
            listed, away = list_groups(self.cluster, brokers, deadline=limit, traffic=traffic)
            wanted = {
                broker: [group for group in groups if self._is_wanted(group) and group.name not in done]
                for broker, groups in listed.items()
            }
            limit = deadline.sooner(deadline.seconds * _STEP_SHARE)
            readings = read_groups(self.cluster, wanted, deadline=limit, traffic=traffic)
            done |= {reading.group.name: reading for reading in readings if not _may_pass(reading.error)}
            passing = [reading for reading in readings if reading.group.name not in done]
            worries = [*(reading.error for reading in passing), *(e for e in away.values() if _may_pass(e))]
            error = next((worry for worry in worries if worry is not None), None)
            if error is not None:
                try:
                    attempts.failed(error)
                    continue
                except OttlaError:
                    done |= {reading.group.name: reading for reading in passing}
            self._note_missing(listed, away, deadline.sooner(deadline.seconds * _STEP_SHARE), traffic)
            return list(done.values()), away

    def _is_wanted(self, group: ListedGroup) -> bool:
        return shown_as(group, self._selection) is not None

    def _note_missing(
        self,
        listed: Mapping[Broker, Iterable[ListedGroup]],
        away: Mapping[Broker, OttlaError],
        deadline: Deadline,
        traffic: Traffic,
    ) -> None:
        """Remember who coordinates what, and which groups of the last poll are merely out of sight.

        A group that moves to another coordinator is listed by none of them for a moment. So its last coordinator is
        asked for it: one that is not responsible any more says so, and a group that is gone has no offsets.
        """
        now = {
            _key(group, self._selection): (broker, group)
            for broker, groups in listed.items()
            for group in groups
            if self._is_wanted(group)
        }
        reasons = {broker.id: f"its coordinator, {broker}, is away" for broker in away}
        unseen = {key: known for key, known in self._coordinators.items() if key not in now}
        self.missing = {key: reasons[broker.id] for key, (broker, _) in unseen.items() if broker.id in reasons}
        asked: dict[Broker, list[ListedGroup]] = {}
        looked_at = time.monotonic()
        for key, (broker, group) in unseen.items():
            if key not in self.missing and looked_at - self._unlisted.get(key, looked_at) < _MOVING_SECONDS:
                asked.setdefault(broker, []).append(group)
        found = read_groups(self.cluster, asked, deadline=deadline, with_members=False, traffic=traffic)
        moving = [_key(reading.group, self._selection) for reading in found if reading.error is not None]
        self._unlisted = {key: self._unlisted.get(key, looked_at) for key in moving}
        self.missing |= dict.fromkeys(moving, "it moves to another coordinator")
        self._coordinators = now | {key: unseen[key] for key in self.missing}

    def _samples(self, readings: Iterable[GroupReading]) -> list[GroupSample]:
        samples = []
        for reading in readings:
            name, kind = shown_as(reading.group, self._selection) or (reading.group.name, GroupType.CLASSIC)
            has = self._selection.has_topic
            committed = {tp: offset for tp, offset in reading.committed.items() if has(tp.topic)}
            owners = {tp: owner for tp, owner in reading.owners.items() if has(tp.topic)}
            if self._selection.topics is not None and not committed and not owners and reading.error is None:
                continue
            error = None if reading.error is None else str(reading.error).partition("\n")[0]
            samples.append(
                GroupSample(
                    name,
                    kind,
                    reading.group.state,
                    committed,
                    reading.lags,
                    owners,
                    reading.members,
                    error=error,
                )
            )
        return samples

    def _logs(
        self,
        groups: Iterable[GroupSample],
        names: Collection[str],
        away: dict[Broker, OttlaError],
        deadline: Deadline,
        traffic: Traffic,
    ) -> tuple[dict[TopicPartition, Log], dict[TopicPartition, Broker]]:
        """Return every partition of the topics, and the leaders of those that have one."""
        if not names and not self._all_topics:
            return {}, {}
        metadata = self.cluster.metadata(None if self._all_topics else names, deadline=deadline)
        partitions = {
            TopicPartition(topic.name, partition.index): topic.id
            for topic in metadata.topics.values()
            if topic.name in names or (self._selection.has_topic(topic.name) and not topic.internal)
            for partition in topic.partitions
        }
        places = (OffsetSpec.LATEST, OffsetSpec.EARLIEST)
        (ends, starts), leaders = self._offsets(
            partitions, places, metadata, self._isolation, away=away, deadline=deadline, traffic=traffic
        )
        beyond = {tp: offset for tp, offset in _highest(groups).items() if tp in ends and offset > ends[tp].offset}
        highs: Offsets = {}
        if beyond and self._isolation is Isolation.READ_COMMITTED:
            (highs,), _ = self._offsets(
                beyond, places[:1], metadata, Isolation.READ_UNCOMMITTED, away=away, deadline=deadline, traffic=traffic
            )
        logs = {
            tp: Log(
                starts[tp].offset if tp in starts else None,
                ends[tp].offset if tp in ends else None,
                topic_id,
                highs[tp].offset if tp in highs else None,
            )
            for tp, topic_id in partitions.items()
        }
        return logs, leaders

    def _offsets(
        self,
        partitions: Collection[TopicPartition],
        places: Sequence[At],
        metadata: Metadata,
        isolation: Isolation,
        *,
        away: dict[Broker, OttlaError],
        deadline: Deadline,
        traffic: Traffic,
    ) -> tuple[list[Offsets], dict[TopicPartition, Broker]]:
        """Return the offsets at each place. Waits a little for leaders that are being elected."""
        attempts = self.cluster.attempts("reading ends of logs", deadline.sooner(_PATIENCE))
        found: list[Offsets] = [{} for _ in places]
        all_leaders: dict[TopicPartition, Broker] = {}
        left = set(partitions)
        while left:
            leaders = _by_leader(left, metadata, {broker.id for broker in away})
            all_leaders |= {tp: broker for broker, epochs in leaders.items() for tp in epochs}
            requests = [(broker, epochs, at) for at in places for broker, epochs in leaders.items()]
            limit = deadline.sooner(deadline.seconds * _STEP_SHARE)
            answers = ask_leaders(self.cluster, requests, isolation=isolation, deadline=limit, traffic=traffic)
            errors: Errors = {}
            for number, ((broker, _, _), (listed, refused)) in enumerate(zip(requests, answers, strict=True)):
                found[number // max(1, len(leaders))].update(listed)
                errors.update(refused)
                unreachable = next((error for error in refused.values() if isinstance(error, NetworkError)), None)
                if unreachable is not None:
                    away[broker] = unreachable
            moved = {tp: error for tp, error in errors.items() if isinstance(error, BrokerError) and error.retriable}
            if not moved:
                break
            for tp in moved:
                self.cluster.doubt(LeaderOf(*tp))
            try:
                attempts.failed(next(iter(moved.values())))
                metadata = self.cluster.metadata({tp.topic for tp in moved}, deadline=deadline)
            except OttlaError:
                break
            left = set(moved)
        return found, all_leaders


def _may_pass(error: OttlaError | None) -> bool:
    return isinstance(error, BrokerError) and error.retriable and error.code is not ErrorCode.unknown_server_error


def _key(group: ListedGroup, selection: Selection) -> _Key:
    name, kind = shown_as(group, selection) or (group.name, GroupType.CLASSIC)
    return GroupSample(name, kind).key


def _by_leader(partitions: Iterable[TopicPartition], metadata: Metadata, away: set[int]) -> dict[Broker, Epochs]:
    leaders: dict[Broker, Epochs] = {}
    by_topic: dict[str, list[TopicPartition]] = {}
    for tp in sorted(partitions):
        by_topic.setdefault(tp.topic, []).append(tp)
    for name, listed in by_topic.items():
        topic = metadata.topics.get(name)
        known = {} if topic is None else {partition.index: partition for partition in topic.partitions}
        for tp in listed:
            partition = known.get(tp.partition)
            broker = None if partition is None else metadata.brokers.get(partition.leader)
            if partition is not None and broker is not None and broker.id not in away:
                leaders.setdefault(broker, {})[tp] = partition.leader_epoch
    return leaders


def _highest(groups: Iterable[GroupSample]) -> dict[TopicPartition, int]:
    highest: dict[TopicPartition, int] = {}
    for group in groups:
        if group.ends is None:
            for tp, offset in group.committed.items():
                highest[tp] = max(offset, highest.get(tp, 0))
    return highest


def _unread(groups: Iterable[GroupSample], logs: Mapping[TopicPartition, Log]) -> list[tuple[TopicPartition, int]]:
    """Return the places where groups have something to read."""
    places = []
    for group in groups:
        if group.ends is not None:
            continue
        for tp, offset in group.committed.items():
            log = logs.get(tp)
            if log is not None and log.end is not None and offset < log.end:
                places.append((tp, offset))
    return places
