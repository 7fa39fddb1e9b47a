"""Which groups are shown, and as what. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from ottla.admin.groups import ListedGroup
from ottla.operations.lag.values import GroupType

FLEET_PREFIX = "ottla-fleet."
"""Of the groups in which fleets keep their positions (`engines/fleet/kafka_memory.py`)."""
_INTERNAL = re.compile(r"ottla-(replay|mirror|check)[-.]")
_TYPES = {kind.value: kind for kind in (GroupType.CLASSIC, GroupType.CONSUMER, GroupType.SHARE, GroupType.STREAMS)}


@dataclass(frozen=True, slots=True)
class Selection:
    """Which groups and topics to look at."""

    groups: frozenset[str] = frozenset()
    """Empty for all."""
    topics: re.Pattern[str] | None = None
    """Only topics whose whole name matches."""
    with_internal: bool = False
    """Whether groups in which Ottla itself keeps positions are shown under their own names."""

    def has_topic(self, name: str) -> bool:
        """Whether the topic `name` is looked at."""
        return self.topics is None or self.topics.fullmatch(name) is not None


def shown_as(group: ListedGroup, selection: Selection) -> tuple[str, GroupType] | None:
    """Return the name and the type that a group of Kafka is shown with, or None if it is not shown."""
    name, kind = group.name, _TYPES.get(group.type, GroupType.CLASSIC)
    if not selection.with_internal:
        if name.startswith(FLEET_PREFIX):
            name, kind = name.removeprefix(FLEET_PREFIX), GroupType.FLEET
        elif _INTERNAL.match(name):
            return None
    if group.protocol_type not in ("", "consumer") and kind is GroupType.CLASSIC:
        return None  # Connect workers and the like share no partitions and commit nothing
    return (name, kind) if not selection.groups or name in selection.groups else None


def missing(selection: Selection, found: Collection[str]) -> list[str]:
    """Return the groups that were asked for and do not exist, sorted."""
    return sorted(selection.groups - set(found))
