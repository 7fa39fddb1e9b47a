"""Resolves `--from` and `--until` to offsets, before anything is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import click

from ottla.admin.committed import fetch_committed
from ottla.cli.errors import CommandFailed
from ottla.cli.options.places import require_order
from ottla.cli.values.places import LastRecords, Place, Shift
from ottla.fetch import bounds as fetch
from ottla.fetch.bounds import CommittedBy
from ottla.fetch.reader import Reader
from ottla.model import GroupMember, OffsetRange, TopicPartition
from ottla.net.deadline import Deadline

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """What a command reads: topics, and places to start and end."""

    topics: tuple[str, ...]
    start: Place
    stop: Place | None = None
    """None: never."""
    partitions: list[int] | None = None
    timeout: float
    """Seconds for all requests of a resolution."""

    def __post_init__(self) -> None:
        """Raise `UsageError` if the end obviously lies before the start."""
        require_order(self.start, self.stop)

    def resolve_start(self, reader: Reader) -> fetch.Bound:
        """Return the start in a form that the reader understands.

        Raises `CommandFailed` for an offset beyond the end of every partition, and for a group without commits.
        """
        if isinstance(self.start, int):
            self._require_offset(reader, self.start)
        return self._resolve(reader, self.start)

    def resolve_stop(self, reader: Reader) -> fetch.Bound:
        """Return the end in a form that the reader understands. Raises `CommandFailed` for a group without commits."""
        return "latest" if self.stop is None else self._resolve(reader, self.stop)

    def ranges(self, reader: Reader) -> list[OffsetRange]:
        """Return the ranges between start and stop, empty ones too. Without a stop they end where the logs end now."""
        start, stop = self.resolve_start(reader), self.resolve_stop(reader)
        return reader.ranges(self.topics, start, stop, partitions=self.partitions, timeout=self.timeout)

    def say_waits(self, reader: Reader, ends: Mapping[TopicPartition, int]) -> None:
        """Say on stderr which records before `ends` do not exist yet, because a read up to there waits for them.

        Raises `CommandFailed` if the plan starts at the end of the logs and all of them end behind the stop.
        """
        if not isinstance(self.stop, int):
            return
        logs = self.offsets(reader, "latest")
        unwritten = [f"{tp} ends at {logs[tp]}" for tp, end in sorted(ends.items()) if logs[tp] < end]
        if not unwritten and self.start == "latest" and self.stop < max(logs.values(), default=0):
            tp = max(logs, key=lambda tp: logs[tp])
            raise CommandFailed(f"--until {self.stop} lies before --from latest: {tp} ends at {logs[tp]}")
        if unwritten:
            more = f" and {len(unwritten) - _MOST_NAMED} more" if len(unwritten) > _MOST_NAMED else ""
            waits = f"waiting for new records up to offset {self.stop}: {', '.join(unwritten[:_MOST_NAMED])}{more}"
            click.echo(f"note: {waits}", err=True)

    def _resolve(self, reader: Reader, place: Place) -> fetch.Bound:
        assert not isinstance(place, Shift)
        if isinstance(place, CommittedBy):
            self._require_commits(reader, place.group)
        if not isinstance(place, LastRecords):
            return place
        log_starts = self.offsets(reader, "earliest")
        log_ends = self.offsets(reader, "latest")
        return {tp: max(log_starts.get(tp, 0), end - place.count) for tp, end in log_ends.items()}

    def _require_offset(self, reader: Reader, offset: int) -> None:
        """An offset that no partition has reached would be an empty range, and most likely is a typing error."""
        tp, last = max(self.offsets(reader, "latest").items(), key=lambda end: end[1])
        if offset > last:
            raise CommandFailed(
                f"offset {offset} is beyond the end of every partition; the furthest is {tp}, which ends at {last}"
            )

    def _require_commits(self, reader: Reader, group: str) -> None:
        """A misspelt group would read everything or nothing."""
        partitions = self.offsets(reader, "earliest")
        deadline = Deadline.after(self.timeout)
        if not fetch_committed(reader.cluster, GroupMember(group), partitions, deadline=deadline):
            topics = ", ".join(self.topics)
            raise CommandFailed(
                f"group {group} has committed nothing for {topics}: 'ottla groups list' shows all groups"
            )

    def offsets(self, reader: Reader, place: Place) -> dict[TopicPartition, int]:
        """Return the offset of a place in each partition that is read."""
        assert not isinstance(place, LastRecords | Shift)
        offsets: dict[TopicPartition, int] = {}
        for topic in self.topics:
            topic_offsets = reader.offsets(topic, place, timeout=self.timeout)
            offsets |= {
                tp: offset
                for tp, offset in topic_offsets.items()
                if not self.partitions or tp.partition in self.partitions
            }
        return offsets
