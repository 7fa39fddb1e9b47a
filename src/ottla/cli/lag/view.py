"""How lag is shown: one table of all readers, those that need attention first. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ottla.cli.output.styles import Style, faint, paint, state
from ottla.cli.output.tables import table
from ottla.cli.values.numbers import thousands
from ottla.cli.values.quantities import show_duration
from ottla.text import printable

if TYPE_CHECKING:
    from ottla.operations.lag.values import GroupLag, LagRow, Snapshot

_ORDER = ("LOST", "AHEAD", "STOP", "STALL", "REWIND", "WARN", "UNKNOWN", "OK", "NONE")
_HEADINGS = (
    "group",
    "type",
    "topic",
    "partition",
    "committed",
    "end",
    "lag",
    "seconds",
    "state",
    "trend",
    "left",
    "note",
)
LEAST = ("type", "trend", "note", "committed", "end")
"""What is left out first where the terminal is narrow."""
_WARNINGS = ("STALL", "REWIND", "WARN")
_STYLES = {"ERR": Style.BAD, "WARN": Style.WARNING, "UNKNOWN": None, "OK": Style.GOOD}
_FOREVER = float("inf")
_SIGNS = {"bound": "<", "interpolated": "~"}


def snapshot_text(snapshot: Snapshot, *, width: int | None) -> str:
    """Return a headline and the table: by state, then by what retention deletes first, then by lag."""
    rows = sorted(snapshot.rows(), key=_urgency)
    lines = [_headline(snapshot, is_styled=width is not None)]
    if rows:
        lines.append(table(_HEADINGS, [_cells(row) for row in rows], width=width, least=LEAST))
    return "\n".join(lines)


def _urgency(row: LagRow) -> tuple[int, float, int, str, str, int]:
    left = _FOREVER if row.retention_seconds is None else row.retention_seconds
    return (_ORDER.index(row.state), left, -(row.lag_records or 0), row.group, row.topic, row.partition)


def _headline(snapshot: Snapshot, *, is_styled: bool) -> str:
    counts = Counter(str(group.status) for group in snapshot.groups)
    states = ", ".join(
        paint(f"{counts[status]:,} {status}", style, on=is_styled)
        for status, style in _STYLES.items()
        if counts[status]
    )
    groups = len(snapshot.groups)
    worst = min(snapshot.groups, key=_first, default=None)
    text = f"{groups:,} group{'s' if groups != 1 else ''}{': ' + states if states else ''}"
    if worst is not None and _first(worst) < _FOREVER and _first(worst) < 86_400:
        loss = f"{printable(worst.name)} loses records in {show_duration(round(_first(worst)))} at the earliest"
        text += f"; {paint(loss, Style.BAD, on=is_styled)}"
    if snapshot.away:
        away = f"away: broker {', '.join(map(str, sorted(snapshot.away)))}"
        text += f"; {paint(away, Style.BAD, on=is_styled)}"
    return text


def _first(group: GroupLag) -> float:
    return min((row.retention_seconds for row in group.rows if row.retention_seconds is not None), default=_FOREVER)


def _cells(row: LagRow) -> list[str]:
    cells = [
        row.group,
        str(row.type),
        row.topic,
        str(row.partition),
        thousands(row.committed),
        thousands(row.end),
        thousands(row.lag_records),
        _seconds(row),
        state(str(row.state), good=("OK",), warning=_WARNINGS, bad=("LOST", "AHEAD", "STOP")),
        "-" if row.trend is None else f"{row.trend:+,.1f}/s",
        "-" if row.retention_seconds is None else show_duration(round(row.retention_seconds)),
        row.note or "",
    ]
    return faint(cells) if row.lag_records == 0 and str(row.state) in ("OK", "NONE") else cells


def _seconds(row: LagRow) -> str:
    if row.lag_seconds is None:
        return "-"
    shown = f"{row.lag_seconds:,.1f}" if row.lag_seconds < 1000 else show_duration(round(row.lag_seconds))
    return f"{_SIGNS.get(row.method, '')}{shown}"
