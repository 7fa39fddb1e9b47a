"""How a group stands, put together from its store and the brokers, once or again and again.

A store and an admin come in, a `Standing` goes out: lag for each partition, and for the second look on, rates and how
long units have been out, measured with the clock of whoever looks. Brokers that do not answer leave lag unknown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ottla.admin import Admin
from ottla.cli.options.fleet import look
from ottla.engines.fleet.store import Store
from ottla.engines.fleet.units import Counts, Node, Out, PartitionState, Snapshot
from ottla.errors import OttlaError, StoreUnavailable
from ottla.model import OffsetRange, TopicPartition


class Behind(NamedTuple):
    """One partition of a group: how far it is, and where its log ends."""

    lane: PartitionState
    stop: int | None
    """None where nobody can tell."""

    @property
    def lag(self) -> int | None:
        """Offsets that are not done."""
        return None if self.stop is None else max(0, self.stop - self.lane.done)


class Flight(NamedTuple):
    """A unit that somebody works on."""

    out: Out
    seconds: float | None
    """Since it was first seen; None at the first look."""


class Pace(NamedTuple):
    """What a node does in a second."""

    node: Node
    records: float | None
    units: float | None


class Rates(NamedTuple):
    """What the group does in a second, between two looks."""

    done: float
    offsets: float
    failed: float


@dataclass(frozen=True, slots=True)
class Standing:
    """A group at one moment."""

    group: str
    store: str
    planner: str | None
    """The name of the node."""
    behind: tuple[Behind, ...]
    flights: tuple[Flight, ...]
    """The oldest first."""
    nodes: tuple[Pace, ...]
    topics: Mapping[str, str]
    counts: Counts
    halted: Mapping[str, str]
    """Partitions and topics that are not planned, and why, as the planner says."""
    rates: Rates | None = None
    """None at the first look."""
    trouble: str = ""
    """Why nothing is known of the ends of logs."""

    @property
    def waiting(self) -> int:
        """Units that nobody has taken."""
        return sum(one.lane.waiting for one in self.behind)

    @property
    def given_up(self) -> int:
        """Units on the error list."""
        return sum(one.lane.failed for one in self.behind)

    @property
    def lag(self) -> int | None:
        """Of all partitions whose end is known; None if that is none of them."""
        known = [one.lag for one in self.behind if one.lag is not None]
        return sum(known) if known or not self.behind else None


class Looking:
    """Looks at a group, and remembers what it saw the last time."""

    def __init__(self, store: Store, admin: Admin, group: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._admin = admin
        self._group = group
        self._clock = clock
        self._counts: tuple[float, Counts] | None = None
        self._since: dict[tuple[OffsetRange, int], float] = {}
        self._reports: dict[str, tuple[float, Node, Pace]] = {}

    def look(self) -> Standing:
        """Now."""
        seen = look(self._store, self._group)
        now = self._clock()
        stops, trouble = self._stops(seen)
        return Standing(
            group=self._group,
            store=self._store.address,
            planner=seen.planning_node,
            behind=tuple(Behind(lane, stops.get(lane.at)) for lane in seen.lanes),
            flights=self._flights(seen, now),
            nodes=tuple(self._pace(node, now) for node in seen.nodes),
            topics=seen.topics,
            counts=seen.counts,
            halted=seen.halted,
            rates=self._rates(seen.counts, now),
            trouble=trouble,
        )

    def lag(self) -> int | None:
        """How far the group is behind, as far as that is known."""
        try:
            seen = self._store.look()
            stops, _ = self._stops(seen)
        except StoreUnavailable:
            return None
        return sum(max(0, stops[lane.at] - lane.done) for lane in seen.lanes if lane.at in stops) if stops else None

    def _stops(self, seen: Snapshot) -> tuple[dict[TopicPartition, int], str]:
        try:
            found = self._admin.visible_log_ranges([lane.at for lane in seen.lanes]) if seen.lanes else {}
        except OttlaError as error:
            return {}, str(error)
        return {at: log.stop for at, log in found.items()}, ""

    def _flights(self, seen: Snapshot, now: float) -> tuple[Flight, ...]:
        is_first = self._counts is None
        keys = {(one.range, one.seen.lease.number): one for one in seen.out}
        self._since = {key: self._since.get(key, now) for key in keys}
        flights = [Flight(one, None if is_first else now - self._since[key]) for key, one in keys.items()]
        return tuple(sorted(flights, key=lambda one: one.out.seen.lease.number))

    def _rates(self, counts: Counts, now: float) -> Rates | None:
        last, self._counts = self._counts, (now, counts)
        if last is None or now <= last[0]:
            return None
        seconds = now - last[0]
        done, offsets, failed = (
            max(0, getattr(counts, name) - getattr(last[1], name)) / seconds for name in ("done", "offsets", "failed")
        )
        return Rates(done, offsets, failed)

    def _pace(self, node: Node, now: float) -> Pace:
        """Between two of its reports; before that, since it began."""
        known = self._reports.get(node.name)
        if known is None:
            pace = _since_start(node)
        elif known[1].beat == node.beat:
            return known[2]._replace(node=node)
        else:
            seconds = max(0.001, now - known[0])
            records = _number(node.report, "records") - _number(known[1].report, "records")
            units = _done(node.report) - _done(known[1].report)
            pace = Pace(node, max(0.0, records / seconds), max(0.0, units / seconds))
        self._reports[node.name] = (now, node, pace)
        return pace


def _since_start(node: Node) -> Pace:
    """By the clock of that host, compared with this one's."""
    seconds = time.time() - _number(node.report, "started")
    if "started" not in node.report or seconds <= 0:
        return Pace(node, None, None)
    return Pace(node, _number(node.report, "records") / seconds, _done(node.report) / seconds)


def _done(report: Mapping[str, Any]) -> float:
    units = report.get("units") or {}
    return _number(units, "done") + _number(units, "part")


def _number(values: Mapping[str, Any], name: str) -> float:
    value = values.get(name, 0)
    return float(value) if isinstance(value, int | float) else 0.0
