"""What topics were like when they were new to a group: their id, and their number of partitions.

Kept as notes in the store. They answer two questions. Is a topic that was removed and added again still the same one?
And was a partition added later, or did it only have no leader at first?
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.engines.fleet.store import Store
from ottla.engines.fleet.units import Snapshot
from ottla.model import TopicPartition

_PREFIX = "topic/"


class _TopicNote(NamedTuple):
    id: str
    partitions: int
    """0 if the partitions were not counted before the first of them was planned."""


class FirstSeen:
    """The notes of one group, read once per planning term."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cached: dict[str, _TopicNote] | None = None

    def forget(self) -> None:
        """Drop the cached notes: another node may have written since."""
        self._cached = None

    def note(self, topic: str, identity: str, partitions: int, seen: Snapshot) -> None:
        """Record the topic as it is now, unless this id is recorded already."""
        known = self._notes().get(topic)
        if known is not None and known.id == identity:
            return
        note = _TopicNote(identity, 0 if _has_positions(topic, seen) else partitions)
        self._store.note(f"{_PREFIX}{topic}", f"{note.id} {note.partitions}".encode())
        self._notes()[topic] = note

    def id_before(self, topic: str, seen: Snapshot) -> str:
        """Return the id of the topic that the group's positions belong to; empty if it has no positions."""
        note = self._notes().get(topic)
        return note.id if note is not None and _has_positions(topic, seen) else ""

    def had(self, partition: TopicPartition) -> bool:
        """Whether the topic had this partition when it was new to the group."""
        note = self._notes().get(partition.topic)
        return note is not None and partition.partition < note.partitions

    def _notes(self) -> dict[str, _TopicNote]:
        if self._cached is None:
            notes = self._store.notes(_PREFIX)
            self._cached = {key.removeprefix(_PREFIX): _parse(text) for key, text in notes.items()}
        return self._cached


def _has_positions(topic: str, seen: Snapshot) -> bool:
    return any(state.partition.topic == topic for state in seen.partitions)


def _parse(text: bytes) -> _TopicNote:
    identity, _, partitions = text.decode().rpartition(" ")
    return _TopicNote(identity, int(partitions))
