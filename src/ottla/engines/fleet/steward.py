"""The steward of a node: keeps its leases alive, takes units from nodes that are gone, and sees that somebody plans.

It has two threads: one that never waits for brokers, so that beats come in time, and one that plans while this node
has the right to. A store that does not answer is told once and asked again; nothing is given up for it.
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
_TICKS_IN_LEASE = 5
_PLANNER_SECONDS = 1.6
"""How long a planner may be silent: another one goes on within 3 s of its death."""
_PLAN_SECONDS, _IDLE_PLAN_SECONDS = 0.5, 1.0
"""Between two looks for what is new; after one that found nothing, the next is later."""
_USELESS_SECONDS = 40.0
"""How long a planner may try in vain before another node gets the chance: that one may reach the brokers."""
_REST_SECONDS = 3.0
"""For which it does not claim the right again: long enough for the others, and no loss if there are none."""
_HELLO_SECONDS = 2.0
_GONE_SECONDS = 60.0
"""After which a node that says nothing is taken off the list."""
_JOIN_SECONDS = 15.0


class Plans(Protocol):
    """What a node does while it has the right to plan."""

    def begin(self) -> None:
        """The right is new."""

    def round(self, lease: Lease) -> bool:
        """Once; it is called again and again, sooner when it says that there was something to plan.

        Raises `LeaseLost` when the right is gone.
        """

    def end(self) -> None:
        """The right is about to be given up."""


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
        self._store = store
        self._holdings = holdings
        self._planner = planner
        self._charter = charter
        self._node = node
        self._report = report
        self._tell = tell
        self._tick_seconds = min(_MOST_TICK, charter.lease_seconds / _TICKS_IN_LEASE)
        self._units: LeaseWatch[OffsetRange, Seen] = LeaseWatch(charter.lease_seconds)
        self._planners: LeaseWatch[str, Seen] = LeaseWatch(min(_PLANNER_SECONDS, charter.lease_seconds))
        self._nodes: LeaseWatch[str, int] = LeaseWatch(max(_GONE_SECONDS, 2 * charter.lease_seconds))
        self._terms = 0
        self._lease: Lease | None = None
        self._may_plan = threading.Event()
        self._stopped = threading.Event()
        self._down_since: float | None = None
        self._hello_at = 0.0
        self._planned_at = 0.0
        """When planning went well last, or began."""
        self._rests_until = 0.0
        self._threads = [
            threading.Thread(target=self._beat, name=f"ottla-fleet-beat-{node}", daemon=True),
            threading.Thread(target=self._plan, name=f"ottla-fleet-plan-{node}", daemon=True),
        ]

    @property
    def lease(self) -> Lease | None:
        """The right to plan, while this node has it as far as it knows."""
        return self._lease

    @property
    def is_planner(self) -> bool:
        """Whether this node plans, as far as it knows."""
        return self._lease is not None

    def start(self) -> None:
        """Its threads run until `stop`. Those that run already go on."""
        for thread in self._threads:
            if thread.ident is None:
                with suppress(RuntimeError):  # it is about to run
                    thread.start()

    def stop(self) -> None:
        """Ends the threads; another node may plan at once."""
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
            _log.debug("leaving group without saying so: %s", error)

    # Beats

    def _beat(self) -> None:
        while not self._stopped.is_set():
            try:
                self._tick(time.monotonic())
                self._is_up()
            except StoreUnavailable as error:
                self._is_down(error)
            except Exception:
                _log.exception("the beat of node %s failed; it goes on", self._node)
            self._stopped.wait(self._tick_seconds)

    def _tick(self, now: float) -> None:
        self._holdings.renew()
        if now >= self._hello_at:
            self._hello_at = now + _HELLO_SECONDS
            self._store.found(self._charter)  # a store that came back empty has no group
            self._store.hello(self._node, self._report())
            self._forget_nodes(now)
        pulse = self._store.pulse()
        self._holdings.saw(out.seen.lease.number for out in pulse.out)
        for one in self._holdings.give_back_astray(pulse.out):
            self._tell(_reclaimed(one))
        self._reclaim(pulse, now)
        if self._planner is not None:
            self._claim(pulse, now)

    def _reclaim(self, pulse: Pulse, now: float) -> None:
        out = {one.range: one for one in pulse.out}
        for unit, seen in self._units.still({one.range: one.seen for one in pulse.out}, now).items():
            one = out[unit]
            if self._store.reclaim(unit, seen, lost_by(unit, seen.lease.holder, one.attempt, LOST_LEASE)):
                self._tell(_reclaimed(one))

    def _claim(self, pulse: Pulse, now: float) -> None:
        still = self._planners.still({} if pulse.planner is None else {"": pulse.planner}, now)
        if self._lease is not None:
            if self._is_useless(now):
                self._step_down(self._lease, now)
                return
            if self._store.stay(self._lease):
                return
            self._lost_term()
        over = still.get("")
        if now < self._rests_until or (pulse.planner is not None and over is None):
            return
        self._terms += 1
        lease = self._store.lead(f"{self._node}/planner-{self._terms}", over)
        if lease is not None:
            assert self._planner is not None
            self._planned_at = now
            self._lease = lease
            self._may_plan.set()
            self._tell(PlannerChanged(node=self._node, number=lease.number))

    def _is_useless(self, now: float) -> bool:
        return now - self._planned_at > _USELESS_SECONDS

    def _step_down(self, lease: Lease, now: float) -> None:
        _log.warning("node %s could not plan for %.0f s: another one may try", self._node, _USELESS_SECONDS)
        self._lost_term()
        self._rests_until = now + _REST_SECONDS
        self._store.resign(lease)

    def _lost_term(self) -> None:
        self._may_plan.clear()
        self._lease = None

    def _forget_nodes(self, now: float) -> None:
        if self._lease is None:
            return
        for name, beat in self._nodes.still({node.name: node.beat for node in self._store.look().nodes}, now).items():
            self._store.goodbye(name, beat)

    # Planning

    def _plan(self) -> None:
        term: Lease | None = None
        trouble = ""
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
                trouble = ""
                self._planned_at = time.monotonic()
            except LeaseLost:
                pass  # the other thread finds out
            except StoreUnavailable:
                self._planned_at = time.monotonic()  # no other node would do better
            except OttlaError as error:
                if str(error) != trouble:
                    trouble = str(error)
                    _log.warning("planning does not succeed, and goes on trying: %s", error)
            except Exception:
                _log.exception("planning failed; it goes on trying")
            self._stopped.wait(pause)

    # The store's health

    def _is_down(self, error: StoreUnavailable) -> None:
        if self._down_since is None:
            self._down_since = time.monotonic()
            self._tell(StoreDown(store=error.store, reason=error.reason))

    def _is_up(self) -> None:
        if self._down_since is not None:
            seconds, self._down_since = time.monotonic() - self._down_since, None
            self._tell(StoreUp(store=self._store.address, seconds=seconds))


def _reclaimed(one: Out) -> UnitReclaimed:
    unit = one.range
    return UnitReclaimed(
        unit.topic, unit.partition, start=unit.start, stop=unit.stop, attempt=one.attempt, node=one.seen.lease.holder
    )
