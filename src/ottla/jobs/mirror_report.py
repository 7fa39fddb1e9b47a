"""What a mirror has done: the receipt of one partition, and the report of a whole link. Plain values."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ottla.mirror.lane import Lane, Phase
from ottla.mirror.topics import Refused
from ottla.model import TopicPartition


@dataclass(frozen=True, slots=True)
class Mirrored:
    """What was mirrored of one partition: the receipt of the job."""

    source: TopicPartition
    target: TopicPartition
    start: int
    """The source offset at which this run continued."""
    stop: int
    """The source offset that it reached."""
    target_stop: int
    """The target offset after the last record."""
    records: int
    size_bytes: int
    """The size of the batches as they were sent."""
    batches: int
    recoded: Mapping[str, int]
    """Batches that were decoded and encoded again, by reason."""
    first_time: float | None
    last_time: float | None
    """Record timestamps, in seconds since 1970."""
    host: str
    started: float
    seconds: float
    error: str | None = None
    """Why it ended early, or None."""

    @property
    def passed_on(self) -> int:
        """How many batches were passed on as they were."""
        return self.batches - sum(self.recoded.values())

    def followed_by(self, other: Mirrored) -> Mirrored:
        """Return the sum of this and of `other`, a later run."""
        return replace(
            other,
            start=self.start,
            records=self.records + other.records,
            size_bytes=self.size_bytes + other.size_bytes,
            batches=self.batches + other.batches,
            recoded=dict(Counter(self.recoded) + Counter(other.recoded)),
            first_time=other.first_time if self.first_time is None else self.first_time,
            last_time=self.last_time if other.last_time is None else other.last_time,
            started=self.started,
            seconds=self.seconds + other.seconds,
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "topic": self.source.topic,
            "partition": self.source.partition,
            "target_topic": self.target.topic,
            "target_partition": self.target.partition,
            "start": self.start,
            "stop": self.stop,
            "target_stop": self.target_stop,
            "records": self.records,
            "bytes": self.size_bytes,
            "batches": self.batches,
            "passed_on": self.passed_on,
            "recoded": dict(self.recoded),
            "first_time": self.first_time,
            "last_time": self.last_time,
            "host": self.host,
            "started": self.started,
            "seconds": round(self.seconds, 3),
            "error": self.error,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Mirrored:
        """Build one from the result of `to_json`. Raises `ValueError`, `TypeError` or `KeyError` if it is none."""
        return cls(
            source=TopicPartition(str(row["topic"]), int(row["partition"])),
            target=TopicPartition(str(row["target_topic"]), int(row["target_partition"])),
            start=int(row["start"]),
            stop=int(row["stop"]),
            target_stop=int(row["target_stop"]),
            records=int(row["records"]),
            size_bytes=int(row["bytes"]),
            batches=int(row["batches"]),
            recoded={str(reason): int(count) for reason, count in row["recoded"].items()},
            first_time=None if row["first_time"] is None else float(row["first_time"]),
            last_time=None if row["last_time"] is None else float(row["last_time"]),
            host=str(row["host"]),
            started=float(row["started"]),
            seconds=float(row["seconds"]),
            error=None if row["error"] is None else str(row["error"]),
        )


@dataclass(frozen=True, slots=True)
class MirrorReport:
    """What one run of a link did."""

    link: str
    partitions: tuple[Mirrored, ...]
    seconds: float
    refused: tuple[Refused, ...] = ()
    """Topics that the target does not take, or not as they should be."""

    @property
    def records(self) -> int:
        """How many records this run has written."""
        return sum(partition.records for partition in self.partitions)

    @property
    def size_bytes(self) -> int:
        """How many bytes this run has written."""
        return sum(partition.size_bytes for partition in self.partitions)

    @property
    def failed(self) -> tuple[Mirrored, ...]:
        """The partitions that ended with an error."""
        return tuple(partition for partition in self.partitions if partition.error is not None)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "link": self.link,
            "records": self.records,
            "bytes": self.size_bytes,
            "seconds": round(self.seconds, 3),
            "partitions": [partition.to_json() for partition in self.partitions],
            "refused": [topic.to_json() for topic in self.refused],
        }


def receipt(lane: Lane, *, started: float, seconds: float) -> Mirrored:
    """Return what a lane has done."""
    counts = lane.counts
    return Mirrored(
        source=lane.source,
        target=lane.target,
        start=lane.began_at,
        stop=lane.position,
        target_stop=lane.acknowledged.target,
        records=counts.records,
        size_bytes=counts.size_bytes,
        batches=counts.batches,
        recoded={reason.name.lower(): count for reason, count in counts.recoded.items()},
        first_time=None if counts.first_time is None else counts.first_time / 1000,
        last_time=None if counts.last_time is None else counts.last_time / 1000,
        host=socket.gethostname(),
        started=started,
        seconds=seconds,
        error=str(lane.error) if lane.phase is Phase.FAILED else None,
    )
