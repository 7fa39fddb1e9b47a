"""How groups and units are shown: as tables for people, and as JSON with everything for programs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ottla.cli.output.tables import table
from ottla.cli.values.quantities import show_duration
from ottla.cli.values.unit_ids import unit_id

if TYPE_CHECKING:
    from ottla.cli.work.group_status import GroupStatus, NodeRate, PartitionStatus, UnitInFlight
    from ottla.engines.fleet.units import Out
    from ottla.model import OffsetRange

_SHOWN_IN_FLIGHT = 10
"""How many units in flight `ottla work status` shows; `ottla work units` shows all."""


def status_text(status: GroupStatus, *, width: int | None) -> str:
    """Return a group for people."""
    counts = status.counts
    planner = status.planner or "no node at the moment"
    lag = "unknown" if status.lag is None else f"{status.lag:,}"
    lines = [
        f"group {status.group} at {status.store}: lag {lag}, {status.waiting:,} units waiting,"
        f" {len(status.in_flight):,} in flight, {status.given_up:,} on the error list",
        f"  planned by {planner}",
        f"  {counts.done:,} units done ({counts.offsets:,} offsets), {counts.failed:,} attempts failed,"
        f" {counts.reclaimed:,} taken over from dead nodes, {counts.given_back:,} given back",
    ]
    if status.rates is not None:
        rates = status.rates
        lines.append(
            f"  now {rates.done:,.1f} units/s, {rates.offsets:,.0f} offsets/s, {rates.failed:,.1f} failed attempts/s"
        )
    lines += [f"  not planned: {what}: {why}" for what, why in sorted(status.halted.items())]
    for part in (
        _nodes_table(status.nodes, width),
        _in_flight_table(status.in_flight, width),
        _partitions_table(status.partitions, width),
    ):
        lines += [part] if part else []
    return "\n".join(lines)


def status_dict(status: GroupStatus) -> dict[str, Any]:
    """Return a group for JSON."""
    return {
        "group": status.group,
        "store": status.store,
        "planner": status.planner,
        "lag": status.lag,
        "waiting": status.waiting,
        "in_flight": len(status.in_flight),
        "on_error_list": status.given_up,
        "counts": status.counts._asdict(),
        "rates": None
        if status.rates is None
        else {name: round(value, 3) for name, value in status.rates._asdict().items()},
        "topics": sorted(status.topics),
        "halted": dict(status.halted),
        "nodes": [_node_dict(rate) for rate in status.nodes],
        "out": [_in_flight_dict(unit) for unit in status.in_flight],
        "partitions": [_partition_dict(partition) for partition in status.partitions],
    }


def units_text(waiting: Sequence[OffsetRange], out: Sequence[Out], *, width: int | None) -> str:
    """Return a table of units, those in flight first."""
    rows = [
        (unit_id(unit.range), "out", f"{len(unit.range)}", str(unit.attempt), unit.seen.lease.holder) for unit in out
    ]
    rows += [(unit_id(unit), "waiting", f"{len(unit)}", "-", "") for unit in waiting]
    return table(("unit", "state", "offsets", "attempt", "holder"), rows, width=width)


def unit_dict(unit: OffsetRange, out: Out | None = None) -> dict[str, Any]:
    """Return a unit for JSON."""
    return {
        **range_dict(unit),
        "state": "waiting" if out is None else "out",
        "attempt": None if out is None else out.attempt,
        "holder": None if out is None else out.seen.lease.holder,
        "fence": None if out is None else out.seen.lease.number,
    }


def range_dict(unit: OffsetRange) -> dict[str, Any]:
    """Return the offsets of a unit for JSON."""
    return {
        "unit": unit_id(unit),
        "topic": unit.topic,
        "partition": unit.partition,
        "start": unit.start,
        "stop": unit.stop,
    }


def _nodes_table(rates: Sequence[NodeRate], width: int | None) -> str:
    rows = [
        (
            rate.node.name,
            "planner" if rate.node.report.get("planner") else "",
            str(rate.node.report.get("holds", "-")),
            _ended(rate),
            f"{int(rate.node.report.get('records') or 0):,}",
            "-" if rate.records is None else f"{rate.records:,.0f}",
        )
        for rate in rates
    ]
    return table(("node", "", "holds", "units", "records", "records/s"), rows, width=width, indent=2) if rows else ""


def _ended(rate: NodeRate) -> str:
    units = dict(rate.node.report.get("units") or {})
    return ", ".join(f"{count:,} {what}" for what, count in sorted(units.items())) or "none yet"


def _node_dict(rate: NodeRate) -> dict[str, Any]:
    return {
        "name": rate.node.name,
        "beat": rate.node.beat,
        "records_per_second": None if rate.records is None else round(rate.records, 3),
        "units_per_second": None if rate.units is None else round(rate.units, 3),
        "report": dict(rate.node.report),
    }


def _in_flight_table(units: Sequence[UnitInFlight], width: int | None) -> str:
    from ottla.engines.fleet.units import node_of

    rows = [
        (
            unit_id(unit.out.range),
            str(unit.out.attempt),
            node_of(unit.out.seen.lease.holder),
            "-" if unit.seconds is None else show_duration(round(unit.seconds)),
        )
        for unit in units[:_SHOWN_IN_FLIGHT]
    ]
    if not rows:
        return ""
    shown = table(("in flight, oldest first", "attempt", "node", "seen for"), rows, width=width, indent=2)
    more = len(units) - len(rows)
    return f"{shown}\n  and {more:,} more" if more > 0 else shown


def _in_flight_dict(unit: UnitInFlight) -> dict[str, Any]:
    seconds = None if unit.seconds is None else round(unit.seconds, 3)
    return {**unit_dict(unit.out.range, unit.out), "seen_seconds": seconds}


def _partitions_table(partitions: Sequence[PartitionStatus], width: int | None) -> str:
    rows = [
        (
            partition.state.partition.topic,
            str(partition.state.partition.partition),
            str(partition.state.done),
            str(partition.state.planned),
            "-" if partition.stop is None else str(partition.stop),
            "-" if partition.lag is None else f"{partition.lag:,}",
            str(partition.state.waiting),
            str(partition.state.out),
            str(partition.state.failed),
        )
        for partition in partitions
    ]
    headings = ("topic", "partition", "done", "planned", "end", "lag", "waiting", "out", "failed")
    return table(headings, rows, width=width, indent=2) if rows else ""


def _partition_dict(partition: PartitionStatus) -> dict[str, Any]:
    return {
        "topic": partition.state.partition.topic,
        "partition": partition.state.partition.partition,
        "done": partition.state.done,
        "planned": partition.state.planned,
        "end": partition.stop,
        "lag": partition.lag,
        "waiting": partition.state.waiting,
        "out": partition.state.out,
        "failed": partition.state.failed,
    }
