"""The evaluator: polls in, judged groups out."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.operations.lag.evaluate import Evaluator
from ottla.operations.lag.values import (
    Commit,
    GroupSample,
    GroupType,
    LagRow,
    Log,
    Method,
    Retention,
    State,
    Status,
    Times,
)
from ottla.operations.lag.window import LogHistory

from .samples import TP, sample


def _row(evaluator: Evaluator, *args: object, **given_: object) -> LagRow:
    (group,) = evaluator.observe(sample(*args, **given_)).groups  # type: ignore[arg-type]
    (row,) = group.rows
    return row


def _states(polls: Sequence[tuple[int | None, int | None]], *, is_owned: bool = False) -> list[State]:
    evaluator = Evaluator()
    return [
        _row(evaluator, 30.0 * number, committed, end, is_owned=is_owned).state
        for number, (committed, end) in enumerate(polls)
    ]


def test_a_reader_at_the_end_is_well_at_once_and_one_that_lags_is_unknown_at_first() -> None:
    assert _states([(10, 10)]) == [State.OK]
    assert _states([(5, 10)]) == [State.UNKNOWN]


def test_a_burst_that_is_worked_off_is_no_fault() -> None:
    polls = [(10, 10), (10, 500), (100, 500), (200, 500), (300, 500), (500, 500)]
    assert set(_states(polls, is_owned=True)) <= {State.OK, State.UNKNOWN}


def test_a_reader_that_falls_behind_is_warned_about() -> None:
    assert _states([(10 * n, 10 + 20 * n) for n in range(1, 8)])[-1] is State.WARN


def test_a_member_that_is_alive_and_does_not_move_stalls() -> None:
    assert _states([(5, 10 + n) for n in range(6)], is_owned=True)[-1] is State.STALL


def test_a_group_without_members_that_does_not_move_has_stopped_after_a_window() -> None:
    states = _states([(5, 10 + n) for n in range(12)])
    assert states[-1] is State.STOP
    assert State.STOP not in states[:9]


def test_a_reader_that_stops_after_it_read_is_seen_to_stop() -> None:
    polls = [(10 * n, 100 + 10 * n) for n in range(1, 5)] + [(40, 200 + n) for n in range(8)]
    assert _states(polls)[-1] is State.STOP


def test_a_rewind_is_seen_at_once_and_over_when_it_has_come_back() -> None:
    states = _states([(100, 110), (110, 120), (120, 130), (20, 140), (60, 150), (125, 160), (150, 160)])
    assert states[3:5] == [State.REWIND, State.REWIND]
    assert State.REWIND not in states[5:]


def test_no_commit_is_none_and_never_zero() -> None:
    row = _row(Evaluator(), 0.0, None, 10)
    assert (row.state, row.committed, row.lag_records, row.lag_seconds) == (State.NONE, None, None, None)


def test_an_end_that_no_broker_told_is_unknown_and_said() -> None:
    row = _row(Evaluator(), 0.0, 5, None)
    assert (row.state, row.lag_records) == (State.UNKNOWN, None)
    assert row.note == "the end of the log is unknown at the moment"


def test_a_commit_beyond_the_end_is_no_negative_lag() -> None:
    row = _row(Evaluator(), 0.0, 50, 10)
    assert (row.state, row.lag_records) == (State.AHEAD, None)
    assert "the log ends at 10" in row.note


def test_a_reader_of_uncommitted_data_is_not_ahead_of_the_end_for_committed_data() -> None:
    row = _row(Evaluator(), 0.0, 50, 10, high=60)
    assert (row.state, row.lag_records, row.end) == (State.OK, 0, 10)


def test_records_that_were_deleted_before_they_were_read_are_lost() -> None:
    row = _row(Evaluator(), 0.0, 5, 100, start=20)
    assert (row.state, row.lost_records, row.lag_records, row.retention_seconds) == (State.LOST, 15, 95, 0.0)


def test_a_topic_that_was_created_again_begins_a_new_window() -> None:
    evaluator = Evaluator()
    first, second = uuid.uuid4(), uuid.uuid4()
    for number, (topic_id, committed) in enumerate(
        [(first, 500), (first, 510), (first, 520), (second, 3), (second, 4)]
    ):
        poll = sample(30.0 * number, committed, committed + 2)
        poll = replace(poll, logs={TP: Log(0, committed + 2, topic_id)})
        row = evaluator.observe(poll).groups[0].rows[0]
        assert row.state is not State.REWIND
    assert [commit.offset for commit in row.window] == [3, 4]


def test_what_is_gone_disappears() -> None:
    evaluator = Evaluator()
    assert evaluator.observe(sample(0.0, 5, 10)).groups[0].rows
    gone = replace(sample(1.0, 5, 10), logs={})
    assert evaluator.observe(gone).groups[0].rows == ()
    assert evaluator.observe(replace(sample(2.0, 5, 10), groups=())).groups == ()
    # It begins again from nothing.
    assert len(evaluator.observe(sample(3.0, 5, 10)).groups[0].rows[0].window) == 1


def test_groups_of_a_coordinator_that_is_away_stay_and_are_unknown() -> None:
    evaluator = Evaluator()
    evaluator.observe(sample(0.0, 5, 10))
    away = replace(sample(1.0, 5, 10), groups=())
    (group,) = evaluator.observe(away, missing={("classic", "billing"): "broker 2 is away"}).groups
    assert (group.status, group.error) == (Status.UNKNOWN, "broker 2 is away")
    assert (group.rows[0].state, group.rows[0].lag_records) == (State.UNKNOWN, None)
    (group,) = evaluator.observe(sample(2.0, 6, 10)).groups
    assert len(group.rows[0].window) == 2


def test_a_group_whose_offsets_cannot_be_read_says_so() -> None:
    evaluator = Evaluator()
    broken = GroupSample("broken", GroupType.CLASSIC, error="COORDINATOR_LOAD_IN_PROGRESS")
    groups = evaluator.observe(sample(0.0, 10, 10, more=(broken,))).groups
    assert [(group.name, group.status) for group in groups] == [("billing", Status.OK), ("broken", Status.UNKNOWN)]


@pytest.mark.parametrize(
    ("times", "seconds", "method"),
    [
        (Times(100.0, 130.0), 30.0, Method.EXACT),
        (Times(100.0, 130.0, is_exact=False), 30.0, Method.BOUND),
        (Times(130.0, 100.0), 0.0, Method.EXACT),
        (Times(None, 130.0), None, Method.UNKNOWN),
        (None, None, Method.UNKNOWN),
    ],
)
def test_seconds_come_from_headers_and_say_how_they_are_known(
    times: Times | None, seconds: float | None, method: Method
) -> None:
    row = _row(Evaluator(), 200.0, 5, 10, times=times)
    assert (row.lag_seconds, row.method) == (seconds, method)
    if times is not None and times.first is not None:
        assert row.unread_seconds == 200.0 - times.first


def test_without_headers_seconds_are_interpolated_between_polls() -> None:
    evaluator = Evaluator()
    for number, end in enumerate([0, 100, 200]):
        row = _row(evaluator, 10.0 * number, 50, end) if end else _row(evaluator, 0.0, 0, 0)
    # The log ended at 50 at 5 s.
    assert (row.lag_seconds, row.method) == (15.0, Method.INTERPOLATED)


def test_interpolated_seconds_do_not_grow_while_nobody_writes() -> None:
    evaluator = Evaluator()
    _row(evaluator, 0.0, 0, 0)
    rows = [_row(evaluator, 10.0 * number, 50, min(100 * number, 200)) for number in range(1, 40)]
    assert {(row.lag_seconds, row.method) for row in rows[1:]} == {(15.0, Method.INTERPOLATED)}


def test_a_clock_that_goes_back_makes_no_negative_seconds_and_no_verdict() -> None:
    evaluator = Evaluator()
    for at, committed, end in ((1000.0, 0, 100), (1030.0, 100, 200), (1060.0, 150, 300), (500.0, 170, 400)):
        row = _row(evaluator, at, committed, end)
    assert (row.lag_seconds, row.state, row.trend, len(row.window)) == (None, State.UNKNOWN, None, 1)
    for number in range(1, 4):
        row = _row(evaluator, 500.0 + 30 * number, 170 + 10 * number, 400 + 20 * number)
    assert row.state is State.WARN
    assert row.trend == pytest.approx(1 / 3)


def test_only_markers_unread_is_no_fault_and_the_distance_is_shown() -> None:
    evaluator = Evaluator()
    for number in range(15):
        row = _row(evaluator, 30.0 * number, 8, 10, times=Times(None, None, is_empty=True))
    assert (row.state, row.lag_records, row.lag_seconds) == (State.OK, 2, 0.0)
    assert row.note == "only markers of transactions, or aborted records, are unread"


def test_the_time_to_catch_up_needs_a_lag_that_shrinks() -> None:
    evaluator = Evaluator()
    for number in range(5):
        row = _row(evaluator, 10.0 * number, 100 + 200 * number, 2000 + 100 * number)
    assert row.trend == -10.0
    assert row.catch_up_seconds == pytest.approx((2400 - 900) / 10)
    for number in range(5, 20):
        row = _row(evaluator, 10.0 * number, 900, 2000 + 100 * number)
    assert row.catch_up_seconds is None


def test_retention_overtakes_by_time_by_size_or_by_the_pace_of_the_start() -> None:
    by_time = _row(Evaluator(), 1000.0, 5, 10, times=Times(900.0, 950.0), retention=Retention(seconds=3600))
    assert by_time.retention_seconds == 3500.0
    evaluator = Evaluator()
    _row(evaluator, 0.0, 100, 1000, retention=Retention(size_bytes=200_000), size_bytes=100_000)
    by_size = _row(evaluator, 10.0, 100, 1100, retention=Retention(size_bytes=200_000), size_bytes=110_000)
    # 100 bytes a record, 10 records a second; 1,000 are unread, 1,000 more fit.
    assert by_size.retention_seconds == pytest.approx(100.0)
    evaluator = Evaluator()
    _row(evaluator, 0.0, 500, 1000, start=0)
    by_pace = _row(evaluator, 10.0, 510, 1000, start=100)
    assert by_pace.retention_seconds == pytest.approx((510 - 100) / (10 - 1))
    assert _row(Evaluator(), 0.0, 5, 10, retention=Retention()).retention_seconds is None


def test_windows_survive_a_restart() -> None:
    evaluator = Evaluator()
    group = GroupSample("billing", GroupType.CLASSIC)
    evaluator.restore(group, {TP: [Commit(30.0 * n, 10 * n, 100 + n) for n in range(1, 8)]})
    row = _row(evaluator, 240.0, 80, 200)
    assert len(row.window) == 8
    assert row.state is State.WARN


def test_a_topic_that_was_created_again_between_two_processes_is_no_rewind() -> None:
    evaluator = Evaluator()
    group = GroupSample("billing", GroupType.CLASSIC)
    evaluator.restore(group, {TP: [Commit(30.0 * n, 1000 + n, 5) for n in range(5)]})
    row = _row(evaluator, 300.0, 5, 10)
    assert (row.state, [commit.offset for commit in row.window]) == (State.UNKNOWN, [5])
    evaluator = Evaluator()
    evaluator.restore(group, {TP: [Commit(30.0 * n, 1000 + n, 5) for n in range(5)]})
    assert _row(evaluator, 300.0, 5, 2000).state is State.REWIND


_polls = st.lists(
    st.tuples(
        st.floats(0.1, 100),
        st.none() | st.integers(0, 50),
        st.none() | st.integers(0, 50),
        st.integers(0, 10),
        st.booleans(),
        st.booleans(),
    ),
    min_size=1,
    max_size=30,
)


@given(_polls)
def test_random_histories_keep_what_must_hold(
    polls: list[tuple[float, int | None, int | None, int, bool, bool]],
) -> None:
    evaluator, at = Evaluator(), 0.0
    for pause, committed, end, start, is_owned, is_new in polls:
        at += pause
        topic_id = uuid.UUID(int=at.__hash__() & 0xFFFF) if is_new else None
        poll = sample(at, committed, end, is_owned=is_owned)
        poll = replace(poll, logs={TP: Log(None if end is None else min(start, end), end, topic_id)})
        (group,) = evaluator.observe(poll).groups
        (row,) = group.rows
        assert row.lag_records is None or row.lag_records >= 0
        assert row.lag_seconds is None or row.lag_seconds >= 0
        assert row.catch_up_seconds is None or row.catch_up_seconds >= 0
        assert row.retention_seconds is None or row.retention_seconds >= 0
        assert len(row.window) <= 10
        if committed is None:
            assert row.state is State.NONE
        elif end is None:
            assert row.state is State.UNKNOWN
        elif committed > end:
            assert row.state is State.AHEAD
        elif committed < min(start, end):
            assert row.state is State.LOST
        elif committed == end:
            assert row.state is State.OK
        assert (group.status is Status.OK) == (row.state in (State.OK, State.NONE))


@given(st.lists(st.tuples(st.floats(0.1, 10), st.integers(0, 20)), min_size=1, max_size=80))
def test_interpolation_stays_between_the_polls_around_it(steps: list[tuple[float, int]]) -> None:
    history, now, end = LogHistory(), 0.0, 0
    points = []
    for pause, grown in steps:
        now, end = now + pause, end + grown
        history.add(Log(0, end), now)
        points.append((now, end))
    for offset in range(end + 1):
        behind = history.seconds_behind(offset)
        if behind is None:
            continue
        after = [at for at, reached in points if reached > offset]
        before = [at for at, reached in points if reached <= offset]
        if offset == end:
            assert behind == 0
        else:
            newest = next(at for at, reached in points if reached == end)
            assert newest - after[0] - 1e-6 <= behind <= newest - before[-1] + 1e-6 if before else True
