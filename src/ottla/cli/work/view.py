"""How groups and units are shown: as tables for people, and as JSON with everything for programs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ottla.cli.output.bars import bar, clock, sparkline
from ottla.cli.output.styles import Style, Styled, faint, paint
from ottla.cli.output.tables import table
from ottla.cli.values.numbers import thousands
from ottla.cli.values.quantities import show_duration
from ottla.cli.values.unit_ids import unit_id
from ottla.text import printable

if TYPE_CHECKING:
    from ottla.cli.work.group_status import GroupStatus, NodeRate, PartitionStatus, UnitInFlight
    from ottla.engines.fleet.units import Out
    from ottla.model import OffsetRange

_RATES = 10
"""Readings whose rate says how long the rest takes."""
_SHOWN_IN_FLIGHT = 10
"""How many units in flight `ottla work status` shows; `ottla work units` shows all."""


def status_text(status: GroupStatus, *, width: int | None) -> str:
    """Return a group for people."""
    counts = status.counts
    planner = status.planner or "no node at the moment"
    lag = "unknown" if status.lag is None else f"{status.lag:,}"
    is_styled = width is not None
    failed = f"{status.given_up:,} on the error list"
    lines = [
        f"group {paint(printable(status.group), Style.STRONG, on=is_styled)} at {printable(status.store)}: lag {lag},"
        f" {status.waiting:,} units waiting, {len(status.in_flight):,} in flight,"
        f" {paint(failed, Style.BAD if status.given_up else None, on=is_styled)}",
        f"  planned by {paint(printable(planner), None if status.planner else Style.WARNING, on=is_styled)}",
        f"  {counts.done:,} units done ({counts.offsets:,} offsets), {counts.failed:,} attempts failed,"
        f" {counts.reclaimed:,} taken over from dead nodes, {counts.given_back:,} given back",
    ]
    if status.rates is not None:
        rates = status.rates
        now = f"now {rates.done:,.1f} units/s, {rates.offsets:,.0f} offsets/s, {rates.failed:,.1f} failed attempts/s"
        sparks = sparkline(status.history, on=is_styled)
        lines += [f"  {now}  {sparks}", f"  {_progress(status, is_styled=is_styled)}"] if is_styled else [f"  {now}"]
    lines += [
        "  " + paint(printable(f"not planned: {what}: {why}"), Style.WARNING, on=is_styled)
        for what, why in sorted(status.halted.items())
    ]
    for part in (
        _nodes_table(status.nodes, width),
        _in_flight_table(status.in_flight, width),
        _partitions_table(status.partitions, width),
    ):
        lines += [part] if part else []
    return "\n".join(lines)


def _progress(status: GroupStatus, *, is_styled: bool) -> str:
    """Return how much of what the logs hold is done, and how long the rest takes at the rate of the last readings."""
    done, lag = status.counts.offsets, status.lag or 0
    text = bar(done / (done + lag) if done + lag else 1.0, on=is_styled)
    rate = sum(status.history[-_RATES:]) / max(1, len(status.history[-_RATES:]))
    return f"{text}  {clock(lag / rate)} left" if rate and lag / rate >= 1 else text


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
        (unit_id(unit.range), "out", thousands(len(unit.range)), str(unit.attempt), unit.seen.lease.holder)
        for unit in out
    ]
    rows += [(unit_id(unit), "waiting", thousands(len(unit)), "-", "") for unit in waiting]
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
    rows = []
    for partition in partitions:
        state = partition.state
        cells = [
            state.partition.topic,
            str(state.partition.partition),
            thousands(state.done),
            thousands(state.planned),
            thousands(partition.stop),
            thousands(partition.lag),
            thousands(state.waiting),
            thousands(state.out),
            Styled(thousands(state.failed), Style.BAD) if state.failed else thousands(state.failed),
        ]
        is_quiet = partition.lag == 0 and not state.waiting and not state.out and not state.failed
        rows.append(faint(cells) if is_quiet else cells)
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
