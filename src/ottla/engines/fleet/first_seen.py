"""What topics were like when they were new to a group: their id, and how many partitions they had.

Kept as notes in the store. A topic that was taken from the group and comes back may be another one by then, and a
partition that had no leader at first is not one that was added later.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.engines.fleet.store import Store
from ottla.engines.fleet.units import Snapshot
from ottla.model import TopicPartition

_PREFIX = "topic/"


class _Noted(NamedTuple):
    id: str
    partitions: int
    """0 where nobody has counted them in time."""


class FirstSeen:
    """The notes of one group, read once in a term of planning."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._noted: dict[str, _Noted] | None = None

    def forget(self) -> None:
        """Another node may have written since."""
        self._noted = None

    def note(self, topic: str, identity: str, partitions: int, seen: Snapshot) -> None:
        """The topic is as it is now, if that is not known already."""
        noted = self._known().get(topic)
        if noted is not None and noted.id == identity:
            return
        found = _Noted(identity, 0 if _has_lanes(topic, seen) else partitions)
        self._store.note(f"{_PREFIX}{topic}", f"{found.id} {found.partitions}".encode())
        self._known()[topic] = found

    def id_before(self, topic: str, seen: Snapshot) -> str:
        """The id of the topic whose positions the group has; empty where it has none."""
        noted = self._known().get(topic)
        return noted.id if noted is not None and _has_lanes(topic, seen) else ""

    def had(self, at: TopicPartition) -> bool:
        """Whether the topic had the partition then."""
        noted = self._known().get(at.topic)
        return noted is not None and at.partition < noted.partitions

    def _known(self) -> dict[str, _Noted]:
        if self._noted is None:
            notes = self._store.notes(_PREFIX)
            self._noted = {key.removeprefix(_PREFIX): _parse(text) for key, text in notes.items()}
        return self._noted


def _has_lanes(topic: str, seen: Snapshot) -> bool:
    return any(lane.at.topic == topic for lane in seen.lanes)


def _parse(text: bytes) -> _Noted:
    identity, _, partitions = text.decode().rpartition(" ")
    return _Noted(identity, int(partitions))
