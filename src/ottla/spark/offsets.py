"""Where the logs of a query's partitions begin and end: everything that a driver asks the brokers.

A subscription and bounds come in; offsets and record sizes go out, by partition. The cluster client retries when
brokers fail. This module does not decide what the offsets are used for.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Iterable, Mapping

from ottla.admin.lookup import find_offsets
from ottla.admin.offsets import At, OffsetSpec
from ottla.admin.sizes import find_sizes
from ottla.admin.topics import describe
from ottla.errors import BrokerError, ConfigError, InputError, OttlaError
from ottla.model import Isolation, TopicPartition
from ottla.net import Cluster
from ottla.net.metadata import Metadata, Topic
from ottla.plan import RecordBytes
from ottla.spark.read_options import Assigned, Bound, End, FixedOffsets, NoMatch, Pattern, Subscription, Times, Topics

Offsets = dict[TopicPartition, int]

_SPECS = {End.EARLIEST: OffsetSpec.EARLIEST, End.LATEST: OffsetSpec.LATEST}
_SIZES_AGE = 60.0
"""Seconds for which measured record sizes are reused."""
_log = logging.getLogger(__name__)


class Logs:
    """The logs of the partitions that a query reads. Not thread-safe; the caller closes the cluster.

    Methods raise the cluster client's errors: `BrokerError`, `NoBrokerReachable`, `DeadlineExceeded`.
    """

    def __init__(self, cluster: Cluster, subscription: Subscription, *, isolation: Isolation) -> None:
        self.cluster = cluster
        self._subscription = subscription
        self._isolation = isolation
        self._sizes: RecordBytes | None = None
        self._sized_at = -_SIZES_AGE

    def topics(self) -> dict[str, Topic]:
        """The topics as they are now. Raises `BrokerError` if a named topic does not appear within a few seconds."""
        match self._subscription:
            case Pattern(pattern):
                topics = self._metadata(None).topics.values()
                matching = {topic.name for topic in topics if not topic.internal and re.search(pattern, topic.name)}
                if not matching:
                    _log.warning("no topic matches the pattern %s yet", pattern)
                return {topic.name: topic for topic in topics if topic.name in matching}
            case Topics(names):
                return self._named(names)
            case Assigned(partitions):
                return self._named(dict.fromkeys(partition.topic for partition in partitions))

    def existing_topics(self) -> dict[str, Topic]:
        """The subscribed topics that exist. Missing ones are left out."""
        topics = self._metadata(None).topics
        return {name: topic for name, topic in topics.items() if self.subscribed(name) and topic.partitions}

    def partitions(self, topics: Mapping[str, Topic] | None = None) -> list[TopicPartition]:
        """The partitions to read, sorted. Raises `InputError` if an assigned partition does not exist."""
        existing = self.topics() if topics is None else topics
        partitions = sorted(
            TopicPartition(name, part.index) for name, topic in existing.items() for part in topic.partitions
        )
        if not isinstance(self._subscription, Assigned):
            return partitions
        assigned = set(self._subscription.partitions)
        missing = sorted(partition for partition in assigned - set(partitions) if partition.topic in existing)
        if missing:
            count = len(existing[missing[0].topic].partitions)
            raise InputError(f"option assign names {missing[0]}, but topic {missing[0].topic} has {count} partitions")
        return sorted(assigned & set(partitions))

    def subscribed(self, topic: str) -> bool:
        """Whether the subscription includes a topic of this name."""
        match self._subscription:
            case Pattern(pattern):
                return re.search(pattern, topic) is not None
            case Topics(names):
                return topic in names
            case Assigned(partitions):
                return any(partition.topic == topic for partition in partitions)

    def at(self, end: End, partitions: Collection[TopicPartition]) -> Offsets:
        """The first or the end offset of each log."""
        return self._find(partitions, _SPECS[end])

    def since(self, milliseconds: int, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int | None]:
        """The offset of the first record at or after a time in each partition, None if it has none."""
        offsets = self._find(partitions, milliseconds)
        return {partition: None if offset < 0 else offset for partition, offset in offsets.items()}

    def resolve(
        self,
        bound: Bound,
        partitions: Collection[TopicPartition],
        *,
        among: Collection[TopicPartition] | None = None,
    ) -> Offsets:
        """The offset that a bound means in each of the partitions.

        A bound by partition must name exactly the partitions that the query reads: `among`, by default `partitions`.
        Raises `ConfigError` if it names others, or if a partition has no record at or after the given time.
        """
        expected = partitions if among is None else among
        match bound:
            case End():
                return self.at(bound, partitions)
            case FixedOffsets(option, offsets):
                _check_named(option, offsets, expected, "-1 is latest, -2 is earliest")
                ends = {end: [tp for tp in partitions if offsets[tp] is end] for end in End}
                fixed = {tp: offset for tp in partitions if isinstance(offset := offsets[tp], int)}
                return fixed | self.at(End.EARLIEST, ends[End.EARLIEST]) | self.at(End.LATEST, ends[End.LATEST])
            case Times(option, times, no_match):
                if isinstance(times, Mapping):
                    _check_named(option, times, expected, "in milliseconds since 1970")
                    times = {partition: times[partition] for partition in partitions}
                return self._at_times(option, times, no_match, partitions)

    def record_bytes(self) -> RecordBytes | None:
        """The average size of a record on disk in each partition: the log's size divided by its length.

        None if the brokers refuse: reading sizes needs the permission to describe the cluster.
        """
        if time.monotonic() - self._sized_at < _SIZES_AGE:
            return self._sizes
        self._sized_at = time.monotonic()
        try:
            self._sizes = self._measure()
        except OttlaError as exc:
            _log.warning("cannot read partition sizes from the brokers, tasks are not cut by bytes: %s", exc)
            self._sizes = None
        return self._sizes

    def _measure(self) -> RecordBytes | None:
        deadline = self.cluster.deadline().sooner(self.cluster.timeouts.request)
        topics = self.topics()
        sizes = find_sizes(
            self.cluster, describe(Metadata(topics=topics, brokers=self.cluster.known.brokers)), deadline=deadline
        )
        partitions = self.partitions(topics)
        first, last = self.at(End.EARLIEST, partitions), self.at(End.LATEST, partitions)
        averages: dict[TopicPartition, float] = {}
        for partition in partitions:
            size, length = sizes.largest(partition), last[partition] - first[partition]
            if size is not None and length > 0:
                averages[partition] = size / length
        return averages or None

    def _named(self, names: Iterable[str]) -> dict[str, Topic]:
        listed = list(names)
        topics = self._metadata(listed).topics
        # `Cluster.topic` waits for a topic that was just created, and raises if it does not appear.
        return {
            name: topics[name]
            if name in topics and topics[name].partitions
            else self.cluster.topic(name, deadline=self.cluster.deadline())
            for name in listed
        }

    def _metadata(self, names: Collection[str] | None) -> Metadata:
        return self.cluster.metadata(names, deadline=self.cluster.deadline())

    def _at_times(
        self,
        option: str,
        times: int | Mapping[TopicPartition, int],
        no_match: NoMatch,
        partitions: Collection[TopicPartition],
    ) -> Offsets:
        by_partition = dict(times) if isinstance(times, Mapping) else dict.fromkeys(partitions, times)
        offsets: dict[TopicPartition, int | None] = {}
        for moment in sorted(set(by_partition.values())):
            offsets |= self.since(moment, [tp for tp, time_of_tp in by_partition.items() if time_of_tp == moment])
        unmatched = [partition for partition, offset in offsets.items() if offset is None]
        if unmatched and no_match is NoMatch.ERROR:
            raise ConfigError(
                f"option {option}: {unmatched[0]} has no record at or after {by_partition[unmatched[0]]} ms;"
                " startingOffsetsByTimestampStrategy=latest would start at its end"
            )
        ends = self.at(End.LATEST, unmatched)
        return {partition: ends[partition] if offset is None else offset for partition, offset in offsets.items()}

    def _find(self, partitions: Collection[TopicPartition], at: At) -> Offsets:
        if not partitions:
            return {}
        results = find_offsets(
            self.cluster, partitions, at=at, isolation=self._isolation, deadline=self.cluster.deadline()
        )
        return {partition: result.offset for partition, result in results.items()}


def is_unknown_topic(error: OttlaError) -> bool:
    """Whether the error means that a topic does not exist."""
    return isinstance(error, BrokerError) and error.row.name in ("UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_ID")


def _check_named(
    option: str, named: Collection[TopicPartition], partitions: Collection[TopicPartition], meaning: str
) -> None:
    missing, unknown = sorted(set(partitions) - set(named)), sorted(set(named) - set(partitions))
    if missing or unknown:
        left_out = f"it leaves out {', '.join(map(str, missing))}" if missing else ""
        foreign = f"{', '.join(map(str, unknown))} is not read" if unknown else ""
        raise ConfigError(
            f"option {option} must name exactly the partitions that are read ({meaning}):"
            f" {'; '.join(filter(None, (left_out, foreign)))}"
        )
