"""The watcher over restarts: a window that is continued, alerts that are told once, polls that fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import eventually

from ottla.errors import NoBrokerReachable, OttlaError
from ottla.net.waiting import Flag
from ottla.operations.lag.changes import Hysteresis
from ottla.operations.lag.evaluate import Evaluator
from ottla.operations.lag.history import History
from ottla.operations.lag.values import GroupSample, Sample, Snapshot, State
from ottla.operations.lag.watcher import Poster, Watcher

from .samples import sample

EVERY = 30.0
Told = list[tuple[str, str]]


class _Polls:
    """A poller that has its polls already; the last one again and again."""

    def __init__(self, polls: Sequence[Sample | OttlaError]) -> None:
        self._polls = list(polls)
        self.missing: dict[tuple[str, str], str] = {}

    def poll(self, *, others: Callable[[], Sequence[GroupSample]] | None = None) -> Sample:
        poll = self._polls.pop(0) if len(self._polls) > 1 else self._polls[0]
        if isinstance(poll, OttlaError):
            raise poll
        return poll


def _run(path: Path, polls: Sequence[Sample], told: Told, *, is_posting: bool = True) -> list[Snapshot]:
    """One life of a server: all snapshots, and what was posted."""

    def send(_: str, content: dict[str, Any]) -> None:
        told.extend((change["before"], change["after"]) for change in content["changes"])

    with (
        History(path, keep_seconds=86_400.0) as history,
        Poster("http://alerts", send=send, accepted=history.note_told) as poster,
    ):
        watcher = Watcher(
            _Polls(polls),  # type: ignore[arg-type]
            Evaluator(),
            every=EVERY,
            history=history,
            window_seconds=10 * EVERY,
            hysteresis=Hysteresis(3),
            on_changes=poster.add if is_posting else None,
        )
        return [watcher.look() for _ in polls]


def _stopped(start: float, polls: int, *, committed: int = 10) -> list[Sample]:
    return [sample(start + EVERY * number, committed, 100) for number in range(polls)]


def test_a_group_that_stopped_before_a_restart_is_known_at_once_and_told_of_once(tmp_path: Path) -> None:
    told: Told = []
    before = _run(tmp_path / "lag.db", _stopped(0.0, 30), told)
    assert before[-1].groups[0].rows[0].state is State.STOP
    assert told == [("OK", "ERR")]
    # Its last row is from 270 s, when its state changed: longer ago than a window is long.
    after = _run(tmp_path / "lag.db", _stopped(900.0, 15), told)
    assert [snapshot.groups[0].rows[0].state for snapshot in after] == [State.STOP] * 15
    assert told == [("OK", "ERR")]


def test_a_recovery_during_the_downtime_is_told(tmp_path: Path) -> None:
    told: Told = []
    _run(tmp_path / "lag.db", _stopped(0.0, 30), told)
    _run(tmp_path / "lag.db", _stopped(9_000.0, 2, committed=100), told)
    assert told == [("OK", "ERR")]  # not yet confirmed
    _run(tmp_path / "lag.db", _stopped(9_100.0, 3, committed=100), told)
    assert told == [("OK", "ERR"), ("ERR", "OK")]
    _run(tmp_path / "lag.db", _stopped(9_300.0, 20, committed=100), told)
    assert told == [("OK", "ERR"), ("ERR", "OK")]


def test_what_no_webhook_has_accepted_is_told_after_the_restart(tmp_path: Path) -> None:
    told: Told = []
    _run(tmp_path / "lag.db", _stopped(0.0, 30), told, is_posting=False)
    assert told == []
    _run(tmp_path / "lag.db", _stopped(900.0, 5), told)
    assert told == [("OK", "ERR")]


def test_a_group_that_had_read_everything_before_a_restart_is_given_time(tmp_path: Path) -> None:
    told: Told = []
    _run(tmp_path / "lag.db", _stopped(0.0, 30, committed=100), told)
    after = _run(tmp_path / "lag.db", [sample(900.0 + EVERY * number, 100, 105) for number in range(5)], told)
    assert [snapshot.groups[0].rows[0].state for snapshot in after] == [State.UNKNOWN] * 5
    assert told == []


def test_a_state_that_changes_without_an_offset_is_stored(tmp_path: Path) -> None:
    _run(tmp_path / "lag.db", _stopped(0.0, 15), [])
    with History(tmp_path / "lag.db", keep_seconds=86_400.0) as history:
        looks = history.looks("billing", 0.0)
    assert [(look["at"], look["status"]) for look in looks] == [(0.0, "UNKNOWN"), (270.0, "ERR")]


def test_a_poll_that_fails_leaves_the_last_snapshot_and_the_next_one_tries_again() -> None:
    stop = Flag()
    failure = NoBrokerReachable((), 1.0)
    polls = _Polls([sample(0.0, 5, 10), failure, failure, sample(1.0, 6, 10)])
    watcher = Watcher(polls, Evaluator(), every=0.001)  # type: ignore[arg-type]
    assert watcher.latest() is None
    watcher.look()
    with pytest.raises(NoBrokerReachable):
        watcher.look()
    latest = watcher.latest()
    assert latest is not None
    assert latest.at == 0.0
    thread = threading.Thread(target=watcher.run, args=(stop,))
    thread.start()
    eventually(lambda: (seen := watcher.latest()) is not None and seen.at == 1.0)
    stop.set()
    thread.join(20)
