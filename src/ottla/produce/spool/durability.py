"""What was written since the last fsync, and what must not be given up before the next one.

Tickets, new segments, and the entries they supersede come in. Out go the superseded ids that may be finished, or the
tickets that are in doubt after a failure. It decides nothing about the entries themselves.
"""

from __future__ import annotations

from pathlib import Path

from ottla.produce.spool.segment import Segment, sync_directory
from ottla.produce.spool.values import Ticket


class Durability:
    """The bookkeeping of a store with fsync. `recent` are the tickets that a power loss could still take."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.recent: list[Ticket] = []
        self._segments: list[Segment] = []
        self._superseded: dict[int, tuple[int, ...]] = {}
        self._has_new_name = False

    def add_segment(self, segment: Segment) -> None:
        """Record that entries go into this new segment from now on."""
        self._segments.append(segment)
        self._has_new_name = True

    def put(self, ticket: Ticket, supersedes: int) -> None:
        """Record a written entry. What it supersedes, also through entries that never became durable, waits for it."""
        self.recent.append(ticket)
        if supersedes:
            self._superseded[ticket.id] = (supersedes, *self._superseded.pop(supersedes, ()))

    def released_by(self, entry_id: int) -> tuple[int, ...]:
        """The ids that need not wait for this entry any longer."""
        return self._superseded.pop(entry_id, ())

    def sync(self) -> list[int]:
        """Sync everything to the disk. Returns the ids that are superseded for good. Raises `OSError`."""
        for segment in self._segments:
            segment.sync()
        if self._has_new_name:
            sync_directory(self._directory)
            self._has_new_name = False
        return [old_id for ticket in self.recent for old_id in self.released_by(ticket.id)]

    def forget(self, active: Segment | None) -> None:
        """Start over: everything so far is durable or given up. A failed fsync is never retried on the same pages."""
        self.recent.clear()
        for segment in self._segments:
            if segment is not active:
                segment.close()
        self._segments = [active] if active is not None else []
