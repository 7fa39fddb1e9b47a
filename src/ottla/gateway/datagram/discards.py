"""Counts what a listener could not deliver, by reporting period, in dory's terms.

Events come in with their time, `Report` values go out. dory keeps the last finished period and forgets the others, so
that a slow poller loses them; here finished reports with content are kept, as many as `keep`, and `totals` never goes
back. Pure: the caller has the clock and the lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

PERIOD_SECONDS = 600
KEEP_REPORTS = 144
"""A day of periods."""
_SAMPLES = 10
_SAMPLE_BYTES = 256
_MOST_TOPICS = 1000
OTHER_TOPICS = "(other topics)"
"""Under which topics are counted when a report has too many."""


@dataclass(slots=True)
class Interval:
    """Messages of one topic: how many, and the first and last of their timestamps, in milliseconds."""

    first_ms: int
    last_ms: int
    count: int = 0

    def add(self, first_ms: int, last_ms: int, count: int) -> None:
        """Count more."""
        self.first_ms = min(self.first_ms, first_ms)
        self.last_ms = max(self.last_ms, last_ms)
        self.count += count


@dataclass(slots=True)
class Report:
    """What happened in one period. Samples are the most recent ones first."""

    id: int
    start_time: int
    malformed: int = 0
    unix_unclean: int = 0
    tcp_unclean: int = 0
    unsupported_key: int = 0
    unsupported_version: int = 0
    bad_topic: int = 0
    malformed_samples: list[bytes] = field(default_factory=list)
    unix_unclean_samples: list[bytes] = field(default_factory=list)
    tcp_unclean_samples: list[bytes] = field(default_factory=list)
    versions: dict[int, int] = field(default_factory=dict)
    bad_topic_samples: list[bytes] = field(default_factory=list)
    too_long_samples: list[bytes] = field(default_factory=list)
    rate_limited: dict[str, int] = field(default_factory=dict)
    discarded: dict[str, Interval] = field(default_factory=dict)
    possible_duplicates: dict[str, Interval] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether nothing happened."""
        return not any(getattr(self, entry.name) for entry in fields(self) if entry.name not in ("id", "start_time"))


@dataclass(slots=True)
class Totals:
    """Everything since the start."""

    malformed: int = 0
    unclean: int = 0
    unsupported_key: int = 0
    unsupported_version: int = 0
    bad_topic: int = 0
    discarded: int = 0
    possible_duplicates: int = 0


class Discards:
    """The period that is running, and the finished ones."""

    def __init__(
        self, now: float, *, period: int = PERIOD_SECONDS, keep: int = KEEP_REPORTS, samples: bool = True
    ) -> None:
        """`samples` is whether the beginnings of messages are kept: status pages show them."""
        if period < 1 or keep < 1:
            raise ValueError(f"period is {period} and keep is {keep}, expected at least 1")
        self.period = period
        self.totals = Totals()
        self._has_samples = samples
        self._start = int(now)
        self._running = Report(0, self._start)
        self._finished: deque[Report] = deque(maxlen=keep)

    def running(self, now: float) -> Report:
        """Return the report of the current period. A clock that goes back does not reopen one."""
        number = max(0, int(now) - self._start) // self.period
        if number > self._running.id:
            if not self._running.is_empty:
                self._finished.append(self._running)
            self._running = Report(number, self._start + number * self.period)
        return self._running

    def last_finished(self, now: float) -> Report | None:
        """Return the report of the period before the current one, None in the first one."""
        number = self.running(now).id - 1
        if number < 0:
            return None
        for report in reversed(self._finished):
            if report.id == number:
                return report
        return Report(number, self._start + number * self.period)

    def finished(self, now: float) -> tuple[Report, ...]:
        """Return the kept reports of finished periods in which something happened, the oldest first."""
        self.running(now)
        return tuple(self._finished)

    def malformed(self, now: float, samples: Iterable[bytes], *, count: int) -> None:
        """Count messages that are none."""
        report = self.running(now)
        report.malformed += count
        self.totals.malformed += count
        self._sample(report.malformed_samples, samples)

    def unclean(self, now: float, sample: bytes, *, is_tcp: bool) -> None:
        """Count a connection that ended in the middle of a message, of which `sample` arrived."""
        report = self.running(now)
        self.totals.unclean += 1
        if is_tcp:
            report.tcp_unclean += 1
        else:
            report.unix_unclean += 1
        self._sample(report.tcp_unclean_samples if is_tcp else report.unix_unclean_samples, [sample])

    def unsupported_key(self, now: float, *, count: int) -> None:
        """Count messages of a kind that is not known."""
        self.running(now).unsupported_key += count
        self.totals.unsupported_key += count

    def unsupported_version(self, now: float, version: int, *, count: int) -> None:
        """Count messages of a version that is not known."""
        report = self.running(now)
        report.unsupported_version += count
        self.totals.unsupported_version += count
        if version in report.versions or len(report.versions) < _MOST_TOPICS:
            report.versions[version] = report.versions.get(version, 0) + count

    def bad_topic(self, now: float, topic: bytes, *, count: int) -> None:
        """Count messages for a topic that does not exist or cannot."""
        report = self.running(now)
        report.bad_topic += count
        self.totals.bad_topic += count
        _to_front(report.bad_topic_samples, topic[:_SAMPLE_BYTES])

    def too_long(self, now: float, topic: str, beginning: bytes, *, times_ms: tuple[int, int], count: int = 1) -> None:
        """Count messages that no batch may hold."""
        self._sample(self.running(now).too_long_samples, [topic.encode() + b" " + beginning])
        self.discarded(now, topic, times_ms=times_ms, count=count)

    def discarded(self, now: float, topic: str, *, times_ms: tuple[int, int], count: int) -> None:
        """Count messages that were accepted and not delivered."""
        _add(self.running(now).discarded, topic, times_ms, count)
        self.totals.discarded += count

    def possible_duplicate(self, now: float, topic: str, *, times_ms: tuple[int, int], count: int) -> None:
        """Count messages that were given up and may be in the log nevertheless."""
        _add(self.running(now).possible_duplicates, topic, times_ms, count)
        self.totals.possible_duplicates += count

    def _sample(self, samples: list[bytes], more: Iterable[bytes]) -> None:
        for sample in more if self._has_samples else ():
            _to_front(samples, sample[:_SAMPLE_BYTES])


def _to_front(samples: list[bytes], sample: bytes) -> None:
    """Put a sample to the front; it is not there twice."""
    if sample in samples:
        samples.remove(sample)
    samples.insert(0, sample)
    del samples[_SAMPLES:]


def _add(topics: dict[str, Interval], topic: str, times_ms: tuple[int, int], count: int) -> None:
    if topic not in topics and len(topics) >= _MOST_TOPICS:
        topic = OTHER_TOPICS
    topics.setdefault(topic, Interval(*times_ms)).add(*times_ms, count)
