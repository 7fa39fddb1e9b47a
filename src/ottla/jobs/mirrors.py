"""`mirror`: topics from one cluster to another with one call, for programs. `ottla mirror` does the same.

A `Link` comes in. The call returns a `MirrorReport` once everything up to the present end of the topics is at the
target, exactly once, or runs until it is stopped. Below it are the job for one range, which every engine can run, and
`Mirroring`, which mirrors all partitions of a link in this process. Nothing is printed here.
"""

from __future__ import annotations

import fnmatch
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from ottla.admin import Admin
from ottla.engines.contract import Engine
from ottla.errors import ConfigError, Fenced, OttlaError
from ottla.events import Events, MirrorTopicRefused
from ottla.fetch.cursor import END_OF_LOG
from ottla.fetch.reader import Reader
from ottla.jobs.engine_choice import choose_engine, engine_name
from ottla.jobs.mirror_audit import count_target
from ottla.jobs.mirror_guards import Holder, Origins, cluster_id, refuse_conflicts, remember_origins
from ottla.jobs.mirror_link import Link
from ottla.jobs.mirror_report import Mirrored, MirrorReport, receipt
from ottla.jobs.mirror_threads import PumpThreads
from ottla.mirror import starts, topics
from ottla.mirror.journal import Journal
from ottla.mirror.lane import Lane, Phase
from ottla.mirror.pump import Pump, PumpSettings
from ottla.mirror.throttle import Throttle
from ottla.mirror.topics import Refused, Rename, TopicPlan
from ottla.model import Isolation, OffsetRange, TopicPartition
from ottla.net.context import Sinks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ottla.jobs.engine_choice import EngineChoice

_log = logging.getLogger(__name__)
_IDLE_SECONDS = 1.0
"""How long an engine's round without new records waits for the next one."""
_REFRESH_SECONDS = 30.0
"""How often a mirror that follows looks for new topics, partitions and settings."""
_RETRY_SECONDS = 60.0
"""How often it tries failed partitions again."""
_NAP = 0.2


