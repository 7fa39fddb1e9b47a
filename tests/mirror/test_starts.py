"""Where the partitions of a source topic begin, from what was decided before."""

from __future__ import annotations

from uuid import UUID

import pytest

from ottla.mirror.starts import Starts, decide

ONE, OTHER = UUID(int=1), UUID(int=2)
EARLIEST = {0: 3, 1: 4}
NOW = {0: 50, 1: 60}


def known(rule: str = "latest", topic_id: UUID | None = ONE) -> Starts:
    return Starts(topic_id, rule, {0: 10})


@pytest.mark.parametrize(
    ("before", "rule", "is_mirrored", "came_later", "firsts"),
    [
        (None, "latest", False, False, NOW),
        (None, "latest", False, True, EARLIEST),
        (None, "latest", True, False, EARLIEST),
        (known(), "latest", False, False, {0: 10, 1: 4}),
        (known(), "latest", True, False, {0: 10, 1: 4}),
        (known(), "earliest", True, False, {0: 10, 1: 4}),
        (known(), "earliest", False, False, NOW),
        (known("earliest"), "earliest", False, False, EARLIEST),
        (known("earliest"), "latest", True, False, EARLIEST),
        (known(topic_id=OTHER), "latest", False, False, EARLIEST),
    ],
)
def test_what_was_decided_counts(
    before: Starts | None, rule: str, is_mirrored: bool, came_later: bool, firsts: dict[int, int]
) -> None:
    """A topic begins at the link's start, once; what came later begins at its first record."""
    decided = decide(
        before,
        EARLIEST,
        lambda: NOW,
        topic_id=ONE,
        rule=rule,
        is_mirrored=is_mirrored,
        came_later=came_later,
    )
    assert dict(decided.firsts) == firsts
    assert Starts.from_json(decided.to_json()) == decided


@pytest.mark.parametrize("row", [None, {}, {"topic_id": 7}, {"topic_id": None, "rule": "x", "firsts": 3}])
def test_a_note_that_is_none_is_no_decision(row: dict[str, object] | None) -> None:
    assert Starts.from_json(row) is None
