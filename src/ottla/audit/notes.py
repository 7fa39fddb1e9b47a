"""What is in an audit topic: tallies by topic and tier, one of each key.

Records come in, in any order; the tallies that count go out. Anything that is not a tally is counted and left out, and
so is what was replaced. Reading is the business of the caller, so that tasks on other machines can each read a part.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from ottla.errors import InputError
from ottla.tally.messages import from_message, key_of
from ottla.tally.values import AuditMessage, RangeTally, SessionPage

_Key = tuple[object, ...]


@dataclass(slots=True)
class Notes:
    """The tallies of an audit topic."""

    tallies: dict[_Key, AuditMessage] = field(default_factory=dict)
    unreadable: int = 0
    """Records that are no tallies."""

    def add_value(self, value: bytes | None) -> None:
        """Add a record of the audit topic by its value. A tombstone is ignored."""
        if value is None:
            return
        try:
            tally = from_message(value)
        except InputError:
            self.unreadable += 1
            return
        self.add(tally)

    def add(self, tally: AuditMessage) -> None:
        """Add a tally. Of two versions of the same, the newer one counts."""
        key: _Key
        if isinstance(tally, SessionPage):
            key = (key_of(tally),)
        else:
            # Ranges of another length are kept as well: `coverage` chooses.
            key = key_of(tally), tally.stop, tally.parts, tally.records
        known = self.tallies.get(key)
        if known is None or _age(tally) >= _age(known):
            self.tallies[key] = tally

    def merge(self, other: Notes) -> None:
        """Add the tallies of another part of the audit topic."""
        self.unreadable += other.unreadable
        for tally in other.tallies.values():
            self.add(tally)

    def selected(
        self, *, topics: Collection[str] | None = None, tiers: Collection[str] | None = None
    ) -> Iterator[AuditMessage]:
        """The tallies of some topics and tiers; None for all."""
        for tally in self.tallies.values():
            if (topics is None or tally.topic in topics) and (tiers is None or tally.tier in tiers):
                yield tally

    def by_topic(self) -> dict[str, dict[str, list[AuditMessage]]]:
        """The tallies by topic and tier, sorted by topic."""
        found: dict[str, dict[str, list[AuditMessage]]] = {}
        for tally in self.tallies.values():
            found.setdefault(tally.topic, {}).setdefault(tally.tier, []).append(tally)
        return dict(sorted(found.items()))

    def tiers(self) -> list[str]:
        """The tiers: those of producers first, those of consumers last, and otherwise by name."""
        roles: dict[str, int] = {}
        for tally in self.tallies.values():
            rank = _RANKS.get(tally.role, 1) if isinstance(tally, SessionPage) else 1
            roles[tally.tier] = min(roles.get(tally.tier, rank), rank)
        return sorted(roles, key=lambda tier: (roles[tier], tier))


_RANKS = {"producer": 0, "consumer": 2}


def collect(values: Iterable[bytes | None]) -> Notes:
    """Return the tallies of records of an audit topic."""
    notes = Notes()
    for value in values:
        notes.add_value(value)
    return notes


def _age(tally: AuditMessage) -> tuple[float, int]:
    return (tally.written, 0) if isinstance(tally, RangeTally) else (0.0, tally.number)
