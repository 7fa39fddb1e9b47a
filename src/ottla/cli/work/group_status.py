"""The state of a group, read from its store and the brokers, once or repeatedly.

From the second reading on, it has rates, and for how long units have been in flight by the clock of this process. If
the brokers do not answer, the lag is unknown.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ottla.admin import Admin
from ottla.cli.options.store import look
from ottla.engines.fleet.store import Store
from ottla.engines.fleet.units import Counts, Node, Out, PartitionState, Snapshot
from ottla.errors import OttlaError, StoreUnavailable
from ottla.model import OffsetRange, TopicPartition

_HISTORY = 60


class PartitionStatus(NamedTuple):
    """One partition of a group: how far it is, and where its log ends."""

    state: PartitionState
    stop: int | None
    """None if it is unknown."""

    @property
    def lag(self) -> int | None:
        """Offsets that are not done yet."""
        return None if self.stop is None else max(0, self.stop - self.state.done)


class UnitInFlight(NamedTuple):
    """A unit that a node works on."""

    out: Out
    seconds: float | None
    """Since it was first seen; None in the first reading."""


class NodeRate(NamedTuple):
    """Records and units per second of a node."""

    node: Node
    records: float | None
    units: float | None


class GroupRates(NamedTuple):
    """Units and offsets per second of a group, between two readings."""

    done: float
    offsets: float
    failed: float


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A group at one moment."""

    group: str
    store: str
    planner: str | None
    """The name of the node."""
    partitions: tuple[PartitionStatus, ...]
    in_flight: tuple[UnitInFlight, ...]
    """The oldest first."""
    nodes: tuple[NodeRate, ...]
    topics: Mapping[str, str]
    counts: Counts
    halted: Mapping[str, str]
    """Partitions and topics that are not planned, with the reason from the planner."""
    rates: GroupRates | None = None
    """None in the first reading."""
    history: tuple[float, ...] = ()
    """Offsets per second between the last readings, the newest at the end."""
    problem: str = ""
    """Why the ends of logs are unknown."""

    @property
    def waiting(self) -> int:
        """Units that no node has taken."""
        return sum(partition.state.waiting for partition in self.partitions)

    @property
    def given_up(self) -> int:
        """Units on the error list."""
        return sum(partition.state.failed for partition in self.partitions)

    @property
    def lag(self) -> int | None:
        """The lag of all partitions whose end is known; None if none is."""
        known = [partition.lag for partition in self.partitions if partition.lag is not None]
        return sum(known) if known or not self.partitions else None


class StatusReader:
    """Reads the state of a group, and remembers the last reading."""

    def __init__(self, store: Store, admin: Admin, group: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._admin = admin
        self._group = group
        self._clock = clock
        self._counts: tuple[float, Counts] | None = None
        self._since: dict[tuple[OffsetRange, int], float] = {}
        self._reports: dict[str, tuple[float, Node, NodeRate]] = {}
        self._history: deque[float] = deque(maxlen=_HISTORY)

    def read(self) -> GroupStatus:
        """Return the present state. Raises InputError if the store does not have the group."""
        snapshot = look(self._store, self._group)
        now = self._clock()
        stops, problem = self._stops(snapshot)
        in_flight = self._in_flight(snapshot, now)  # before the rates, which end the first reading
        rates = self._rates(snapshot.counts, now)
        if rates is not None:
            self._history.append(rates.offsets)
        return GroupStatus(
            group=self._group,
            store=self._store.address,
            planner=snapshot.planning_node,
            partitions=tuple(PartitionStatus(state, stops.get(state.partition)) for state in snapshot.partitions),
            in_flight=in_flight,
            nodes=tuple(self._node_rate(node, now) for node in snapshot.nodes),
            topics=snapshot.topics,
            counts=snapshot.counts,
            halted=snapshot.halted,
            rates=rates,
            history=tuple(self._history),
            problem=problem,
        )

    def lag(self) -> int | None:
        """Return the lag of the group, None if it is unknown."""
        try:
            snapshot = self._store.look()
            stops, _ = self._stops(snapshot)
        except StoreUnavailable:
            return None
        lags = [
            max(0, stops[state.partition] - state.done) for state in snapshot.partitions if state.partition in stops
        ]
        return sum(lags) if stops else None

    def _stops(self, snapshot: Snapshot) -> tuple[dict[TopicPartition, int], str]:
        try:
            logs = (
                self._admin.visible_log_ranges([state.partition for state in snapshot.partitions])
                if snapshot.partitions
                else {}
            )
        except OttlaError as error:
            return {}, str(error)
        return {tp: log.stop for tp, log in logs.items()}, ""

    def _in_flight(self, snapshot: Snapshot, now: float) -> tuple[UnitInFlight, ...]:
        is_first = self._counts is None
        by_lease = {(unit.range, unit.seen.lease.number): unit for unit in snapshot.out}
        self._since = {key: self._since.get(key, now) for key in by_lease}
        units = [UnitInFlight(unit, None if is_first else now - self._since[key]) for key, unit in by_lease.items()]
        return tuple(sorted(units, key=lambda unit: unit.out.seen.lease.number))

    def _rates(self, counts: Counts, now: float) -> GroupRates | None:
        last, self._counts = self._counts, (now, counts)
        if last is None or now <= last[0]:
            return None
        seconds = now - last[0]
        done, offsets, failed = (
            max(0, getattr(counts, name) - getattr(last[1], name)) / seconds for name in ("done", "offsets", "failed")
        )
        return GroupRates(done, offsets, failed)

    def _node_rate(self, node: Node, now: float) -> NodeRate:
        """Return the rate between two reports of the node; before that, since its start."""
        known = self._reports.get(node.name)
        if known is None:
            rate = _since_start(node)
        elif known[1].beat == node.beat:
            return known[2]._replace(node=node)
        else:
            seconds = max(0.001, now - known[0])
            records = _number(node.report, "records") - _number(known[1].report, "records")
            units = _done(node.report) - _done(known[1].report)
            rate = NodeRate(node, max(0.0, records / seconds), max(0.0, units / seconds))
        self._reports[node.name] = (now, node, rate)
        return rate


def _since_start(node: Node) -> NodeRate:
    """Return the average rate; compares the clock of that host with the one here."""
    seconds = time.time() - _number(node.report, "started")
    if "started" not in node.report or seconds <= 0:
        return NodeRate(node, None, None)
    return NodeRate(node, _number(node.report, "records") / seconds, _done(node.report) / seconds)


def _done(report: Mapping[str, Any]) -> float:
    units = report.get("units") or {}
    return _number(units, "done") + _number(units, "part")


def _number(values: Mapping[str, Any], name: str) -> float:
    value = values.get(name, 0)
    return float(value) if isinstance(value, int | float) else 0.0
