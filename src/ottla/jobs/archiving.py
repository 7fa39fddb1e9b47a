"""Archives topics round by round: what is due is planned, run by an engine, recorded in the ledger and published.

A lake, brokers, topics and an engine come in; entries of the ledger go out as they are published. The engine is a
function that runs a job over ranges: this module knows none. What it holds in memory is one round's receipts.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from ottla.admin.committed import Committed, commit
from ottla.errors import InputError, LakeConflict, OffsetsLost
from ottla.fetch.options import OnLost
from ottla.jobs.archive_plan import Cutting, Logs, Round, Start, Survey, beginnings, check, due, limited
from ottla.jobs.archive_range import Archived, ArchiveRange
from ottla.lake.lake import Lake
from ottla.lake.values import Entry, WrittenBy
from ottla.model import GroupMember, OffsetRange
from ottla.net import Cluster

T = TypeVar("T")
_LOST_RACES = 20
_LOOK_SECONDS = 0.5


class Waiting(Protocol):
    """Runs a step that mostly waits."""

    def __call__(self, step: Callable[[], T], /) -> T:
        """What the step returns."""


def _simply(step: Callable[[], T], /) -> T:
    return step()


class Engine(Protocol):
    """Runs a job over ranges; results come as they are ready. `engines.local.run` with its settings is one."""

    def __call__(self, job: Callable[[OffsetRange], T], ranges: Iterable[OffsetRange], /) -> Generator[T, None, None]:
        """Closing the iterator stops what is under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
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
        wanted: Wanted,
        *,
        engine: Engine,
        cutting: Cutting,
        name: str = "local",
        waiting: Waiting = _simply,
        progress: Progress | None = None,
    ) -> None:
        self.lake = lake
        self.progress = progress or Progress()
        self._job = job
        self._wanted = wanted
        self._engine = engine
        self._cutting = cutting
        self._waiting = waiting
        self._by = WrittenBy(engine=name, host=socket.gethostname())

    def until_now(self) -> Generator[Entry, None, None]:
        """Archives up to where the logs end now; an entry comes out when it is published."""
        with self._swept(), self._job.brokers.cluster() as cluster:
            survey = self._begin(cluster)
            yield from self._up_to(cluster, survey, self._logs(survey))

    def follow(self, *, every: float = 60.0) -> Generator[Entry, None, None]:
        """Archives what is there and what comes, for ever: every so many seconds, or sooner if there is enough."""
        with self._swept(), self._job.brokers.cluster() as cluster:
            survey = self._begin(cluster)
            while True:
                began = time.monotonic()
                yield from self._up_to(cluster, survey, self._logs(survey))
                while time.monotonic() < began + every and not self._is_enough(survey):
                    self._waiting(lambda: time.sleep(min(_LOOK_SECONDS, every)))

    @contextmanager
    def _swept(self) -> Iterator[None]:
        """Whatever happens, the run leaves nothing behind that nobody will record."""
        try:
            yield
        finally:
            self.lake.sweep(0.0, run=self._job.run)

    def _begin(self, cluster: Cluster) -> Survey:
        self.lake.recover()
        self.lake.sweep()
        survey = Survey(cluster, self._wanted.topics, self._job.brokers.isolation)
        self._waiting(lambda: begin(self.lake, survey, self._wanted, self._by))
        report(self.lake, cluster, self._wanted)
        return survey

    def _logs(self, survey: Survey) -> Logs:
        before = self.lake.positions()
        logs = self._waiting(survey.logs)
        check(before, logs)
        return logs

    def _is_enough(self, survey: Survey) -> bool:
        logs = self._logs(survey)
        whole = due(self.lake.positions(), logs, on_lost=self._wanted.on_lost)
        self.progress.expected = self.progress.passed + whole.records
        return limited(whole, self._cutting.round_bytes, logs.record_bytes) != whole

    def _up_to(self, cluster: Cluster, survey: Survey, logs: Logs) -> Iterator[Entry]:
        """Rounds, until everything in these logs is archived."""
        races = 0
        while True:
            positions, passed = self.lake.positions(), self.progress.passed
            whole = due(positions, logs, on_lost=self._wanted.on_lost)
            self.progress.expected = passed + whole.records
            if not whole.ranges and not whole.gaps:
                return
            try:
                entry = self._round(limited(whole, self._cutting.round_bytes, logs.record_bytes), logs)
            except (LakeConflict, OffsetsLost):
                # Another archiver was faster, or retention was: how things stand now says what is left to do.
                fresh = self._logs(survey)
                races += 1
                if races > _LOST_RACES or (self.lake.positions() == positions and fresh.begins == logs.begins):
                    raise
                logs = replace(fresh, ends=logs.ends)
                self.progress.passed = passed
                continue
            races = 0
            if entry is not None:
                self.progress.recorded(entry)
                report(self.lake, cluster, self._wanted)
                yield entry

    def _round(self, chosen: Round, logs: Logs) -> Entry | None:
        done: list[Archived] = []
        try:
            with closing(self._engine(self._job, self._cutting.tasks(chosen, logs.record_bytes))) as results:
                while (result := self._waiting(lambda: next(results, None))) is not None:
                    done.append(result)
                    self.progress.done(result)
            return self.lake.append(done, by=self._by, gaps=chosen.gaps, topics=logs.topics)
        except BaseException:
            self.lake.sweep(0.0, run=self._job.run)
            raise


def begin(lake: Lake, survey: Survey, wanted: Wanted, by: WrittenBy) -> None:
    """Records where topics begin that the archive does not have yet: another run must not begin elsewhere."""
    if wanted.start == "earliest":
        return
    positions = lake.positions()
    known = {at.topic for at in positions}
    if all(topic in known for topic in wanted.topics):
        return
    starts = beginnings(positions, survey.at(wanted.start), wanted.topics)
    lake.append([], by=by, starts=starts, topics=survey.logs().topics)


def report(lake: Lake, cluster: Cluster, wanted: Wanted) -> None:
    """Tells the group how far the archive is, for tools that look at its lag."""
    if wanted.group is None:
        return
    offsets = {at: Committed(offset) for at, offset in lake.positions().items() if at.topic in wanted.topics}
    commit(cluster, GroupMember(wanted.group), offsets)
