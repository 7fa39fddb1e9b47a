"""How a fleet's group looks: as tables for people, and as JSON that loses nothing for programs.

Standings, units and failures come in; text or plain values for JSON go out. It asks nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ottla.cli.values.unit_ids import unit_id
from ottla.cli.values.units import show_duration, show_size
from ottla.cli.views.tables import table

if TYPE_CHECKING:
    from ottla.cli.working.looking import Behind, Flight, Pace, Standing
    from ottla.cli.working.running import Tally
    from ottla.engines.fleet.units import Failure, Out
    from ottla.model import OffsetRange

_MANY_FLIGHTS = 10
"""So many units in flight are shown with a group; `ottla work units` shows all."""


def status_text(one: Standing, *, width: int | None) -> str:
    """A group for people."""
    counts = one.counts
    planner = one.planner or "nobody at the moment"
    lag = "unknown" if one.lag is None else f"{one.lag:,}"
    lines = [
        f"group {one.group} at {one.store}: lag {lag}, {one.waiting:,} units wait, {len(one.flights):,} in flight,"
        f" {one.given_up:,} on the error list",
        f"  planned by {planner}",
        f"  {counts.done:,} units done ({counts.offsets:,} offsets), {counts.failed:,} attempts failed,"
        f" {counts.reclaimed:,} taken from nodes that were gone, {counts.given_back:,} given back",
    ]
    if one.rates is not None:
        rates = one.rates
        lines.append(
            f"  now {rates.done:,.1f} units/s, {rates.offsets:,.0f} offsets/s, {rates.failed:,.1f} failed attempts/s"
        )
    lines += [f"  not planned: {what}: {why}" for what, why in sorted(one.halted.items())]
    for part in (_nodes_table(one.nodes, width), _flights_table(one.flights, width), _lanes_table(one.behind, width)):
        lines += [part] if part else []
    return "\n".join(lines)


def status_dict(one: Standing) -> dict[str, Any]:
    """A group for JSON."""
    return {
        "group": one.group,
        "store": one.store,
        "planner": one.planner,
        "lag": one.lag,
        "waiting": one.waiting,
        "in_flight": len(one.flights),
        "on_error_list": one.given_up,
        "counts": one.counts._asdict(),
        "rates": None if one.rates is None else {name: round(value, 3) for name, value in one.rates._asdict().items()},
        "topics": sorted(one.topics),
        "halted": dict(one.halted),
        "nodes": [_node_dict(pace) for pace in one.nodes],
        "out": [_flight_dict(flight) for flight in one.flights],
        "partitions": [_behind_dict(behind) for behind in one.behind],
    }


def units_text(waiting: Sequence[OffsetRange], out: Sequence[Out], *, width: int | None) -> str:
    """Units, those that somebody works on first."""
    rows = [(unit_id(one.range), "out", f"{len(one.range)}", str(one.attempt), one.seen.lease.holder) for one in out]
    rows += [(unit_id(unit), "waiting", f"{len(unit)}", "-", "") for unit in waiting]
    return table(("unit", "state", "offsets", "attempt", "holder"), rows, width=width)


def unit_dict(unit: OffsetRange, out: Out | None = None) -> dict[str, Any]:
    """A unit for JSON."""
    return {
        **_range_dict(unit),
        "state": "waiting" if out is None else "out",
        "attempt": None if out is None else out.attempt,
        "holder": None if out is None else out.seen.lease.holder,
        "fence": None if out is None else out.seen.lease.number,
    }


def failures_text(failures: Sequence[Failure], *, width: int | None) -> str:
    """The error list."""
    rows = [(unit_id(one.range), str(one.attempts), show_time(one.at), one.host or "-", one.reason) for one in failures]
    return table(("unit", "attempts", "last", "host", "reason"), rows, width=width)


def failure_text(failure: Failure) -> str:
    """A unit of the error list, with everything that is known."""
    lines = [
        f"unit      {unit_id(failure.range)}",
        f"offsets   {len(failure.range):,}",
        f"attempts  {failure.attempts}",
        f"last      {show_time(failure.at)}",
        f"host      {failure.host or '-'}",
        f"reason    {failure.reason}",
    ]
    return "\n".join([*lines, "", failure.traceback.rstrip()] if failure.traceback else lines)


def failure_dict(failure: Failure) -> dict[str, Any]:
    """The same for JSON."""
    return {
        **_range_dict(failure.range),
        "attempts": failure.attempts,
        "reason": failure.reason,
        "traceback": failure.traceback,
        "host": failure.host,
        "at": failure.at,
    }


def tally_text(tally: Tally, seconds: float) -> str:
    """What a run has done."""
    text = f"{_units(tally.done)} done: {tally.records:,} records ({show_size(tally.size_bytes)}) in {seconds:.1f} s"
    for count, what in ((tally.failed, "failed"), (tally.given_back, "given back"), (tally.lost, "lost")):
        text += f", {count:,} {what}" if count else ""
    return text


def show_time(at: float) -> str:
    """A moment in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if at > 0 else "-"


