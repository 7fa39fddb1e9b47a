"""Changes of a group's state that are worth an alert: those that last. Pure.

Comes in: the groups of each poll. Goes out: changes. A state counts once as many polls in a row have seen it, so that a
group which goes back and forth at the edge of a rule causes no alert. A group that begins well is no change; one whose
state is unknown keeps the state it had.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ottla.operations.lag.values import FAULTS, GroupLag, State, Status, most

_ROWS = 20
"""Partitions in an alert, the worst first."""


@dataclass(frozen=True, slots=True)
class Change:
    """A group whose state has changed for good."""

    group: GroupLag
    before: Status
    after: Status
    at: float
    """When it was first seen in the new state."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        bad = [row for row in self.group.rows if row.state in FAULTS or row.state is State.WARN]
        bad.sort(key=lambda row: row.lag_records or 0, reverse=True)
        return {
            "group": self.group.name,
            "type": str(self.group.type),
            "before": str(self.before),
            "after": str(self.after),
            "at": round(self.at, 3),
            "lag_records": self.group.lag_records,
            "lag_seconds": most(row.lag_seconds for row in self.group.rows),
            "retention_seconds": min(
                (row.retention_seconds for row in self.group.rows if row.retention_seconds is not None), default=None
            ),
            "partitions": [row.to_json() for row in bad[:_ROWS]],
        }


@dataclass(slots=True)
class _Standing:
    """What is known of one group."""

    confirmed: Status
    candidate: Status
    since: float
    polls: int


class Hysteresis:
    """Remembers the state of each group. A state counts after `polls` polls in a row."""

    def __init__(self, polls: int = 3) -> None:
        self._polls = polls
        self._told: dict[tuple[str, str], Status] = {}
        self._groups: dict[tuple[str, str], _Standing] = {}

    def begin_with(self, told: Mapping[tuple[str, str], Status]) -> None:
        """Continue from what was told of groups, by type and name, before a restart."""
        self._told = dict(told)

    def observe(self, groups: Iterable[GroupLag], now: float) -> list[Change]:
        """Return what has changed for good with this poll. Groups that are gone are forgotten."""
        changes = []
        kept: dict[tuple[str, str], _Standing] = {}
        for group in groups:
            key = (str(group.type), group.name)
            standing = self._groups.get(key)
            if standing is None:
                told = self._told.pop(key, Status.OK)
                standing = _Standing(told, told, now, 0)
            kept[key] = standing
            if group.status is Status.UNKNOWN:
                continue
            if group.status is not standing.candidate:
                standing.candidate, standing.since, standing.polls = group.status, now, 0
            standing.polls += 1
            if standing.candidate is not standing.confirmed and standing.polls >= self._polls:
                changes.append(Change(group, standing.confirmed, standing.candidate, standing.since))
                standing.confirmed = standing.candidate
        self._groups = kept
        return changes
