"""Runs links, each on threads of its own: mirrors, publishes its state, and translates consumer groups.

Links come in, reports or errors come out, one of them per link. Links share nothing: one whose cluster is away, or that
fails, delays no other. With `follow`, a link that cannot begin tries again until it is stopped. Nothing is printed.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from ottla.config import Retry
from ottla.errors import BrokerError, DeadlineExceeded, NetworkError, NoBrokerReachable, OttlaError
from ottla.events import Events, MirrorProgress
from ottla.jobs.mirror_audit import Counting
from ottla.jobs.mirror_groups import GroupSync
from ottla.jobs.mirror_link import Link
from ottla.jobs.mirror_maps import known_maps
from ottla.jobs.mirror_report import MirrorReport
from ottla.jobs.mirror_status import (
    Meter,
    PartitionStatus,
    ProcessNote,
    highest,
    measure,
    position_of,
    publish,
    total,
    with_lag,
)
from ottla.jobs.mirrors import Mirroring
from ottla.mirror.lane import Phase
from ottla.net.context import Sinks

_log = logging.getLogger(__name__)
STATUS_SECONDS = 5.0
"""How often a link publishes its state and translates groups."""
_FIRST_SECONDS = 0.5
_LAST_SECONDS = 3.0
"""How long the last publication may take."""
_RETRY = Retry(initial=0.5, maximum=15.0)
_NAP = 0.1
_MOST_REFUSED = 100
"""How many topics that the target refuses a link names in its state: a note is one record."""
_JOIN_SECONDS = 20.0
"""How long a link that was stopped may take: its last batches are acknowledged, its marks written."""


@dataclass(frozen=True, slots=True)
class LinkProgress:
    """How far one run of a link is."""

    link: str
    state: str
    """`opening`, `running`, `waiting` (it cannot begin and tries again) or `ended`."""
    records: int = 0
    size_bytes: int = 0
    batches: int = 0
    passed_on: int = 0
    lag_records: int | None = None
    partitions: int = 0
    failed: int = 0
    error: str | None = None


class LinkRun:
    """One link that runs on a thread of its own."""

    def __init__(
        self,
        link: Link,
        *,
        follow: bool,
        events: Events,
        take_over: bool = False,
        status_seconds: float = STATUS_SECONDS,
    ) -> None:
        self.link = link
        self.report: MirrorReport | None = None
        """What it did, once it has ended."""
        self.error: OttlaError | None = None
        """Why it could not begin or go on; with `follow`, it may be trying again."""
        self.state = "opening"
        self._follow = follow
        self._take_over = take_over
        self._events = events
        self._seconds = status_seconds
        self._stopped = threading.Event()
        self._is_closed_by_stop = False
        self._mirroring: Mirroring | None = None
        self._publisher: _Publisher | None = None
        self._thread = threading.Thread(target=self._run, name=f"ottla-mirror-{link.name}", daemon=True)

    def start(self) -> None:
        """Start mirroring."""
        self._thread.start()

    def stop(self) -> None:
        """Let it end soon, in an orderly way. One that waits for its clusters ends at once: nothing is under way."""
        self._stopped.set()
        mirroring = self._mirroring
        if mirroring is not None and not mirroring.lanes():
            self._is_closed_by_stop = True
            mirroring.close()

    def join(self, seconds: float) -> bool:
        """Wait for its end. Returns whether it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    @property
    def is_running(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def progress(self) -> LinkProgress:
        """Return how far it is. Any thread may ask."""
        lanes = [] if (mirroring := self._mirroring) is None else mirroring.lanes()
        counts = [lane.counts for lane in lanes]
        batches = sum(each.batches for each in counts)
        error = next((str(lane.error) for lane in lanes if lane.error is not None), None)
        return LinkProgress(
            self.link.name,
            self.state,
            records=sum(each.records for each in counts),
            size_bytes=sum(each.size_bytes for each in counts),
            batches=batches,
            passed_on=batches - sum(sum(each.recoded.values()) for each in counts),
            lag_records=None if self._publisher is None else self._publisher.lag_records,
            partitions=len(lanes),
            failed=sum(lane.phase is Phase.FAILED for lane in lanes),
            error=error or (None if self.error is None else str(self.error)),
        )

    def _run(self) -> None:
        failures = 0
        while True:
            try:
                self._mirror()
                self.error = None
                break
            except OttlaError as error:
                if self._is_closed_by_stop:
                    break  # that its connections were closed is no failure
                self.error = error
                failures += 1
                if not self._follow or not _may_pass(error) or self._stopped.is_set():
                    break
                _log.warning("link %s cannot run and will try again: %s", self.link.name, error)
                self.state = "waiting"
                if self._stopped.wait(_RETRY.wait(failures, 0.0)):
                    break
            except Exception as error:  # what ends a thread is seen only here
                _log.exception("link %s ended by an internal error", self.link.name)
                self.error = OttlaError(f"internal error, please report it: {type(error).__name__}: {error}")
                self.error.__cause__ = error
                break
        self.state = "ended"

    def _mirror(self) -> None:
        self.state = "opening"
        with Mirroring(self.link, events=self._events) as mirroring:
            self._mirroring = mirroring
            if self._stopped.is_set():
                return  # `stop` may have come before there was anything to close
            publisher = self._publisher = _Publisher(mirroring, self._events, self._seconds, self._began)
            with self._counting(mirroring), publisher:
                self.report = mirroring.run(
                    follow=self._follow, take_over=self._take_over, is_stopped=self._stopped.is_set
                )

    def _counting(self, mirroring: Mirroring) -> Counting | nullcontext[None]:
        """Return what counts the target beside the mirror, if the link asks for it."""
        if self.link.audit is None:
            return nullcontext()
        return Counting(
            self.link.audit,
            self.link.target_brokers,
            lambda: {lane.target.topic for lane in mirroring.lanes()},
            link=self.link.name,
        )

    def _began(self) -> None:
        self.state = "running"
        self.error = None


class _Publisher:
    """Publishes the state of a running link, emits its progress as events, and translates groups. A thread does it."""

    def __init__(self, mirroring: Mirroring, events: Events, seconds: float, began: Callable[[], None]) -> None:
        self.lag_records: int | None = None
        self._mirroring = mirroring
        self._events = events
        self._seconds = seconds
        self._began = began
        self._meter = Meter()
        self._since = time.time()
        self._told: dict[str, tuple[int, int]] = {}
        """Records and bytes of each topic that events have told of."""
        self._untranslated: dict[str, str] = {}
        """The groups whose offsets could not be translated at the last attempt, and why."""
        self._ended = threading.Event()
        name = f"ottla-mirror-status-{mirroring.link.name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> _Publisher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(2 * _LAST_SECONDS + self._seconds)
        if self._has_begun:
            self._publish_state("ended", seconds=_LAST_SECONDS)
            self._translate_groups()

    def _run(self) -> None:
        while not self._has_begun:  # it has not connected yet
            if self._ended.wait(_NAP):
                return
        self._began()
        wait = _FIRST_SECONDS
        while not self._ended.wait(wait):
            wait = self._seconds
            self._publish_state("running", seconds=self._seconds)
            self._translate_groups()

    @property
    def _has_begun(self) -> bool:
        return bool(self._mirroring.lanes() or self._mirroring.refused)

    def _publish_state(self, state: str, *, seconds: float) -> None:
        """Publish the state, if possible: the mirror itself does not depend on it."""
        try:
            self._publish(state, seconds=seconds)
        except (OttlaError, TimeoutError) as error:
            _log.info("link %s: its state was not published: %s", self._mirroring.link.name, error)

    def _publish(self, state: str, *, seconds: float) -> None:
        mirroring = self._mirroring
        lanes = mirroring.lanes()
        statuses = self._meter.read(lanes, now=time.monotonic())
        try:
            measured = measure(mirroring.source, statuses, seconds=seconds)
        except OttlaError as error:  # what it knows without the source is published nevertheless
            measured = {}
            _log.info("link %s: its lag is unknown: %s", mirroring.link.name, error)
        statuses = [with_lag(status, measured.get(status.source)) for status in statuses]
        self.lag_records = total(status.lag.records for status in statuses)
        self._tell(statuses)
        process = ProcessNote(
            host=socket.gethostname(),
            pid=os.getpid(),
            since=self._since,
            at=time.time(),
            state=state,
            source=mirroring.link.source_brokers.bootstrap,
            records=sum(lane.counts.records for lane in lanes),
            size_bytes=sum(lane.counts.size_bytes for lane in lanes),
            error=next((status.error for status in statuses if status.error is not None), None),
            refused=tuple(f"{each.source}: {each.reason}" for each in mirroring.refused[:_MOST_REFUSED]),
        )
        publish(mirroring.journal, process, statuses)

    def _tell(self, statuses: Sequence[PartitionStatus]) -> None:
        """Emit an event for each topic."""
        lanes = {lane.source: lane for lane in self._mirroring.lanes()}
        by_topic: dict[str, list[PartitionStatus]] = {}
        for status in statuses:
            by_topic.setdefault(status.source.topic, []).append(status)
        for topic, rows in by_topic.items():
            counts = [lanes[status.source].counts for status in rows]
            records, size = sum(each.records for each in counts), sum(each.size_bytes for each in counts)
            told_records, told_size = self._told.get(topic, (0, 0))
            self._told[topic] = records, size
            batches = sum(status.batches for status in rows)
            self._events.emit(
                MirrorProgress(
                    self._mirroring.link.name,
                    topic,
                    rows[0].target.topic,
                    records - told_records,
                    size - told_size,
                    total(status.lag.records for status in rows),
                    total(status.lag.size_bytes for status in rows),
                    highest(status.lag.seconds for status in rows),
                    sum(status.passed_on for status in rows) / batches if batches else None,
                    sum(status.phase == Phase.FAILED.name.lower() for status in rows),
                )
            )

    def _translate_groups(self) -> None:
        """Translate groups. What fails is tried again with the next state, and is a warning when it is new."""
        mirroring = self._mirroring
        groups = mirroring.link.groups
        if not groups:
            return
        failed: dict[str, str] = {}
        reached = {lane.source: position for lane in mirroring.lanes() if (position := position_of(lane))}
        sync = GroupSync(mirroring.source, mirroring.target, mirroring.journal, tuple(groups))
        try:
            sync.run(
                known_maps(mirroring.journal, reached),
                refused=lambda group, error: failed.update({f"group {group}": str(error)}),
            )
        except (OttlaError, TimeoutError) as error:
            failed[f"groups {', '.join(groups)}"] = str(error)
        for who, reason in failed.items():
            if self._untranslated.get(who) != reason:
                _log.warning(
                    "link %s: the offsets of %s were not translated, will retry: %s", mirroring.link.name, who, reason
                )
        self._untranslated = failed


def run_links(
    links: Iterable[Link],
    *,
    follow: bool = False,
    take_over: bool = False,
    is_stopped: Callable[[], bool] = lambda: False,
    events: Sinks = (),
    watch: Callable[[Sequence[LinkRun]], None] | None = None,
    status_seconds: float = STATUS_SECONDS,
) -> list[LinkRun]:
    """Run links until all have ended, or until stopped. Returns them, each with its report or error.

    Whatever ends a link is its error, also one that is not Ottla's, and that it did not end in time after a stop. A
    link that is stopped before it could begin has neither report nor error. A link that another process mirrors is an
    error, unless `take_over` is set.
    `watch` gets them when they have started, for progress.
    """
    hub = events if isinstance(events, Events) else Events(*events)
    runs = [
        LinkRun(link, follow=follow, take_over=take_over, events=hub, status_seconds=status_seconds) for link in links
    ]
    for run in runs:
        run.start()
    if watch is not None:
        watch(runs)
    try:
        while any(run.is_running for run in runs) and not is_stopped():
            time.sleep(_NAP)
    finally:
        for run in runs:
            run.stop()
    deadline = time.monotonic() + _JOIN_SECONDS
    for run in runs:
        if not run.join(max(0.0, deadline - time.monotonic())):
            advice = "what it had under way may have arrived or not; the next run finds out"
            run.error = DeadlineExceeded(f"stopping link {run.link.name}", _JOIN_SECONDS, advice=advice)
    return runs


def _may_pass(error: OttlaError) -> bool:
    """Whether trying again may help."""
    if isinstance(error, BrokerError):
        return error.retriable
    return isinstance(error, NetworkError | NoBrokerReachable | DeadlineExceeded)
