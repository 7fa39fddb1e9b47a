"""The steward of a node: keeps its leases alive, takes units away from dead nodes, and makes sure that one node plans.

It has two threads. The first never waits for brokers, so that beats are sent in time. The second plans while this node
holds the lease to plan. While the store does not answer, the steward emits one event and keeps trying; it gives nothing
up. What a planner does is not known here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from ottla.engines.fleet.held_units import HeldUnits, lost_by
from ottla.engines.fleet.lease_watch import LeaseWatch
from ottla.engines.fleet.rules import LOST_LEASE
from ottla.engines.fleet.store import Store
from ottla.engines.fleet.units import Charter, Lease, Out, Pulse, Seen
from ottla.errors import LeaseLost, OttlaError, StoreUnavailable
from ottla.events import Event, PlannerChanged, StoreDown, StoreUp, UnitReclaimed
from ottla.model import OffsetRange

_log = logging.getLogger(__name__)
_MOST_TICK = 0.4
"""Maximum time between two beats, in seconds."""
_TICKS_IN_LEASE = 5
"""Minimum number of beats in the time of a lease, so that a few lost ones do no harm."""
_PLANNER_SECONDS = 1.6
"""How long a planner may be silent. With this, another node plans within 3 s of its death."""
_PLAN_SECONDS, _IDLE_PLAN_SECONDS = 0.5, 1.0
"""Time between two planning rounds; the second value follows a round that planned nothing."""
_USELESS_SECONDS = 40.0
"""How long planning may fail before the node resigns: another node may be able to reach the brokers."""
_REST_SECONDS = 3.0
"""How long the node does not try to plan after that. Long enough for the others, and harmless if there are none."""
_HELLO_SECONDS = 2.0
"""Time between two reports of the node about itself."""
_GONE_SECONDS = 60.0
"""How long a node may be silent before it is removed from the list."""
_JOIN_SECONDS = 15.0
"""How long `stop` waits for each thread. A planning round may wait for brokers."""


class Plans(Protocol):
    """What a node does while it holds the lease to plan."""

    def begin(self) -> None:
        """Begin a term: the lease is new."""

    def round(self, lease: Lease) -> bool:
        """Run one planning round, and return whether anything was planned: the next round then follows sooner.

        Raises `LeaseLost` if the lease is lost.
        """

    def end(self) -> None:
        """End the term: the lease is about to be given up."""


class Steward:
    """Looks after one node's part in a group."""

    def __init__(
        self,
        store: Store,
        holdings: HeldUnits,
        planner: Plans | None,
        charter: Charter,
        *,
        node: str,
        report: Callable[[], Mapping[str, Any]],
        tell: Callable[[Event], None],
    ) -> None:
        """`report` returns what the node publishes about itself; `tell` receives events."""
        self._store = store
        self._held_units = holdings
        self._planner = planner
        self._charter = charter
        self._node = node
        self._report = report
        self._emit = tell
        self._tick_seconds = min(_MOST_TICK, charter.lease_seconds / _TICKS_IN_LEASE)
        self._units: LeaseWatch[OffsetRange, Seen] = LeaseWatch(charter.lease_seconds)
        self._planners: LeaseWatch[str, Seen] = LeaseWatch(min(_PLANNER_SECONDS, charter.lease_seconds))
        self._nodes: LeaseWatch[str, int] = LeaseWatch(max(_GONE_SECONDS, 2 * charter.lease_seconds))
        self._terms = 0
        """Number of leases to plan that this node has asked for. It makes each holder unique."""
        self._lease: Lease | None = None
        self._may_plan = threading.Event()
        self._stopped = threading.Event()
        self._down_since: float | None = None
        self._hello_at = 0.0
        self._planned_at = 0.0
        """When a round last succeeded, or the term began."""
        self._rests_until = 0.0
        self._threads = [
            threading.Thread(target=self._beat, name=f"ottla-fleet-beat-{node}", daemon=True),
            threading.Thread(target=self._plan, name=f"ottla-fleet-plan-{node}", daemon=True),
        ]

    @property
    def lease(self) -> Lease | None:
        """The lease to plan, as long as this node believes that it holds it."""
        return self._lease

    @property
    def is_planner(self) -> bool:
        """Whether this node believes that it is the planner."""
        return self._lease is not None

    def start(self) -> None:
        """Start the threads, which run until `stop`. A second call starts only those that are not running."""
        for thread in self._threads:
            if thread.ident is None:
                with suppress(RuntimeError):  # another thread has just started it
                    thread.start()

    def stop(self) -> None:
        """Stop the threads and leave the group, so that another node can plan at once."""
        self._stopped.set()
        self._may_plan.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(_JOIN_SECONDS)
        try:
            if self._lease is not None:
                if self._planner is not None:
                    self._planner.end()
                self._store.resign(self._lease)
            self._store.goodbye(self._node)
        except OttlaError as error:
            _log.debug("could not sign off from the group: %s", error)

    # Beats

    def _beat(self) -> None:
        """The loop of the first thread."""
        while not self._stopped.is_set():
            try:
                self._tick(time.monotonic())
                self._report_up()
            except StoreUnavailable as error:
                self._report_down(error)
            except Exception:
                _log.exception("a beat of node %s failed; the next one follows", self._node)
            self._stopped.wait(self._tick_seconds)

    def _tick(self, now: float) -> None:
        """Renew leases, report, watch the others, and look after the lease to plan."""
        self._held_units.renew()
        if now >= self._hello_at:
            self._hello_at = now + _HELLO_SECONDS
            self._store.found(self._charter)  # a store that came back empty has no group
            self._store.hello(self._node, self._report())
            self._forget_nodes(now)
        pulse = self._store.pulse()
        self._held_units.saw(unit.seen.lease.number for unit in pulse.out)
        for unit in self._held_units.give_back_astray(pulse.out):
            self._emit(_reclaimed(unit))
        self._reclaim(pulse, now)
        if self._planner is not None:
            self._claim(pulse, now)

    def _reclaim(self, pulse: Pulse, now: float) -> None:
        """Take units away whose lease has expired."""
        out = {unit.range: unit for unit in pulse.out}
        for range_, seen in self._units.still({unit.range: unit.seen for unit in pulse.out}, now).items():
            unit = out[range_]
            if self._store.reclaim(range_, seen, lost_by(range_, seen.lease.holder, unit.attempt, LOST_LEASE)):
                self._emit(_reclaimed(unit))

    def _claim(self, pulse: Pulse, now: float) -> None:
        """Renew the lease to plan, give it up, or take it if it is free or expired."""
        expired = self._planners.still({} if pulse.planner is None else {"": pulse.planner}, now)
        if self._lease is not None:
            if self._is_useless(now):
                self._step_down(self._lease, now)
                return
            if self._store.stay(self._lease):
                return
            self._lost_term()
        over = expired.get("")
        if now < self._rests_until or (pulse.planner is not None and over is None):
            return  # the other planner is alive, or this node has just stepped down
        self._terms += 1
        lease = self._store.lead(f"{self._node}/planner-{self._terms}", over)
        if lease is not None:
            assert self._planner is not None
            self._planned_at = now
            self._lease = lease
            self._may_plan.set()
            self._emit(PlannerChanged(node=self._node, number=lease.number))

    def _is_useless(self, now: float) -> bool:
        return now - self._planned_at > _USELESS_SECONDS

    def _step_down(self, lease: Lease, now: float) -> None:
        """Give the lease to plan to another node, which may be able to reach the brokers."""
        _log.warning("node %s could not plan for %.0f s and lets another node try", self._node, _USELESS_SECONDS)
        self._lost_term()
        self._rests_until = now + _REST_SECONDS
        self._store.resign(lease)

    def _lost_term(self) -> None:
        self._may_plan.clear()
        self._lease = None

    def _forget_nodes(self, now: float) -> None:
        """Remove silent nodes from the list. Only the planner does this."""
        if self._lease is None:
            return
        for name, beat in self._nodes.still({node.name: node.beat for node in self._store.look().nodes}, now).items():
            self._store.goodbye(name, beat)

    # Planning

    def _plan(self) -> None:
        """The loop of the second thread."""
        term: Lease | None = None
        last_error = ""
        while not self._stopped.is_set():
            self._may_plan.wait()
            lease, planner = self._lease, self._planner
            if self._stopped.is_set() or planner is None:
                return
            if lease is None:
                continue
            if lease != term:
                planner.begin()
                term = lease
            pause = _PLAN_SECONDS
            try:
                if not planner.round(lease):
                    pause = _IDLE_PLAN_SECONDS
                last_error = ""
                self._planned_at = time.monotonic()
            except LeaseLost:
                pass  # the other thread will notice
            except StoreUnavailable:
                self._planned_at = time.monotonic()  # do not step down: another node would do no better
            except OttlaError as error:
                if str(error) != last_error:
                    last_error = str(error)
                    _log.warning("planning failed, retrying: %s", error)
            except Exception:
                _log.exception("planning failed, retrying")
            self._stopped.wait(pause)

    # The store's health

    def _report_down(self, error: StoreUnavailable) -> None:
        if self._down_since is None:
            self._down_since = time.monotonic()
            self._emit(StoreDown(store=error.store, reason=error.reason))

    def _report_up(self) -> None:
        if self._down_since is not None:
            seconds, self._down_since = time.monotonic() - self._down_since, None
            self._emit(StoreUp(store=self._store.address, seconds=seconds))


def _reclaimed(out: Out) -> UnitReclaimed:
    unit = out.range
    return UnitReclaimed(
        unit.topic, unit.partition, start=unit.start, stop=unit.stop, attempt=out.attempt, node=out.seen.lease.holder
    )
