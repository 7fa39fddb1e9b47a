"""`mirror`: topics from one cluster to another with one call, for programs. `ottla mirror` does the same.

A `Link` comes in. The call returns a `MirrorReport` once everything up to the present end of the topics is at the
target, exactly once, or runs until it is stopped. Below it are the job for one range, which every engine can run, and
`Mirroring`, which mirrors all partitions of a link in this process. Nothing is printed here.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ottla.admin import Admin
from ottla.errors import InputError
from ottla.events import Events
from ottla.fetch.cursor import END_OF_LOG
from ottla.fetch.reader import Reader
from ottla.jobs.engine_choice import choose_engine, engine_name
from ottla.jobs.mirror_link import Link
from ottla.mirror import topics
from ottla.mirror.journal import Journal
from ottla.mirror.lane import Lane, Phase
from ottla.mirror.pump import Pump, PumpSettings
from ottla.mirror.throttle import Throttle
from ottla.mirror.topics import Rename, TopicPlan
from ottla.model import Isolation, OffsetRange, TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.context import Sinks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ottla.jobs.engine_choice import EngineChoice


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


@dataclass(frozen=True, slots=True)
class MirrorReport:
    """What one run of a link did."""

    link: str
    partitions: tuple[Mirrored, ...]
    seconds: float

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
        }


class Mirroring:
    """A link that is open: its clusters, journal and topics. `with` closes it.

    Opening it connects and checks both sides. Raises `InputError` for a link that would copy into itself or in a
    circle, and `NoBrokerReachable` if a cluster does not answer.
    """

    def __init__(self, link: Link, *, events: Sinks = ()) -> None:
        self.link = link
        self._resources = ExitStack()
        self.source = self._resources.enter_context(link.source_brokers.cluster())
        self.target = self._resources.enter_context(link.target_brokers.cluster())
        self._events = events if isinstance(events, Events) else Events(*events)
        self.journal = Journal(self.target, link=link.name, topic=link.journal, events=self._events)
        self._resources.callback(self.journal.close)
        self._pump: Pump | None = None

    def __enter__(self) -> Mirroring:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close both clusters."""
        self._resources.close()

    def plan(self) -> list[TopicPlan]:
        """Return what is mirrored and what has to change at the target, without changing anything."""
        link = self.link
        plans = topics.look(
            Admin(self.source),
            Admin(self.target),
            link.topics,
            Rename(link.rename),
            link=link.name,
            excluded={link.journal},
        )
        if not link.follow_settings:
            plans = [plan if plan.action == "create" else replace(plan, settings={}) for plan in plans]
        self._refuse_circles(plans)
        return plans

    def prepare(self) -> list[TopicPlan]:
        """Create the journal and the target topics, and let their settings follow the source."""
        plans = self.plan()
        self.journal.create()
        topics.apply(Admin(self.target), plans, replicas=self.link.replicas)
        return plans

    def ranges(self, plans: Iterable[TopicPlan]) -> list[OffsetRange]:
        """Return the offsets of the source topics to mirror, as of now: committed records only."""
        names = [planned.source for planned in plans]
        if not names:
            return []
        reader = Reader(self.source, isolation=Isolation.READ_COMMITTED)
        try:
            return reader.ranges(names, self.link.start, "latest")
        finally:
            reader.close()

    def run(self, *, follow: bool = False, is_stopped: Callable[[], bool] = lambda: False) -> MirrorReport:
        """Mirror all partitions in this process, up to their present end or until stopped."""
        began, started = time.monotonic(), time.time()
        plans = self.prepare()
        lanes = self._lanes(plans, follow=follow)
        pump = self._pump = Pump(self.source, self.target, self.journal, self._settings())
        pump.add(lanes)
        pump.run(is_stopped)
        seconds = time.monotonic() - began
        partitions = tuple(receipt(lane, started=started, seconds=seconds) for lane in lanes)
        return MirrorReport(self.link.name, partitions, seconds)

    def run_range(self, unit: OffsetRange, is_stopped: Callable[[], bool]) -> Mirrored:
        """Mirror one range in this process. Raises the error of the partition."""
        began, started = time.monotonic(), time.time()
        target = Rename(self.link.rename).apply(unit.topic, link=self.link.name)
        if target is None:
            raise InputError(f"topic {unit.topic} cannot be mirrored: {self.link.rename!r} makes no topic name of it")
        lane = Lane(unit.topic_partition, TopicPartition(target, unit.partition), first=unit.start, stop=unit.stop)
        pump = Pump(self.source, self.target, self.journal, self._settings())
        pump.add([lane])
        pump.run(is_stopped)
        if lane.phase is Phase.FAILED and lane.error is not None:
            raise lane.error
        return receipt(lane, started=started, seconds=time.monotonic() - began)

    def lanes(self) -> list[Lane]:
        """Return the lanes of a run in progress, for progress reports."""
        return [] if self._pump is None else self._pump.lanes

    def _lanes(self, plans: Iterable[TopicPlan], *, follow: bool) -> list[Lane]:
        planned = {plan.source: plan for plan in plans}
        return [
            Lane(
                unit.topic_partition,
                TopicPartition(planned[unit.topic].target, unit.partition),
                first=unit.start,
                stop=END_OF_LOG if follow else unit.stop,
            )
            for unit in self.ranges(planned.values())
        ]

    def _settings(self) -> PumpSettings:
        return PumpSettings(
            policy=self.link.rules,
            throttle=Throttle(self.link.rate, self.link.rates),
            events=self._events,
        )

    def _refuse_circles(self, plans: Iterable[TopicPlan]) -> None:
        source_id, target_id = _cluster_id(self.source), _cluster_id(self.target)
        if source_id is None or source_id != target_id:
            return
        for planned in plans:
            if planned.source == planned.target:
                raise InputError(
                    f"link {self.link.name} would copy topic {planned.source} into itself: source and target are the"
                    " same cluster; rename the topics, for example with '{source}.{topic}'"
                )


