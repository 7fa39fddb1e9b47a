"""Archives topics round by round: what is due is planned, run by an engine, recorded in the ledger and published.

A lake, brokers, topics and an engine come in; entries of the ledger go out as they are published. The engine is a
function that runs a job over ranges: this module knows none. What it holds in memory is one round's receipts.
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
from ottla.engines.contract import Engine
from ottla.errors import BrokerError, ErrorCode, InputError, LakeConflict, LakeError, OffsetsLost, OttlaError
from ottla.events import ArchiveHeldUp, ArchiveResumed, Events, Sink
from ottla.fetch.options import OnLost
from ottla.jobs.archive_plan import Cutting, Logs, Round, Start, Survey, beginnings, due, limited, require_same_id
from ottla.jobs.archive_range import Archived, ArchiveRange
from ottla.jobs.archive_topics import Topics, is_outage
from ottla.lake.lake import Lake
from ottla.lake.values import Entry, WrittenBy
from ottla.model import GroupMember
from ottla.net import Cluster

T = TypeVar("T")
_log = logging.getLogger(__name__)
_GONE = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id})
_LOST_RACES = 20
_LOOK_SECONDS = 0.5
_AGAIN_SECONDS = 2.0
"""Between attempts while brokers are away, which take their time themselves."""


class Waiting(Protocol):
    """Runs a step that mostly waits."""

    def __call__(self, step: Callable[[], T], /) -> T:
        """What the step returns."""


def _simply(step: Callable[[], T], /) -> T:
    return step()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveRequest:
    """What is to be archived."""

    topics: tuple[str, ...]
    start: Start = "earliest"
    """Where topics begin that the archive does not have yet."""
    on_lost: OnLost = OnLost.ERROR
    """EARLIEST: records that retention deleted before they were archived become a gap that the ledger names."""
    group: str | None = None
    """The consumer group that is told how far the archive is."""

    def __post_init__(self) -> None:
        if self.on_lost is OnLost.LATEST:
            raise InputError(
                "an archive that goes on at 'latest' would leave out what could be archived: use 'earliest'"
            )


@dataclass(slots=True)
class Progress:
    """How things stand, for whoever shows it."""

    records: int = 0
    size_bytes: int = 0
    files: int = 0
    file_bytes: int = 0
    untimed: int = 0
    entries: int = 0
    lost: int = 0
    """Offsets that were gone before they could be archived."""
    expected: int = 0
    """Offsets that were due when this was last looked at, and those done since the beginning."""
    passed: int = 0
    """Offsets of ranges that are done."""
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return max(time.monotonic() - self.began, 1e-9)

    @property
    def lag(self) -> int:
        """Offsets that are still to be archived, as far as was looked."""
        return max(0, self.expected - self.passed)

    def done(self, result: Archived) -> None:
        """A range is done; it counts as archived when its entry is."""
        self.passed += len(result.receipt.range)

    def recorded(self, entry: Entry) -> None:
        """An entry is published."""
        self.entries += 1
        self.records += sum(one.count for one in entry.receipts)
        self.size_bytes += sum(one.size_bytes for one in entry.receipts)
        self.files += len(entry.files)
        self.file_bytes += sum(one.size_bytes for one in entry.files)
        self.untimed += entry.untimed
        self.lost += sum(len(one.range) for one in entry.gaps)


class Archiving:
    """One archiver on one lake. Several may work on the same one: the slower one's work is thrown away.

    `waiting` runs every step that only waits: a program passes what lets a signal end such a step.
    """

    def __init__(
        self,
        lake: Lake,
        job: ArchiveRange,
        wanted: ArchiveRequest,
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
        self._wanted = wanted
        self._engine = engine
        self._cutting = cutting
        self._waiting = waiting
        self._by = WrittenBy(engine=name, host=socket.gethostname())

    @property
    def troubles(self) -> Mapping[str, OttlaError]:
        """Topics that cannot be archived at present, and why."""
        return {} if self._topics is None else self._topics.troubles

    def until_now(self) -> Generator[Entry, None, None]:
        """Archives up to where the logs end now; an entry comes out when it is published.

        What is wrong with some of several topics is raised at the end, when the others are archived.
        """
        with self._swept(), self._job.brokers.cluster() as cluster:
            topics = self._begin(cluster)
            logs = self._waiting(topics.look)
            report(self.lake, cluster, self._wanted, left_out=topics.troubles)
            yield from self._up_to(cluster, topics, logs)
            topics.require_none()

    def follow(self, *, every: float = 60.0) -> Generator[Entry, None, None]:
        """Archives what is there and what comes, for ever: every so many seconds, or sooner if there is enough.

        Brokers may be away for as long as they like, once it has begun. A topic that is gone, or is another one by now,
        is left out, with an event; only when none is left, it ends with an error.
        """
        with self._swept(), self._job.brokers.cluster() as cluster:
            topics = self._begin(cluster)
            logs: Logs | None = self._waiting(topics.look)
            report(self.lake, cluster, self._wanted, left_out=topics.troubles)
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
        """Whatever happens, the run leaves nothing behind that nobody will record."""
        try:
            yield
        finally:
            self.lake.sweep(0.0, run=self._job.run)

    def _begin(self, cluster: Cluster) -> Topics:
        self.lake.recover()
        self.lake.sweep()
        self._survey = survey = Survey(cluster, self._wanted.topics, self._job.brokers.isolation)
        self._waiting(lambda: begin(self.lake, survey, self._wanted, self._by))
        self._topics = Topics(survey, self.lake, self._wanted.topics, on_lost=self._wanted.on_lost, events=self._events)
        return self._topics

    def _is_enough(self, topics: Topics) -> bool:
        logs = self._waiting(topics.look)
        whole = due(self.lake.positions(), logs, on_lost=self._wanted.on_lost)
        self.progress.expected = self.progress.passed + whole.records
        return limited(whole, self._cutting.round_bytes, logs.record_bytes) != whole

    def _up_to(self, cluster: Cluster, topics: Topics, logs: Logs) -> Iterator[Entry]:
        """Rounds, until everything in these logs is archived. An error that is one topic's leaves that one out."""
        races = 0
        is_alone = False
        while True:
            logs = logs.without(topics.troubles)
            positions, passed = self.lake.positions(), self.progress.passed
            whole = due(positions, logs, on_lost=self._wanted.on_lost)
            self.progress.expected = passed + whole.records
            if not whole.ranges and not whole.gaps:
                return
            chosen = limited(whole, self._cutting.round_bytes, logs.record_bytes)
            if is_alone:
                chosen = chosen.of(chosen.topics[0])
            try:
                entry = self._round(chosen, logs)
            except (LakeConflict, OffsetsLost) as error:
                # Another archiver was faster, or retention was: how things stand now says what is left to do.
                fresh = self._waiting(topics.look)
                self.progress.passed = passed
                races += 1
                if races > _LOST_RACES or (self.lake.positions() == positions and _begin_as(fresh, logs)):
                    if isinstance(error, LakeConflict):
                        raise
                    topics.suspend(error.topic, error)
                    continue
                ends = {at: end for at, end in logs.ends.items() if at in fresh.begins}
                logs = replace(fresh, ends=ends, begins={at: fresh.begins[at] for at in ends})
                continue
            except OttlaError as error:
                if isinstance(error, LakeError) or is_outage(error):
                    raise
                self.progress.passed = passed
                if len(chosen.topics) == 1:
                    topics.suspend(chosen.topics[0], error)
                is_alone = True  # from now on one topic at a time: that tells which one it is
                continue
            races = 0
            topics.archived(chosen.topics)
            if entry is not None:
                self.progress.recorded(entry)
                report(self.lake, cluster, self._wanted, left_out=topics.troubles)
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
            self.lake.sweep(0.0, run=self._job.run)
            raise

    def _require_same_topics(self, chosen: Round, logs: Logs) -> None:
        """A topic that was created again since we looked has other records under the same offsets."""
        assert self._survey is not None
        survey = self._survey
        now = self._waiting(lambda: survey.ids(chosen.topics))
        for topic in chosen.topics:
            require_same_id(topic, logs.topics.get(topic), now.get(topic))


