"""Runs the mirror of some partitions: fetches from the source and hands what comes to the forwarder.

Lanes come in, each with the offsets to mirror. `run` returns when all of them are done or have failed, or when it is
stopped. Two threads of their own do the work: the fetcher's and the forwarder's. It decides nothing.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ottla.events import Events
from ottla.fetch.cursor import Failed
from ottla.fetch.fetcher import Fetcher
from ottla.fetch.options import Fetching, FetchPolicy, OnLost
from ottla.mirror.forwarder import Forwarder
from ottla.mirror.journal import Journal
from ottla.mirror.lane import Lane, Phase
from ottla.mirror.rules import Action, Policy
from ottla.mirror.throttle import Throttle
from ottla.model import Isolation
from ottla.net.cluster import Cluster
from ottla.net.deadline import Deadline

_NAP = 0.2
"""How often a waiting pump checks whether it was stopped."""
_DRAIN_SECONDS = 5.0
"""How long a pump that was stopped waits for acknowledgements."""
_FETCHING = Fetching(memory_bytes=96 << 20)
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpSettings:
    """How a pump works."""

    policy: Policy = field(default_factory=Policy)
    throttle: Throttle = field(default_factory=Throttle)
    fetching: Fetching = _FETCHING
    events: Events = field(default_factory=Events)


class Pump:
    """Mirrors partitions from `source` to `target`. One thread calls `run`; `add` may be called from any."""

    def __init__(self, source: Cluster, target: Cluster, journal: Journal, settings: PumpSettings) -> None:
        number = next(_numbers)
        policy = settings.policy
        fetch_policy = FetchPolicy(
            settings.fetching,
            Isolation.READ_COMMITTED,
            OnLost.EARLIEST if policy.on_lost is Action.CONTINUE else OnLost.ERROR,
            policy.patience,
        )
        self._source = source
        self._channel = f"mirror-from-{number}"
        self._fetcher = Fetcher(source, fetch_policy, channel=self._channel, events=settings.events)
        self._forwarder = Forwarder(
            target,
            source,
            self._fetcher,
            journal,
            policy=policy,
            throttle=settings.throttle,
            events=settings.events,
            channel=f"mirror-to-{number}",
        )
        self._lanes: list[Lane] = []

    @property
    def lanes(self) -> list[Lane]:
        """All lanes. Their state may change at any moment."""
        return list(self._lanes)

    def add(self, lanes: Iterable[Lane]) -> None:
        """Mirror these lanes, too."""
        new = list(lanes)
        self._lanes += new
        self._forwarder.add(new)

    def run(self, is_stopped: Callable[[], bool] = lambda: False, *, follow: bool = False) -> None:
        """Mirror until all lanes are done or have failed, or until `is_stopped` returns True.

        With `follow` it goes on even then: lanes may be added or retried.
        """
        try:
            self._fetcher.start()
            self._forwarder.start(self._fetcher.ring)
            while not is_stopped() and not self._is_over(follow):
                self._fetcher.wait(Deadline.after(_NAP))
                item = self._fetcher.take()
                if item is None:
                    self._fetcher.check()
                elif isinstance(item, Failed):
                    self._forwarder.source_failed(item.cursor, item.error)
                else:
                    self._forwarder.take(item)
                del item
        finally:
            self._end()

    def retry(self, lanes: Iterable[Lane]) -> None:
        """Try failed lanes again."""
        self._forwarder.retry(lanes)

    def _is_over(self, follow: bool) -> bool:
        over = all(lane.phase in (Phase.DONE, Phase.FAILED) for lane in self._lanes)
        return self._forwarder.has_stopped or (over and not follow)

    def _end(self) -> None:
        self._fetcher.stop()
        deadline = Deadline.after(_DRAIN_SECONDS)
        while any(lane.in_flight for lane in self._lanes) and not deadline.expired():
            time.sleep(0.01)
        self._forwarder.stop()
        self._source.leave(self._channel)
