"""How far a streaming query may read next, and which ranges that is: the driver's side of a query, without Spark.

Offsets of the last batch come in, offsets and ranges of the next one go out. What happens to topics meanwhile
(partitions added, records gone, a topic deleted or created anew) is noticed here, and is an error or is told, as the
query wants it; nothing is passed over in silence. What must survive a restart is in Spark's checkpoint, not here.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping

from ottla.admin.committed import Committed, commit
from ottla.errors import ConfigError, OffsetsLost, OttlaError
from ottla.fetch.options import OnLost
from ottla.model import GroupMember, OffsetRange, TopicPartition
from ottla.net.deadline import Deadline
from ottla.net.metadata import Topic
from ottla.plan import limit, limit_bytes
from ottla.spark.batch_source import cut_for_tasks
from ottla.spark.offsets import Logs, Offsets, is_gone
from ottla.spark.wanted import End, Wanted

_COMMIT_SECONDS = 10.0
"""Publishing progress must not hold the query up for long."""
_SECOND_LOOKS = 3
_BETWEEN_LOOKS = 0.3
"""Seconds. A new leader may not know the end of its log for a moment."""
_log = logging.getLogger(__name__)


class Follower:
    """One query. `forget` is not needed: it owns nothing but what it remembers of earlier calls."""

    def __init__(self, logs: Logs, wanted: Wanted, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._logs = logs
        self._wanted = wanted
        self._clock = clock
        self._first: Offsets | None = None
        self._until: Offsets | None = None
        self._topics: dict[str, Topic] = {}
        self._anew: set[TopicPartition] = set()
        self._seen: Offsets = {}
        self._last_batch = -math.inf
        self._published: Offsets = {}

    @property
    def seen(self) -> Offsets:
        """Where the logs ended at the last look."""
        return self._seen

    def first(self) -> Offsets:
        """Where a new query begins."""
        self._topics = self._logs.topics()
        partitions = self._logs.partitions(self._topics)
        self._first = self._logs.resolve(self._wanted.start, partitions)
        return self._first

    def stop_at_present(self) -> None:
        """Batches end where the logs end now, from the next look on."""
        self._until = {}

    def latest(self, start: Offsets, *, everything: bool) -> Offsets:
        """Where the next batch ends, if it begins at `start`; `everything` sets the limits of the query aside."""
        self.publish(start)
        if start == self._first and self._is_passing(start):
            # Spark writes down where a batch ends and not where the first one began. So the first one ends where it
            # begins: a restart then goes on there, and not at what is the latest offset by that time.
            return start
        self._check_same_topics(start)
        end = self._look(start)
        begin = self._effective(start, end)
        return end if everything else self._portion(start, begin, end)

    def ranges(self, start: Offsets, end: Offsets) -> list[OffsetRange]:
        """What lies between two offsets that `latest` gave, or an earlier run of the query, cut for tasks."""
        replayed = start == self._first and any(end.get(at, 0) < offset for at, offset in start.items())
        self._first = None
        if replayed and self._wanted.start is not End.EARLIEST:
            return []  # the batch that has nothing but the beginning, see `latest`
        gone = sorted(start.keys() - end.keys())
        if gone:
            self._lose(gone[0], start[gone[0]], start[gone[0]], 0, f"{_named(gone)} no longer there, or not subscribed")
        earliest = self._logs.at(End.EARLIEST, end.keys())
        ranges = [self._range(at, start.get(at), stop, earliest[at]) for at, stop in sorted(end.items())]
        return cut_for_tasks(self._logs, [one for one in ranges if len(one)], self._wanted.portions)

    def publish(self, offsets: Offsets) -> None:
        """Tells the group how far the query is. What goes wrong with that is told and does not end the query."""
        group = self._wanted.group
        new = {at: offset for at, offset in offsets.items() if self._published.get(at) != offset}
        if group is None or not new or offsets == self._first:
            return
        try:
            commit(
                self._logs.cluster,
                GroupMember(group),
                {at: Committed(offset) for at, offset in new.items()},
                deadline=Deadline.after(_COMMIT_SECONDS),
            )
        except OttlaError as exc:
            _log.warning("the progress of the query was not published as group %s: %s", group, exc)
            return
        self._published.update(new)

    # What is there

    def _look(self, start: Offsets) -> Offsets:
        """Where the logs end, or those of AvailableNow when it began."""
        if self._until:
            return self._until
        topics = self._there()
        self._notice_anew(topics)
        partitions = self._logs.partitions(topics)
        end = self._logs.at(End.LATEST, partitions)
        for _ in range(_SECOND_LOOKS):
            if all(end.get(at, offset) >= offset for at, offset in start.items() if at not in self._anew):
                break
            time.sleep(_BETWEEN_LOOKS)
            end = self._logs.at(End.LATEST, partitions)
        self._seen = end
        if self._until is not None:
            self._until = end
        return end

    def _there(self) -> dict[str, Topic]:
        try:
            return self._logs.topics()
        except OttlaError as exc:
            if not is_gone(exc) or self._wanted.on_lost is OnLost.ERROR:
                raise
            _log.warning("a topic of the query is gone: %s", exc)
            return self._logs.topics_there()

    def _notice_anew(self, topics: Mapping[str, Topic]) -> None:
        """A topic with another id is not the one that was read before, whatever offsets it has."""
        self._anew = set()
        for name, topic in topics.items():
            known = self._topics.get(name)
            if known is not None and known.id is not None and topic.id != known.id:
                at = TopicPartition(name, 0)
                self._lose(at, 0, 0, 0, "the topic was deleted and created anew")
                self._anew |= {TopicPartition(name, part.index) for part in topic.partitions}
        self._topics = dict(topics)

    def _check_same_topics(self, start: Offsets) -> None:
        """A checkpoint of other topics is a mistake, not a loss."""
        named = sorted({at.topic for at in start})
        if named and not any(self._logs.subscribed(topic) for topic in named):
            raise ConfigError(
                f"the checkpoint is that of a query on {', '.join(named)}, none of which is read now:"
                " give this query a checkpointLocation of its own"
            )

    def _is_passing(self, start: Offsets) -> bool:
        """Whether the same option would mean other offsets later; the beginning of a log seldom moves."""
        return bool(start) and self._wanted.start is not End.EARLIEST and self._until is None

    # How much of it

    def _effective(self, start: Offsets, end: Offsets) -> Offsets:
        """Where each partition is really read from: new ones, and those created anew, from their beginning."""
        begun = {at: start[at] for at in end if at in start and at not in self._anew and start[at] <= end[at]}
        rest = [at for at in end if at not in begun]
        return begun | self._logs.at(End.EARLIEST, rest)

    def _portion(self, start: Offsets, begin: Offsets, end: Offsets) -> Offsets:
        portions = self._wanted.portions
        now = self._clock()
        waiting = sum(max(0, stop - begin[at]) for at, stop in end.items())
        early = now - self._last_batch < portions.max_delay
        if portions.min_records is not None and waiting < portions.min_records and early:
            return start
        self._last_batch = now
        if portions.max_records is not None:
            end = limit(begin, end, portions.max_records)
        if portions.max_bytes is not None:
            sizes = self._logs.record_bytes()
            if sizes is None:
                raise ConfigError("option maxBytesPerTrigger needs the sizes of partitions, which brokers do not tell")
            end = limit_bytes(begin, end, portions.max_bytes, sizes)
        return end

    # What is lost

    def _range(self, at: TopicPartition, start: int | None, stop: int, earliest: int) -> OffsetRange:
        if start is None:
            if earliest > 0:
                self._lose(at, 0, earliest, earliest, "the partition is new, and its first records are gone already")
            begin = earliest
        elif at in self._anew:
            begin = earliest
        elif stop < start:
            self._lose(at, stop, start, earliest, "the log was cut back, or the topic was deleted and created anew")
            begin = earliest
        elif start < earliest and start < stop:
            self._lose(at, start, min(stop, earliest), earliest, "they are older than what the topic keeps")
            begin = earliest
        else:
            begin = start
        return OffsetRange(*at, min(begin, stop), stop)

    def _lose(self, at: TopicPartition, start: int, stop: int, resume: int, reason: str) -> None:
        if self._wanted.on_lost is OnLost.ERROR:
            told = f"{reason} (option failOnDataLoss=false goes on with what there is)"
            raise OffsetsLost(*at, start=start, stop=stop, resume=resume, reason=told)
        _log.warning("%s: offsets [%d, %d) are lost: %s; going on at %d", at, start, stop, reason, resume)


def _named(partitions: list[TopicPartition]) -> str:
    some = ", ".join(map(str, partitions[:5]))
    return f"{some}{' and more' if len(partitions) > 5 else ''} {'are' if len(partitions) > 1 else 'is'}"
