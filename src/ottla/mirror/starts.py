"""Where the partitions of a source topic begin, decided once and kept in the journal before anything is mirrored.

What was decided before, and the offsets of the partitions that there are now, come in; the decision goes out. Without
it a mirror that is killed between the first terms of two partitions would leave a successor that takes the second one
for a partition that came later, or that looks again where "latest" is. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

NOTE = "start/"
"""What the names of these notes in the journal begin with; the source topic follows."""


@dataclass(frozen=True, slots=True)
class Starts:
    """The first offset of each partition that a topic had when the link first saw it."""

    topic_id: UUID | None
    rule: str
    """The link's start at that time."""
    firsts: Mapping[int, int]

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `from_json` accepts."""
        return {
            "topic_id": None if self.topic_id is None else str(self.topic_id),
            "rule": self.rule,
            "firsts": [list(row) for row in sorted(self.firsts.items())],
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any] | None) -> Starts | None:
        """Return the decision in a note of the journal, None if it has none."""
        try:
            assert row is not None
            topic_id = None if row["topic_id"] is None else UUID(row["topic_id"])
            return cls(topic_id, str(row["rule"]), {int(number): int(first) for number, first in row["firsts"]})
        except (AssertionError, AttributeError, KeyError, TypeError, ValueError):
            return None


def decide(
    known: Starts | None,
    earliest: Mapping[int, int],
    by_rule: Callable[[], Mapping[int, int]],
    *,
    topic_id: UUID | None,
    rule: str,
    is_mirrored: bool,
    came_later: bool,
) -> Starts:
    """Return where the partitions of a topic begin. `known` is what was decided before.

    A topic that the link sees for the first time begins at the link's start (`by_rule`), if it was there before the
    link. All records of what came later are new, so it begins at its first record: a topic that appears while a mirror
    follows, another partition, another topic of the same name. `is_mirrored` is whether the journal has terms of it.
    """
    if known is not None and (known.topic_id is None or topic_id is None or known.topic_id == topic_id):
        if known.rule == "earliest" and (is_mirrored or rule == known.rule):
            return Starts(topic_id, known.rule, earliest)  # retention may have moved it; nothing is lost by that
        if is_mirrored or known.rule == rule:
            return Starts(topic_id, known.rule, {**earliest, **known.firsts})
        return Starts(topic_id, rule, by_rule())  # nothing is mirrored, and the link's start was changed
    if known is not None or is_mirrored or came_later:
        return Starts(topic_id, rule, earliest)
    return Starts(topic_id, rule, by_rule())
