"""How far a streaming query is, as Spark keeps it in the checkpoint: offsets, and of which log they are.

The JSON is that of Spark's Kafka connector, so that a checkpoint can move there and back: topics with the offset of
each partition. What it has no place for stands in names that no topic can have, with no partition, and the connector
reads over them: the id of a topic, since one that was deleted and created again has other records at the same offsets;
and, in the end of a query's first batch, where that batch began, which Spark writes down nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ottla.model import TopicPartition
from ottla.spark.offsets import Offsets

_SEPARATOR = "@"


@dataclass(frozen=True, slots=True)
class Mark:
    """An end of a batch. `ids` has no entry for a topic whose id is not known, as in checkpoints of the connector."""

    offsets: Offsets
    ids: Mapping[str, str] = field(default_factory=dict)
    begins: Offsets = field(default_factory=dict)
    """Where the first batch of the query began; empty for all others."""

    def to_json(self) -> dict[str, dict[str, int]]:
        """Always in the same order: Spark compares the text."""
        found: dict[str, dict[str, int]] = {}
        for at, offset in sorted(self.offsets.items()):
            found.setdefault(at.topic, {})[str(at.partition)] = offset
        for topic in sorted({*self.ids, *(at.topic for at in self.begins)}):
            parts = [topic, self.ids.get(topic, "")]
            if begins := [
                f"{at.partition}:{offset}" for at, offset in sorted(self.begins.items()) if at.topic == topic
            ]:
                parts.append(",".join(begins))
            found[_SEPARATOR.join(parts)] = {}
        return found

    @classmethod
    def from_json(cls, text: Mapping[str, Mapping[str, int]]) -> Mark:
        """What `to_json` made, or the connector."""
        offsets: Offsets = {}
        ids: dict[str, str] = {}
        begins: Offsets = {}
        for name, rows in text.items():
            topic, *rest = name.split(_SEPARATOR)
            if not rest:
                offsets |= {TopicPartition(topic, int(number)): int(offset) for number, offset in rows.items()}
                continue
            if rest[0]:
                ids[topic] = rest[0]
            begins |= _begins(topic, rest[1:])
        return cls(offsets, ids, begins)

    def same_place(self, other: Mark) -> bool:
        """Whether both are the same place in the same logs."""
        return self.offsets == other.offsets and self.ids == other.ids

    def replaced_in(self, ids: Mapping[str, str]) -> set[str]:
        """The topics that had another id then: they were deleted and created again."""
        return {name for name, known in self.ids.items() if ids.get(name, known) != known}


def offsets_of(text: Mapping[str, Any]) -> Offsets:
    """The offsets alone."""
    return Mark.from_json(text).offsets


def _begins(topic: str, parts: Iterable[str]) -> Offsets:
    pairs = (pair.split(":") for part in parts for pair in part.split(","))
    return {TopicPartition(topic, int(number)): int(offset) for number, offset in pairs}