def _units(count: int) -> str:
    return f"{count:,} unit{'s' if count != 1 else ''}"


def _range_dict(unit: OffsetRange) -> dict[str, Any]:
    return {
        "unit": unit_id(unit),
        "topic": unit.topic,
        "partition": unit.partition,
        "start": unit.start,
        "stop": unit.stop,
    }


def _nodes_table(nodes: Sequence[Pace], width: int | None) -> str:
    rows = [
        (
            pace.node.name,
            "planner" if pace.node.report.get("planner") else "",
            str(pace.node.report.get("holds", "-")),
            _ended(pace),
            f"{int(pace.node.report.get('records') or 0):,}",
            "-" if pace.records is None else f"{pace.records:,.0f}",
        )
        for pace in nodes
    ]
    return table(("node", "", "holds", "units", "records", "records/s"), rows, width=width, indent=2) if rows else ""


def _ended(pace: Pace) -> str:
    units = dict(pace.node.report.get("units") or {})
    return ", ".join(f"{count:,} {what}" for what, count in sorted(units.items())) or "none yet"


def _node_dict(pace: Pace) -> dict[str, Any]:
    return {
        "name": pace.node.name,
        "beat": pace.node.beat,
        "records_per_second": None if pace.records is None else round(pace.records, 3),
        "units_per_second": None if pace.units is None else round(pace.units, 3),
        "report": dict(pace.node.report),
    }


def _flights_table(flights: Sequence[Flight], width: int | None) -> str:
    from ottla.engines.fleet.units import node_of

    rows = [
        (
            unit_id(flight.out.range),
            str(flight.out.attempt),
            node_of(flight.out.seen.lease.holder),
            "-" if flight.seconds is None else show_duration(round(flight.seconds)),
        )
        for flight in flights[:_MANY_FLIGHTS]
    ]
    if not rows:
        return ""
    shown = table(("in flight, oldest first", "attempt", "node", "seen for"), rows, width=width, indent=2)
    more = len(flights) - len(rows)
    return f"{shown}\n  and {more:,} more" if more > 0 else shown


def _flight_dict(flight: Flight) -> dict[str, Any]:
    seconds = None if flight.seconds is None else round(flight.seconds, 3)
    return {**unit_dict(flight.out.range, flight.out), "seen_seconds": seconds}


def _lanes_table(behind: Sequence[Behind], width: int | None) -> str:
    rows = [
        (
            one.lane.at.topic,
            str(one.lane.at.partition),
            str(one.lane.done),
            str(one.lane.planned),
            "-" if one.stop is None else str(one.stop),
            "-" if one.lag is None else f"{one.lag:,}",
            str(one.lane.waiting),
            str(one.lane.out),
            str(one.lane.failed),
        )
        for one in behind
    ]
    headings = ("topic", "partition", "done", "planned", "end", "lag", "waiting", "out", "failed")
    return table(headings, rows, width=width, indent=2) if rows else ""


def _behind_dict(one: Behind) -> dict[str, Any]:
    return {
        "topic": one.lane.at.topic,
        "partition": one.lane.at.partition,
        "done": one.lane.done,
        "planned": one.lane.planned,
        "end": one.stop,
        "lag": one.lag,
        "waiting": one.lane.waiting,
        "out": one.lane.out,
        "failed": one.lane.failed,
    }
