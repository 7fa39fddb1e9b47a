"""Where logs begin and end, for the partitions that a query reads: everything that a driver asks of brokers.

What is wanted comes in, offsets and sizes go out, each partition named; trouble with brokers is retried for as long
as the cluster client may. What the offsets are used for is decided by its callers.
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
from ottla.net.deadline import Deadline
from ottla.net.metadata import Metadata, Topic
from ottla.plan import RecordBytes
from ottla.spark.read_options import Assigned, End, Limit, NoMatch, Pattern, Places, Times, Topics, What

Offsets = dict[TopicPartition, int]

_SPECS = {End.EARLIEST: OffsetSpec.EARLIEST, End.LATEST: OffsetSpec.LATEST}
_SIZES_AGE = 60.0
"""Seconds for which what records take on average is believed."""
_log = logging.getLogger(__name__)


class Logs:
    """The logs of the partitions that a query reads. Used by one thread; whoever made the cluster closes it."""

    def __init__(self, cluster: Cluster, what: What, *, isolation: Isolation) -> None:
        self.cluster = cluster
        self._what = what
        self._isolation = isolation
        self._sizes: RecordBytes | None = None
        self._sized_at = -_SIZES_AGE

    def topics(self) -> dict[str, Topic]:
        """The topics as they are now; one that is named and does not exist is an error after some seconds."""
        match self._what:
            case Pattern(pattern):
                found = self._look(None).topics.values()
                named = {topic.name for topic in found if not topic.internal and re.search(pattern, topic.name)}
                if not named:
                    _log.warning("no topic matches the pattern %s yet", pattern)
                return {topic.name: topic for topic in found if topic.name in named}
            case Topics(names):
                return self._named(names)
            case Assigned(partitions):
                return self._named(dict.fromkeys(at.topic for at in partitions))

    def topics_there(self) -> dict[str, Topic]:
        """The topics that exist, without those that do not."""
        topics = self._look(None).topics
        return {name: topic for name, topic in topics.items() if self.subscribed(name) and topic.partitions}

    def partitions(self, topics: Mapping[str, Topic] | None = None) -> list[TopicPartition]:
        """The partitions that are read, sorted."""
        there = self.topics() if topics is None else topics
        found = sorted(TopicPartition(name, part.index) for name, topic in there.items() for part in topic.partitions)
        if not isinstance(self._what, Assigned):
            return found
        missing = sorted(at for at in set(self._what.partitions) - set(found) if at.topic in there)
        if missing:
            have = len(there[missing[0].topic].partitions)
            raise InputError(f"option assign names {missing[0]}, but topic {missing[0].topic} has {have} partitions")
        return sorted(set(self._what.partitions) & set(found))

    def subscribed(self, topic: str) -> bool:
        """Whether a topic of this name belongs to what is read."""
        match self._what:
            case Pattern(pattern):
                return re.search(pattern, topic) is not None
            case Topics(names):
                return topic in names
            case Assigned(partitions):
                return any(at.topic == topic for at in partitions)

    def at(self, end: End, partitions: Collection[TopicPartition]) -> Offsets:
        """An end of each log."""
        return self._find(partitions, _SPECS[end])

    def since(self, milliseconds: int, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int | None]:
        """The first record at or after a time in each partition, None where there is none."""
        return {at: None if found < 0 else found for at, found in self._find(partitions, milliseconds).items()}

    def resolve(
        self,
        limit: Limit,
        partitions: Collection[TopicPartition],
        *,
        among: Collection[TopicPartition] | None = None,
    ) -> Offsets:
        """The offset that a limit means in each of the partitions.

        It must name exactly these if it names any; or those that they are `among`, all that the query reads.
        """
        whole = partitions if among is None else among
        match limit:
            case End():
                return self.at(limit, partitions)
            case Places(option, places):
                _check_named(option, places, whole, "-1 is latest, -2 is earliest")
                ends = {end: [at for at in partitions if places[at] is end] for end in End}
                found = {at: place for at in partitions if isinstance(place := places[at], int)}
                return found | self.at(End.EARLIEST, ends[End.EARLIEST]) | self.at(End.LATEST, ends[End.LATEST])
            case Times(option, times, no_match):
                if isinstance(times, Mapping):
                    _check_named(option, times, whole, "in milliseconds since 1970")
                    times = {at: times[at] for at in partitions}
                return self._at_times(option, times, no_match, partitions)

    def record_bytes(self) -> RecordBytes | None:
        """What a record takes on disk in each partition, on average: its log's size over its length.

        None where brokers do not tell: it takes the right to describe the cluster.
        """
        if time.monotonic() - self._sized_at < _SIZES_AGE:
            return self._sizes
        self._sized_at = time.monotonic()
        try:
            self._sizes = self._measure()
        except OttlaError as exc:
            _log.warning("brokers do not tell the sizes of partitions, tasks are not cut by bytes: %s", exc)
            self._sizes = None
        return self._sizes

    def _measure(self) -> RecordBytes | None:
        deadline = self._deadline().sooner(self.cluster.timeouts.request)
        topics = self.topics()
        sizes = find_sizes(
            self.cluster, describe(Metadata(topics=topics, brokers=self.cluster.known.brokers)), deadline=deadline
        )
        partitions = self.partitions(topics)
        first, last = self.at(End.EARLIEST, partitions), self.at(End.LATEST, partitions)
        known: dict[TopicPartition, float] = {}
        for at in partitions:
            size, length = sizes.largest(at), last[at] - first[at]
            if size is not None and length > 0:
                known[at] = size / length
        return known or None

    def _named(self, names: Iterable[str]) -> dict[str, Topic]:
        wanted = list(names)
        found = self._look(wanted).topics
        return {
            name: found[name]
            if name in found and found[name].partitions
            else self.cluster.topic(name, deadline=self._deadline())
            for name in wanted
        }

    def _look(self, names: Collection[str] | None) -> Metadata:
        return self.cluster.metadata(names, deadline=self._deadline())

    def _at_times(
        self,
        option: str,
        times: int | Mapping[TopicPartition, int],
        no_match: NoMatch,
        partitions: Collection[TopicPartition],
    ) -> Offsets:
        each = dict(times) if isinstance(times, Mapping) else dict.fromkeys(partitions, times)
        found: dict[TopicPartition, int | None] = {}
        for moment in sorted(set(each.values())):
            found |= self.since(moment, [at for at, wanted in each.items() if wanted == moment])
        after = [at for at, offset in found.items() if offset is None]
        if after and no_match is NoMatch.ERROR:
            raise ConfigError(
                f"option {option}: {after[0]} has no record at or after {each[after[0]]} ms;"
                " startingOffsetsByTimestampStrategy=latest would start at its end"
            )
        ends = self.at(End.LATEST, after)
        return {at: ends[at] if offset is None else offset for at, offset in found.items()}

    def _find(self, partitions: Collection[TopicPartition], at: At) -> Offsets:
        if not partitions:
            return {}
        found = find_offsets(self.cluster, partitions, at=at, isolation=self._isolation, deadline=self._deadline())
        return {partition: place.offset for partition, place in found.items()}

    def _deadline(self) -> Deadline:
        return Deadline.after(self.cluster.timeouts.total)


def is_gone(error: OttlaError) -> bool:
    """Whether an error says that a topic does not exist."""
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