def _begin_as(fresh: Logs, logs: Logs) -> bool:
    return all(fresh.begins.get(at) == begin for at, begin in logs.begins.items())


def _ids(chosen: Round, logs: Logs) -> dict[str, str]:
    return {topic: logs.topics[topic] for topic in chosen.topics if topic in logs.topics}


def begin(lake: Lake, survey: Survey, wanted: ArchiveRequest, by: WrittenBy) -> None:
    """Records where topics begin that the archive does not have yet: another run must not begin elsewhere."""
    if wanted.start == "earliest":
        return
    positions = lake.positions()
    known = {at.topic for at in positions}
    fresh = tuple(topic for topic in wanted.topics if topic not in known)
    if fresh:
        starts = beginnings(positions, survey.at(wanted.start, fresh), fresh)
        lake.append([], by=by, starts=starts, topics=survey.ids(fresh))


def report(lake: Lake, cluster: Cluster, wanted: ArchiveRequest, *, left_out: Collection[str] = ()) -> None:
    """Tells the group how far the archive is, for tools that look at its lag.

    Offsets are those of the topics that were archived: one that is gone, or is another one by now, has none.
    """
    last = lake.ledger.last()
    if wanted.group is None or last is None:
        return
    for topic in wanted.topics:
        known = last.topics.get(topic)
        offsets = {
            at: Committed(offset, topic_id=UUID(known) if known else None)
            for at, offset in last.positions.items()
            if at.topic == topic and topic not in left_out
        }
        try:
            commit(cluster, GroupMember(wanted.group), offsets)
        except TopicCreatedAgain as error:
            _log.warning("group %s is not told how far the archive is: %s", wanted.group, error)
        except BrokerError as error:
            if error.code not in _GONE:
                raise
            _log.warning("group %s is not told how far the archive is: %s", wanted.group, error)
