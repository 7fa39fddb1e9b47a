"""Archives topics round by round: plan what is due, run it on an engine, record it in the ledger, publish it.

A lake, a job, a request and an engine come in; ledger entries go out as they are published. The engine is any function
that runs a job over ranges. Only the receipts of one round are held in memory.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar
from uuid import UUID

from ottla.admin.committed import Committed, commit
from ottla.admin.identity import TopicCreatedAgain
from ottla.config import check_group, check_kind
from ottla.engines.contract import Engine
from ottla.errors import BrokerError, ErrorCode, InputError, LakeConflict, LakeError, OffsetsLost, OttlaError
from ottla.events import ArchiveHeldUp, ArchiveResumed, Events, Sink
from ottla.fetch import bounds
from ottla.fetch.options import OnLost
from ottla.jobs.archive_plan import (
    Cutting,
    Logs,
    Round,
    Start,
    Survey,
    beginnings,
    due,
    limited,
    require_same_id,
    up_to,
    within,
)
from ottla.jobs.archive_range import Archived, ArchiveRange
from ottla.jobs.archive_topics import Topics, is_outage
from ottla.lake.lake import Lake
from ottla.lake.values import Entry, WrittenBy
from ottla.model import GroupMember, OffsetRange
from ottla.net import Cluster

T = TypeVar("T")
_log = logging.getLogger(__name__)
_GONE = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id})
_LOST_RACES = 20
"""Rounds in a row that another archiver or retention may win before it is an error."""
_LOOK_SECONDS = 0.5
_AGAIN_SECONDS = 2.0
"""The pause between attempts while brokers are away; each attempt takes its own timeout as well."""


class Waiting(Protocol):
    """Runs a step that mostly waits."""

    def __call__(self, step: Callable[[], T], /) -> T:
        """Return what the step returns."""


def _simply(step: Callable[[], T], /) -> T:
    return step()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveRequest:
    """What to archive.

    Raises `InputError` if `start` or `stop` is not a bound, or `on_lost` is LATEST, which would leave out records that
    could be archived, and `ConfigError` if `on_lost` is no policy or `group` no name.
    """

    topics: tuple[str, ...]
    start: Start = "earliest"
    """Where topics start that the archive does not have yet."""
    stop: Start | None = None
    """Where `Archiving.until_now` stops; None means where the logs end now."""
    on_lost: OnLost = OnLost.ERROR
    """EARLIEST: records that retention deleted before they were archived become a gap in the ledger."""
    group: str | None = None
    """A consumer group whose offsets follow the archive, for tools that show lag."""

    def __post_init__(self) -> None:
        bounds.check(self.start, "start")
        if self.stop is not None:
            bounds.check(self.stop, "stop")
        if self.group is not None:
            check_group("group", self.group)
        check_kind("on_lost", self.on_lost, OnLost)
        if self.on_lost is OnLost.LATEST:
            raise InputError(
                "an archive that continues at 'latest' would leave out records that could be archived: use 'earliest'"
            )


@dataclass(slots=True)
class Progress:
    """Counters of one archiver, for display."""

    records: int = 0
    size_bytes: int = 0
    files: int = 0
    file_bytes: int = 0
    untimed: int = 0
    entries: int = 0
    lost: int = 0
    """Offsets that were deleted before they could be archived."""
    expected: int = 0
    """Offsets done so far, plus those that were due at the last look."""
    passed: int = 0
    """Offsets of finished ranges."""
    began: float = field(default_factory=time.monotonic)
    _reading: dict[OffsetRange, int] = field(default_factory=dict)

    @property
    def reached(self) -> int:
        """Offsets of finished ranges, and records of those that are being read."""
        return self.passed + sum(list(self._reading.values()))

    def seen(self, span: OffsetRange, records: int) -> None:
        """Count records of a range that is being read. Each range is read by one thread at a time."""
        self._reading[span] = min(len(span), self._reading.get(span, 0) + records)

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return max(time.monotonic() - self.began, 1e-9)

    @property
    def lag(self) -> int:
        """Offsets that are still to be archived, as of the last look."""
        return max(0, self.expected - self.passed)

    def done(self, result: Archived) -> None:
        """Count a finished range. Its records count when its entry is published."""
        self._reading.pop(result.receipt.range, None)
        self.passed += len(result.receipt.range)

    def recorded(self, entry: Entry) -> None:
        """Count a published entry."""
        self.entries += 1
        self.records += sum(receipt.count for receipt in entry.receipts)
        self.size_bytes += sum(receipt.size_bytes for receipt in entry.receipts)
        self.files += len(entry.files)
        self.file_bytes += sum(file.size_bytes for file in entry.files)
        self.untimed += entry.untimed
        self.lost += sum(len(gap.range) for gap in entry.gaps)


class Archiving:
    """One archiver on one lake. Several may work on the same lake; the work of the slower one is discarded.

    `waiting` runs every step that only waits, so that a program can end such a step on a signal.
    """

    def __init__(
        self,
        lake: Lake,
        job: ArchiveRange,
        request: ArchiveRequest,
        *,
        engine: Engine,
        cutting: Cutting,
        name: str = "local",
        waiting: Waiting = _simply,
        progress: Progress | None = None,
        events: Iterable[Sink] = (),
    ) -> None:
        self.lake = lake
        self._events = Events(*events)
        self._survey: Survey | None = None
        self._topics: Topics | None = None
        self.progress = progress or Progress()
        self._job = job
        self._request = request
        self._engine = engine
        self._cutting = cutting
        self._waiting = waiting
        self._by = WrittenBy(engine=name, host=socket.gethostname())

    @property
    def troubles(self) -> Mapping[str, OttlaError]:
        """Topics that cannot be archived at present, with the error of each."""
        return {} if self._topics is None else self._topics.troubles

    def until_now(self) -> Generator[Entry, None, None]:
        """Archive up to `ArchiveRequest.stop`, or where the logs end now. Yields each entry once it is published.

        Raises the error of a single topic, or `ArchiveIncomplete` after the other topics are archived; `LakeError` if
        the archive cannot be written; and the errors of `Reader` if brokers cannot be reached.
        """
        with self._swept(), self._job.brokers.cluster() as cluster:
            topics = self._begin(cluster)
            logs = self._limited(self._waiting(topics.look))
            report(self.lake, cluster, self._request, left_out=topics.troubles)
            yield from self._up_to(cluster, topics, logs)
            topics.require_none()

    def follow(self, *, every: float = 60.0) -> Generator[Entry, None, None]:
        """Archive what is there and what arrives, forever: every `every` seconds, or sooner if a round is full.

        Yields each entry once it is published. Once started, it waits for brokers that are away for as long as it
        takes. A topic that is gone or was created again is left out, with an event. Raises an error only if no topic is
        left, or if the archive cannot be written.
        """
        with self._swept(), self._job.brokers.cluster() as cluster:
            topics = self._begin(cluster)
            logs: Logs | None = self._waiting(topics.look)
            report(self.lake, cluster, self._request, left_out=topics.troubles)
            held_up: float | None = None
            while True:
                began = time.monotonic()
                try:
                    yield from self._up_to(cluster, topics, logs or self._waiting(topics.look))
                    logs = None
                    if held_up is not None:
                        self._events.emit(ArchiveResumed(str(self.lake.path), time.monotonic() - held_up))
                        held_up = None
                    while time.monotonic() < began + every and not self._is_enough(topics):
                        self._waiting(lambda: time.sleep(min(_LOOK_SECONDS, every)))
                except OttlaError as error:
                    if not is_outage(error):
                        raise
                    logs, held_up = None, began if held_up is None else held_up
                    self._events.emit(ArchiveHeldUp(str(self.lake.path), time.monotonic() - held_up, str(error)))
                    self._waiting(lambda: time.sleep(_AGAIN_SECONDS))

    @contextmanager
    def _swept(self) -> Iterator[None]:
        """Remove the run's staged files at the end, whatever happens: no entry will ever record them."""
        try:
            yield
        finally:
            self.lake.sweep(0.0, run=self._job.run)

    def _begin(self, cluster: Cluster) -> Topics:
        self.lake.recover()
        self.lake.sweep()
        self._survey = survey = Survey(cluster, self._request.topics, self._job.brokers.isolation)
        self._waiting(lambda: begin(self.lake, survey, self._request, self._by))
        self._topics = Topics(
            survey, self.lake, self._request.topics, on_lost=self._request.on_lost, events=self._events
        )
        return self._topics

    def _limited(self, logs: Logs) -> Logs:
        """Return the logs up to where the archive is to end."""
        stop, survey = self._request.stop, self._survey
        if stop is None or stop == "latest" or survey is None:
            return logs
        stops = self._waiting(lambda: survey.at(stop, sorted({tp.topic for tp in logs.ends})))
        return up_to(self.lake.positions(), logs, stops)

    def _is_enough(self, topics: Topics) -> bool:
        logs = self._waiting(topics.look)
        whole = due(self.lake.positions(), logs, on_lost=self._request.on_lost)
        self.progress.expected = self.progress.passed + whole.records
        return limited(whole, self._cutting.round_bytes, logs.record_bytes) != whole

    def _up_to(self, cluster: Cluster, topics: Topics, logs: Logs) -> Iterator[Entry]:
        """Run rounds until everything in these logs is archived. A topic that fails is left out."""
        races = 0  # rounds lost in a row, without progress
        is_alone = False  # whether rounds have one topic each
        while True:
            logs = logs.without(topics.troubles)
            positions, passed = self.lake.positions(), self.progress.passed
            whole = due(positions, logs, on_lost=self._request.on_lost)
            self.progress.expected = passed + whole.records
            if not whole.ranges and not whole.gaps:
                return
            chosen = limited(whole, self._cutting.round_bytes, logs.record_bytes)
            if is_alone:
                chosen = chosen.of(chosen.topics[0])
            try:
                entry = self._round(chosen, logs)
            except (LakeConflict, OffsetsLost) as error:
                # Another archiver or retention was faster: look again, and plan with what is left.
                fresh = self._waiting(topics.look)
                self.progress.passed = passed
                races += 1
                if races > _LOST_RACES or (self.lake.positions() == positions and _has_same_begins(fresh, logs)):
                    # Nothing has changed, so the next round would fail in the same way.
                    if isinstance(error, LakeConflict):
                        raise
                    topics.suspend(error.topic, error)
                    continue
                # The new begins, but the ends of the first look: new records must not prolong this call.
                ends = {tp: end for tp, end in logs.ends.items() if tp in fresh.begins}
                logs = replace(fresh, ends=ends, begins={tp: fresh.begins[tp] for tp in ends})
                continue
            except OttlaError as error:
                if isinstance(error, LakeError) or is_outage(error):
                    raise  # it affects all topics
                self.progress.passed = passed
                if len(chosen.topics) == 1:
                    topics.suspend(chosen.topics[0], error)
                is_alone = True  # from now on one topic at a time, to find out which one fails
                continue
            races = 0
            topics.archived(chosen.topics)
            if entry is not None:
                self.progress.recorded(entry)
                report(self.lake, cluster, self._request, left_out=topics.troubles)
                yield entry

    def _round(self, chosen: Round, logs: Logs) -> Entry | None:
        done: list[Archived] = []
        try:
            with closing(self._engine(self._job, self._cutting.tasks(chosen, logs.record_bytes))) as results:
                while (result := self._waiting(lambda: next(results, None))) is not None:
                    done.append(result)
                    self.progress.done(result)
            self._require_same_topics(chosen, logs)
            return self.lake.append(done, by=self._by, gaps=chosen.gaps, topics=_ids(chosen, logs))
        except BaseException:
            # Ctrl-C, too: the staged files of this round will never be recorded.
            self.lake.sweep(0.0, run=self._job.run)
            raise

    def _require_same_topics(self, chosen: Round, logs: Logs) -> None:
        """Refuse a topic that was created again during the round: its offsets mean other records."""
        assert self._survey is not None
        survey = self._survey
        now = self._waiting(lambda: survey.ids(chosen.topics))
        for topic in chosen.topics:
            require_same_id(topic, logs.topics.get(topic), now.get(topic))


