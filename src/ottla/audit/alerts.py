"""Changes of state: what was fine and is not any more, or the other way round. Pure.

Rows of a comparison and the state of the last one come in; the changes and the new state go out. A bucket that is late
keeps the state it had: lateness is not worth an alert, nor the end of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ottla.audit.compare import Row, Verdict

State = dict[str, str]
"""The verdicts of all buckets that are not complete."""


@dataclass(frozen=True, slots=True)
class Change:
    """A bucket whose state has changed."""

    row: Row
    before: str
    after: str

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**self.row.to_json(), "before": self.before, "after": self.after}


def changes(before: Mapping[str, str], rows: Iterable[Row]) -> tuple[list[Change], State]:
    """Compare with the last state. Buckets that are not in the rows any more keep theirs."""
    state = dict(before)
    found = []
    for row in rows:
        if row.verdict is Verdict.LATE:
            continue
        key, after = f"{row.topic}/{row.start}", str(row.worst)
        known = before.get(key, str(Verdict.COMPLETE))
        if known != after:
            found.append(Change(row, known, after))
        if row.verdict is Verdict.COMPLETE:
            state.pop(key, None)
        else:
            state[key] = after
    return found, state
