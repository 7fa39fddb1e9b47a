"""How far a streaming query is, as Spark keeps it in the checkpoint: offsets, and the logs they belong to.

The JSON is that of Spark's Kafka connector (topic -> partition -> offset), so a checkpoint can move to the connector
and back. Two facts have no place in it. They stand in keys that no topic can have, with no partitions, which the
connector skips: the id of a topic, because a recreated topic has other records at the same offsets; and, at the end of
a query's first batch, where that batch began, because Spark does not store it. The format is persisted: do not change
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ottla.model import TopicPartition
from ottla.spark.offsets import Offsets

_SEPARATOR = "@"
"""Not allowed in topic names. A key is TOPIC@ID or TOPIC@ID@PARTITION:OFFSET,..."""


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """The end of a batch. `ids` lacks topics whose id is unknown, as in checkpoints of the connector."""

    offsets: Offsets
    ids: Mapping[str, str] = field(default_factory=dict)
    begins: Offsets = field(default_factory=dict)
    """Where the first batch of the query began; empty for all others."""

    def to_json(self) -> dict[str, dict[str, int]]:
        """As plain values, always in the same order: Spark compares the text."""
        rows: dict[str, dict[str, int]] = {}
        for tp, offset in sorted(self.offsets.items()):
            rows.setdefault(tp.topic, {})[str(tp.partition)] = offset
        for topic in sorted({*self.ids, *(tp.topic for tp in self.begins)}):
            parts = [topic, self.ids.get(topic, "")]
            if begins := [
                f"{tp.partition}:{offset}" for tp, offset in sorted(self.begins.items()) if tp.topic == topic
            ]:
                parts.append(",".join(begins))
            rows[_SEPARATOR.join(parts)] = {}
        return rows

    @classmethod
    def from_json(cls, rows: Mapping[str, Mapping[str, int]]) -> StreamPosition:
        """Read what `to_json` or the connector wrote. Raises `ValueError` for anything else."""
        offsets: Offsets = {}
        ids: dict[str, str] = {}
        begins: Offsets = {}
        for name, by_partition in rows.items():
            topic, *rest = name.split(_SEPARATOR)
            if not rest:
                offsets |= {TopicPartition(topic, int(number)): int(offset) for number, offset in by_partition.items()}
                continue
            if rest[0]:
                ids[topic] = rest[0]
            begins |= _begins(topic, rest[1:])
        return cls(offsets, ids, begins)

    def same_place(self, other: StreamPosition) -> bool:
        """Whether both are the same place in the same logs."""
        return self.offsets == other.offsets and self.ids == other.ids

    def replaced_in(self, ids: Mapping[str, str]) -> set[str]:
        """The topics that have another id in `ids`: they were deleted and created again."""
        return {name for name, known in self.ids.items() if ids.get(name, known) != known}


def offsets_of(rows: Mapping[str, Any]) -> Offsets:
    """The offsets alone. Raises `ValueError` if `rows` is not a position."""
    return StreamPosition.from_json(rows).offsets


def _begins(topic: str, parts: Iterable[str]) -> Offsets:
    pairs = (pair.split(":") for part in parts for pair in part.split(","))
    return {TopicPartition(topic, int(number)): int(offset) for number, offset in pairs}