def _has_same_begins(fresh: Logs, logs: Logs) -> bool:
    return all(fresh.begins.get(tp) == begin for tp, begin in logs.begins.items())


def _ids(chosen: Round, logs: Logs) -> dict[str, str]:
    return {topic: logs.topics[topic] for topic in chosen.topics if topic in logs.topics}


def begin(lake: Lake, survey: Survey, request: ArchiveRequest, by: WrittenBy) -> None:
    """Record the start positions of topics that are new to the archive, so that no later run starts elsewhere."""
    if request.start == "earliest":
        return
    positions = lake.positions()
    known = {tp.topic for tp in positions}
    fresh = tuple(topic for topic in request.topics if topic not in known)
    if fresh:
        starts = survey.at(request.start, fresh)
        logs = survey.logs(fresh)  # after the starts, because logs only grow
        starts = beginnings(positions, within(request.start, starts, logs), fresh)
        lake.append([], by=by, starts=starts, topics=survey.ids(fresh))


def report(lake: Lake, cluster: Cluster, request: ArchiveRequest, *, left_out: Collection[str] = ()) -> None:
    """Commit the archive's positions as the offsets of the group, for tools that show its lag.

    Nothing is committed for a topic that is gone or was created again: its offsets mean other records. Raises the
    errors of `Cluster` if brokers cannot be reached.
    """
    last = lake.ledger.last()
    if request.group is None or last is None:
        return
    for topic in request.topics:
        topic_id = last.topics.get(topic)
        offsets = {
            tp: Committed(offset, topic_id=UUID(topic_id) if topic_id else None)
            for tp, offset in last.positions.items()
            if tp.topic == topic and topic not in left_out
        }
        try:
            commit(cluster, GroupMember(request.group), offsets)
        except TopicCreatedAgain as error:
            _log.warning("cannot commit the archive's positions to group %s: %s", request.group, error)
        except BrokerError as error:
            if error.code not in _GONE:
                raise
            _log.warning("cannot commit the archive's positions to group %s: %s", request.group, error)
