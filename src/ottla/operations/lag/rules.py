"""Burrow's rules: what a window of commits says about a group in one partition. Pure.

Comes in: the commits of the window, oldest first, each with the lag at that time; recent ends of the log; the lag now.
Goes out: a state. The rules, their order and their edge cases are those of Burrow's evaluator:

1. Without lag now, all is well.
2. STOP: the last commit is longer ago than the window is long. Not if the log's end was recently at or below the last
   commit, because then there was nothing to commit.
3. REWIND: an offset went down, and none since has reached where it was.
4. If the lag was allowed at any time of the window, all is well.
5. STALL: all offsets are the same.
6. WARN: the lag never went down.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ottla.operations.lag.values import Commit, State


def judge(
    commits: Sequence[Commit], ends: Sequence[int], *, lag: int, now: float, allowed: int = 0, is_alive: bool = False
) -> State:
    """Return OK, WARN, STOP, STALL or REWIND of a window of commits, given the `lag` `now`; up to `allowed` is well.

    `ends` are recent ends of the log, in any order. With `is_alive`, the reader is known to run, so that it has not
    stopped however long ago its last commit is. Without commits nothing is known to be wrong: OK.
    """
    if not commits or lag <= allowed:
        return State.OK
    if not is_alive and has_stopped(commits, now) and not was_at_end(commits, ends):
        return State.STOP
    if has_rewound(commits):
        return State.REWIND
    if any(commit.lag is not None and commit.lag <= allowed for commit in commits):
        return State.OK
    if is_stalled(commits):
        return State.STALL
    return State.OK if shrinks(commits) else State.WARN


def has_stopped(commits: Sequence[Commit], now: float) -> bool:
    """Whether the last commit is longer ago than it is from the first one."""
    return now - commits[-1].at > commits[-1].at - commits[0].at


def was_at_end(commits: Sequence[Commit], ends: Sequence[int]) -> bool:
    """Whether a recent end of the log was at or below the last commit."""
    last = commits[-1].offset
    return any(end <= last for end in ends)


def has_rewound(commits: Sequence[Commit]) -> bool:
    """Whether an offset went down, the first time, and none since has reached where it was."""
    for number, (before, after) in enumerate(pairwise(commits), 1):
        if after.offset < before.offset:
            return all(commit.offset < before.offset for commit in commits[number:])
    return False


def is_stalled(commits: Sequence[Commit]) -> bool:
    """Whether all offsets are the same."""
    return all(commit.offset == commits[0].offset for commit in commits)


def shrinks(commits: Sequence[Commit]) -> bool:
    """Whether the lag ever went down from one commit to the next; commits whose lag is unknown do not count."""
    lags = [commit.lag for commit in commits if commit.lag is not None]
    return any(after < before for before, after in pairwise(lags))


def is_stuck(commits: Sequence[Commit], *, since: float) -> bool:
    """Whether the last offset had something behind it at that time or before, and has not changed since."""
    known = [commit for commit in commits if commit.at <= since and commit.lag]
    return any(commit.offset == commits[-1].offset for commit in known)