@dataclass(frozen=True, slots=True)
class MirrorRange:
    """The job: mirrors one range of a partition. It can be pickled and knows no engine."""

    link: Link
    is_stopped: Callable[[], bool] = field(default=lambda: False)

    def __call__(self, unit: OffsetRange) -> Mirrored:
        """Mirror the range. What an earlier run has mirrored of it is not repeated."""
        with Mirroring(self.link) as mirroring:
            return mirroring.run_range(unit, self.is_stopped)

    def until(self, is_stopped: Callable[[], bool]) -> MirrorRange:
        """Return the same job, which ends soon after `is_stopped` returns True."""
        return MirrorRange(self.link, is_stopped)


def mirror(
    link: Link,
    *,
    follow: bool = False,
    engine: EngineChoice | None = None,
    spark: SparkSession | None = None,
    workers: int | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
    events: Sinks = (),
) -> MirrorReport:
    """Copy the topics of a link to its target, exactly once, with partitions, keys, headers and timestamps.

    Topics are created at the target as needed. Without `follow` it ends where the topics end now. The same call
    continues where an earlier one stopped or was killed. The engine is `"local"` (this process, the default),
    `"spark"` with a session, or a function that runs a job over ranges; it gets one range per partition.

    Raises `InputError` for a link that would copy into itself, `BrokerError` if a broker refuses, `MirrorError` if a
    partition cannot go on by the link's rules, and `Fenced` if another mirror of the link takes over. The others are
    mirrored to their end first.
    """
    with Mirroring(link, events=events) as mirroring:
        if engine_name(engine, spark) == "local":
            report = mirroring.run(follow=follow, is_stopped=is_stopped)
            for lane in mirroring.lanes():
                if lane.phase is Phase.FAILED and lane.error is not None:
                    raise lane.error
            return report
        runner = choose_engine(engine, spark=spark, workers=workers)
        began = time.monotonic()
        ranges = [unit for unit in mirroring.ranges(mirroring.prepare()) if len(unit)]
        results = list(runner(MirrorRange(link).until(is_stopped), ranges)) if ranges else []
        return MirrorReport(link.name, tuple(results), time.monotonic() - began)


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


def _cluster_id(cluster: Cluster) -> str | None:
    return cluster.metadata().cluster_id