class Mirroring:
    """A link that is open: its clusters, journal and topics. `with` closes it. Constructing it connects nothing."""

    def __init__(self, link: Link, *, events: Sinks = ()) -> None:
        self.link = link
        self._resources = ExitStack()
        self.source = self._resources.enter_context(link.source_brokers.cluster())
        self.target = self._resources.enter_context(link.target_brokers.cluster())
        self._events = events if isinstance(events, Events) else Events(*events)
        self._journal: Journal | None = None
        self._is_first_look = True
        self._firsts: dict[TopicPartition, int] = {}
        """Where each partition begins that was never mirrored."""
        self.refused: tuple[Refused, ...] = ()
        """Topics that the target did not take, or not as they should be, by the last look."""
        self._origins: Origins = {}
        self._throttle = Throttle(link.rate, link.rates)
        self._pumps: dict[str, Pump] = {}
        """By topic for isolated topics; all others share the one without a name."""

    def __enter__(self) -> Mirroring:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close both clusters."""
        self._resources.close()

    @property
    def journal(self) -> Journal:
        """The journal on the target. Connects to the source on first use, to learn its id."""
        if self._journal is None:
            link, source_id = self.link, cluster_id(self.source)
            self._journal = Journal(
                self.target, link=link.name, topic=link.journal, source_cluster=source_id, replicas=link.replicas
            )
            self._resources.callback(self._journal.close)
        return self._journal

    def plan(self) -> list[TopicPlan]:
        """Return what is mirrored and what has to change at the target, without changing anything.

        Topics whose new name is none are left out. Raises `InputError` for a topic that does not
        exist, and for a link that would copy into itself, in a circle, or into topics of another link.
        """
        return self.look()[0]

    def look(self) -> tuple[list[TopicPlan], list[Refused]]:
        """Return what `plan` does, and the topics whose new name is none."""
        link = self.link
        plans, refused = topics.look(
            Admin(self.source),
            Admin(self.target),
            link.topics,
            Rename(link.rename),
            link=link.name,
            exclude=link.exclude,
            excluded={link.journal} if link.audit is None else {link.journal, link.audit.topic},
        )
        if not link.follow_settings:
            plans = [plan if plan.action == "create" else replace(plan, settings={}) for plan in plans]
        self._origins = refuse_conflicts(link, plans, source=self.source, target=self.target)
        return plans, refused

    def prepare(self) -> list[TopicPlan]:
        """Create the journal and the target topics, and let their settings follow the source.

        Topics that the target does not take are in `refused`, and each is an event. Raises as `plan` does.
        """
        plans, refused = self.look()
        self.journal.create()
        self._apply(plans, refused)
        return plans

    def _apply(self, plans: Sequence[TopicPlan], refused: Sequence[Refused]) -> None:
        """Change the target as planned. One topic that it refuses does not stop the others."""
        remember_origins(self.journal, self._origins)
        told = {(each.source, each.reason) for each in self.refused}
        self.refused = (*refused, *topics.apply(Admin(self.target), plans, replicas=self.link.replicas))
        for each in self.refused:
            if (each.source, each.reason) not in told:
                self._events.emit(MirrorTopicRefused(self.link.name, each.source, each.target, each.reason))

    def ranges(self, plans: Iterable[TopicPlan]) -> list[OffsetRange]:
        """Return the offsets of the source topics to mirror, as of now: committed records only.

        A topic that was never mirrored begins at the link's start. Partitions and topics that came later begin at their
        first record, since all of their records are new. Where each begins is in the journal when this returns.
        """
        names = sorted({planned.source for planned in plans})
        reader = Reader(self.source, isolation=Isolation.READ_COMMITTED)
        try:
            units = reader.ranges(names, "earliest", "latest") if names else []
            self._decide_firsts(reader, [unit for unit in units if unit.topic_partition not in self._firsts])
        finally:
            reader.close()
        # Where a partition begins is decided when it is first seen, not by a later look: "latest" moves.
        units = [replace(unit, start=min(self._firsts[unit.topic_partition], unit.stop)) for unit in units]
        taken = {each.source: each.partitions for each in self.refused}
        return sorted(unit for unit in units if unit.partition < taken.get(unit.topic, unit.partition + 1))

    def _decide_firsts(self, reader: Reader, units: Sequence[OffsetRange]) -> None:
        """Decide where partitions begin that this process sees for the first time."""
        came_later, self._is_first_look = not self._is_first_look, False
        if not units:
            return
        known = self.journal.notes(starts.NOTE)
        mirrored = {entry.source.topic for rows in self.journal.all_entries().values() for entry in rows}
        earliest = _by_topic(units)
        by_rule = cache(lambda: _by_topic(reader.ranges(sorted(earliest), self.link.start, "latest")))
        decided: dict[str, starts.Starts] = {}
        for topic, described in self.source.topics(sorted(earliest)).items():
            decided[topic] = starts.decide(
                starts.Starts.from_json(known.get(topic)),
                earliest[topic],
                lambda topic=topic: by_rule()[topic],  # type: ignore[misc]
                topic_id=described.id,
                rule=str(self.link.start),
                is_mirrored=topic in mirrored,
                came_later=came_later,
            )
        new = {topic: each for topic, each in decided.items() if each != starts.Starts.from_json(known.get(topic))}
        self.journal.write_notes({f"{starts.NOTE}{topic}": each.to_json() for topic, each in new.items()})
        for unit in units:
            self._firsts[unit.topic_partition] = decided[unit.topic].firsts.get(unit.partition, unit.start)

    def run(
        self,
        *,
        follow: bool = False,
        take_over: bool = False,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> MirrorReport:
        """Mirror all partitions in this process, up to their present end or until stopped.

        A partition that fails does not stop the others; its error is in the report. With `follow`, topics, partitions
        and settings follow the source, and failed partitions are tried again. Raises as `plan` does, and `MirrorError`
        if another process mirrors the link, unless `take_over` is set.
        """
        began, started = time.monotonic(), time.time()
        plans, refused = self.look()
        if not plans and not refused:
            _log.warning("link %s: %s", self.link.name, topics.nothing_matches(self.link.topics))
        self.journal.create()
        holder = Holder(self.journal)
        holder.claim(take_over=take_over)
        self._apply(plans, refused)
        self._pump("")  # even without a topic: with `follow`, there may be some later
        self._add(plans, follow=follow)
        with PumpThreads(self._pumps, follow=follow) as threads:
            refresh_at = retry_at = began
            while threads.are_running and not is_stopped():
                now = time.monotonic()
                holder.renew(now)
                if follow and now >= refresh_at + _REFRESH_SECONDS:
                    refresh_at = now
                    self._refresh(threads)
                if follow and now >= retry_at + _RETRY_SECONDS:
                    retry_at = now
                    self._retry_failed()
                lanes = self.lanes()
                if follow and lanes and all(isinstance(lane.error, Fenced) for lane in lanes):
                    break  # another mirror has taken over everything
                threads.wait(_NAP)
        holder.leave()
        seconds = time.monotonic() - began
        partitions = tuple(receipt(lane, started=started, seconds=seconds) for lane in self.lanes())
        return MirrorReport(self.link.name, partitions, seconds, self.refused)

    def run_range(self, unit: OffsetRange, is_stopped: Callable[[], bool]) -> Mirrored:
        """Mirror one range in this process. Raises the error of the partition."""
        began, started = time.monotonic(), time.time()
        target = Rename(self.link.rename).apply(unit.topic, link=self.link.name)
        if target is None:
            raise Rename(self.link.rename).refusal(unit.topic)
        lane = Lane(unit.topic_partition, TopicPartition(target, unit.partition), first=unit.start, stop=unit.stop)
        pump = self._pump("")
        pump.add([lane])
        pump.run(is_stopped)
        if lane.phase is Phase.FAILED and lane.error is not None:
            raise lane.error
        return receipt(lane, started=started, seconds=time.monotonic() - began)

    def lanes(self) -> list[Lane]:
        """Return the lanes of the last run, for progress reports. Their state may change at any moment."""
        return [lane for pump in self._pumps.values() for lane in pump.lanes]

    def _add(self, plans: Iterable[TopicPlan], *, follow: bool) -> None:
        """Add lanes for partitions that have none."""
        planned = {plan.source: plan for plan in plans}
        known = {lane.source for lane in self.lanes()}
        for unit in self.ranges(planned.values()):
            if unit.topic_partition in known:
                continue
            target = TopicPartition(planned[unit.topic].target, unit.partition)
            stop = END_OF_LOG if follow else unit.stop
            isolated = any(fnmatch.fnmatchcase(unit.topic, pattern) for pattern in self.link.isolated)
            pump = self._pump(unit.topic if isolated else "")
            pump.add([Lane(unit.topic_partition, target, first=unit.start, stop=stop)])

    def _pump(self, name: str) -> Pump:
        if name not in self._pumps:
            self._pumps[name] = Pump(self.source, self.target, self.journal, self._settings())
        return self._pumps[name]

    def _refresh(self, threads: PumpThreads) -> None:
        """Look for new topics, partitions and settings. A failure is logged: the next look may succeed."""
        try:
            self._add(self.prepare(), follow=True)
            threads.start()
        except OttlaError as error:
            _log.warning("link %s: topics could not be compared, will retry: %s", self.link.name, error)

    def _retry_failed(self) -> None:
        for pump in self._pumps.values():
            failed = [lane for lane in pump.lanes if lane.phase is Phase.FAILED and not isinstance(lane.error, Fenced)]
            if failed:
                pump.retry(failed)

    def _settings(self) -> PumpSettings:
        return PumpSettings(
            policy=self.link.rules,
            throttle=self._throttle,
            events=self._events,
        )


@dataclass(frozen=True, slots=True)
class MirrorRange:
    """The job: mirrors one range of a partition. It can be pickled and knows no engine."""

    link: Link
    is_stopped: Callable[[], bool] | None = None

    def __call__(self, unit: OffsetRange) -> Mirrored:
        """Mirror the range. What an earlier run has mirrored of it is not repeated."""
        with Mirroring(self.link) as mirroring:
            return mirroring.run_range(unit, self.is_stopped or (lambda: False))

    def until(self, is_stopped: Callable[[], bool]) -> MirrorRange:
        """Return the same job, which ends soon after `is_stopped` returns True."""
        return MirrorRange(self.link, is_stopped)


def mirror(
    link: Link,
    *,
    follow: bool = False,
    take_over: bool = False,
    engine: EngineChoice | None = None,
    spark: SparkSession | None = None,
    workers: int | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
    events: Sinks = (),
) -> MirrorReport:
    """Copy the topics of a link to its target, exactly once, with partitions, keys, headers and timestamps.

    Topics are created at the target as needed. Without `follow` it ends where the topics end now. The same call
    continues where an earlier one stopped or was killed. `is_stopped` is asked now and then whether to end. The engine
    is `"local"` (this process, the default), `"spark"` with a session, or a function that runs a job over ranges; it
    gets one range per partition, and with `follow` one round after the other.

    Raises `InputError` for a link that would copy into itself, in a circle or into topics of another link,
    `BrokerError` if a broker refuses, `MirrorError` if another process mirrors the link (`take_over` replaces it) or a
    partition cannot go on by the link's rules, and `Fenced` if another mirror of the link takes over. A partition that
    fails and a topic that the target refuses do not stop the others; the error is raised at the end. If the link has an
    `audit`, the target is counted at the end; `ottla mirror` and `run_links` also count while they follow.
    """
    if not isinstance(link, Link):
        raise ConfigError(f"mirror() takes a Link(source=..., target=..., topics=...), got {type(link).__name__}")
    with Mirroring(link, events=events) as mirroring:
        if engine_name(engine, spark) == "local":
            report = mirroring.run(follow=follow, take_over=take_over, is_stopped=is_stopped)
            _count(mirroring, report)
            for lane in mirroring.lanes():
                if lane.phase is Phase.FAILED and lane.error is not None:
                    raise lane.error
            _raise_refused(report)
            return report
        runner = choose_engine(engine, spark=spark, workers=workers)
        report = _in_rounds(mirroring, runner, follow=follow, is_stopped=is_stopped)
        _count(mirroring, report)
        _raise_refused(report)
        return report


def _raise_refused(report: MirrorReport) -> None:
    """Raise the error of the first topic that the target does not take: it belongs to one topic, and names it."""
    if report.refused:
        raise report.refused[0].error


def _count(mirroring: Mirroring, report: MirrorReport) -> None:
    """Count the target for the audit, if the link asks for it."""
    link = mirroring.link
    if link.audit is not None:
        count_target(link.audit, link.target_brokers, {partition.target.topic for partition in report.partitions})


def _in_rounds(mirroring: Mirroring, runner: Engine, *, follow: bool, is_stopped: Callable[[], bool]) -> MirrorReport:
    """Plan ranges and have an engine mirror them; with `follow`, again and again."""
    began, job = time.monotonic(), MirrorRange(mirroring.link)
    results: dict[TopicPartition, Mirrored] = {}
    while True:
        behind = [unit for unit in mirroring.ranges(mirroring.prepare()) if len(unit)]
        ranges = [unit for unit in behind if _reached(results, unit) < unit.stop]
        for result in runner(job, ranges) if ranges else ():
            earlier = results.get(result.source)
            results[result.source] = result if earlier is None else earlier.followed_by(result)
        if not follow or is_stopped():
            partitions = tuple(result for _, result in sorted(results.items()))
            return MirrorReport(mirroring.link.name, partitions, time.monotonic() - began, mirroring.refused)
        if not ranges:
            time.sleep(_IDLE_SECONDS)


def _by_topic(units: Iterable[OffsetRange]) -> dict[str, dict[int, int]]:
    """Return the first offset of each partition."""
    firsts: dict[str, dict[int, int]] = {}
    for unit in units:
        firsts.setdefault(unit.topic, {})[unit.partition] = unit.start
    return firsts


def _reached(results: Mapping[TopicPartition, Mirrored], unit: OffsetRange) -> int:
    result = results.get(unit.topic_partition)
    return -1 if result is None else result.stop
