"""Where a reset moves a group: goals, the ends of logs, and partitions without a commit."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.admin import Committed, OffsetAt
from ottla.cli.reset import Move, parse_selection, plan, require_partitions
from ottla.cli.values.places import LastRecords, Place, Shift
from ottla.errors import InputError
from ottla.fetch.bounds import CommittedBy
from ottla.model import OffsetRange, TopicPartition

T0 = TopicPartition("t", 0)
LOG = OffsetRange("t", 0, 100, 200)
SOMETIME = datetime(2025, 3, 1, tzinfo=UTC)


def _move(goal: Place, *, before: int | None = 150, found: int = -1, other: int | None = None) -> Move:
    [move] = plan(
        goal,
        {T0: LOG},
        before={} if before is None else {T0: Committed(before)},
        at_time={T0: OffsetAt(found, 0, 7)},
        other={} if other is None else {T0: Committed(other)},
    )
    return move


@pytest.mark.parametrize(
    ("move", "after", "note"),
    [
        (_move("earliest"), 100, ""),
        (_move("latest", before=None), 200, ""),
        (_move(120), 120, ""),
        (_move(200), 200, ""),
        (_move(99), 100, "not 99: the log starts at 100"),
        (_move(900), 200, "not 900: the log ends at 200"),
        (_move(Shift(7)), 157, ""),
        (_move(Shift(-1000)), 100, "not -850: the log starts at 100"),
        (_move(Shift(1000)), 200, "not 1150: the log ends at 200"),
        (_move(LastRecords(30)), 170, ""),
        (_move(LastRecords(3000)), 100, ""),
        (_move(SOMETIME, found=130), 130, ""),
        (_move(SOMETIME), 200, "no record at or after it: the end"),
        (_move(CommittedBy("other"), other=111), 111, ""),
        (_move(CommittedBy("other"), other=3), 100, "not 3: the log starts at 100"),
    ],
)
def test_a_goal_leads_to_an_offset_within_the_log(move: Move, after: int, note: str) -> None:
    assert (move.after, move.note) == (after, note)


def test_an_offset_behind_an_empty_log_is_cut_to_its_end() -> None:
    [move] = plan(5, {T0: OffsetRange("t", 0, 0, 0)}, before={}, at_time={}, other={})
    assert (move.after, move.note) == (0, "not 5: the log ends at 0")


def test_the_leader_epoch_is_that_of_the_record_found() -> None:
    assert _move(SOMETIME, found=130).committed == Committed(130, 7)
    assert _move(SOMETIME).committed == Committed(200, -1)


def test_what_has_no_offset_cannot_be_shifted_nor_copied() -> None:
    with pytest.raises(InputError, match="t-0 has no committed offset to shift"):
        _move(Shift(1), before=None)
    with pytest.raises(InputError, match="group other has committed nothing for t-0"):
        _move(CommittedBy("other"))


@given(st.integers(-(10**18), 10**18), st.integers(0, 10**18))
def test_no_shift_leaves_the_log(by: int, before: int) -> None:
    move = _move(Shift(by), before=before)
    assert LOG.start <= move.after <= LOG.stop
    assert bool(move.note) == (move.after != before + by)


def test_topics_and_partitions_are_read() -> None:
    assert parse_selection("clicks") == ("clicks", None)
    assert parse_selection("clicks:0,2-4") == ("clicks", [0, 2, 3, 4])
    for wrong in ("", ":3", "clicks:", "clicks:x", "clicks:4-2"):
        with pytest.raises(ValueError, match=r"has no topic|are not partitions"):
            parse_selection(wrong)


def test_a_partition_that_is_not_there_is_named() -> None:
    require_partitions("t", None, [0, 1])
    require_partitions("t", [1], [0, 1])
    with pytest.raises(InputError, match="topic t has no partition 2: it has 0 to 1"):
        require_partitions("t", [0, 2], [0, 1])
