"""From the places that people name to the offset ranges of a reader, before anything is read.

Comes in: a reader and a `Wanted`. Goes out: where to begin in each partition, and the ranges if there is an end.
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla.admin.committed import fetch_committed
from ottla.cli import Failure
from ottla.cli.values.places import Fixed, LastRecords, Place
from ottla.fetch import bounds as fetch
from ottla.fetch.bounds import CommittedBy
from ottla.fetch.reader import Reader
from ottla.model import GroupMember, OffsetRange, TopicPartition
from ottla.net.deadline import Deadline


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be read."""

    topics: tuple[str, ...]
    start: Place
    stop: Fixed | None
    """None: never."""
    partitions: list[int] | None
    timeout: float
    """Seconds to find all that."""

    def first(self, reader: Reader) -> fetch.Bound:
        """The start, in a form that the reader understands."""
        if isinstance(self.start, int):
            self._require(reader, self.start)
        for place in (self.start, self.stop):
            if isinstance(place, CommittedBy):
                self._require_commits(reader, place.group)
        if not isinstance(self.start, LastRecords):
            return self.start
        begins = self._offsets(reader, "earliest")
        return {
            at: max(begins.get(at, 0), end - self.start.count) for at, end in self._offsets(reader, "latest").items()
        }

    def ranges(self, reader: Reader) -> list[OffsetRange]:
        """What lies between start and stop now, or the end of the log if no stop is given; empty ranges too."""
        stop = "latest" if self.stop is None else self.stop
        return reader.ranges(self.topics, self.first(reader), stop, partitions=self.partitions, timeout=self.timeout)

    def _require(self, reader: Reader, offset: int) -> None:
        """An offset that no partition has reached would be an empty range, and most likely is a slip of the hand."""
        at, last = max(self._offsets(reader, "latest").items(), key=lambda end: end[1])
        if offset > last:
            raise Failure(f"offset {offset} is beyond the end of every partition; the furthest is {at}, up to {last}")

    def _require_commits(self, reader: Reader, group: str) -> None:
        """A group that has committed nothing, most likely misspelt, would be everything or nothing."""
        partitions = self._offsets(reader, "earliest")
        deadline = Deadline.after(self.timeout)
        if not fetch_committed(reader.cluster, GroupMember(group), partitions, deadline=deadline):
            topics = ", ".join(self.topics)
            raise Failure(f"group {group} has committed nothing for {topics}: 'ottla groups list' shows the groups")

    def _offsets(self, reader: Reader, place: Fixed) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for topic in self.topics:
            there = reader.offsets(topic, place, timeout=self.timeout)
            found |= {
                at: offset for at, offset in there.items() if not self.partitions or at.partition in self.partitions
            }
        return found
