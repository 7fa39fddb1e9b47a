"""The evaluator: polls in, judged groups out. Pure: it remembers earlier polls, and never asks a broker or a clock.

One `Evaluator` sees the polls of one cluster in order. It keeps a window for each group and partition, and a history of
each log. What a poll does not see any more is forgotten, except the groups of a coordinator that is away: those stay,
with an unknown state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ottla.model import TopicPartition
from ottla.operations.lag.forecast import Speeds, catch_up_seconds, retention_seconds
from ottla.operations.lag.rules import is_stuck, judge
from ottla.operations.lag.values import (
    FAULTS,
    Commit,
    GroupLag,
    GroupSample,
    LagRow,
    Log,
    Method,
    Sample,
    Snapshot,
    State,
    Status,
    Times,
)
from ottla.operations.lag.window import LENGTH, LogHistory, Window

LEAST_LOOKS = 3
"""Polls that are needed to say that a group with lag is well."""
_NO_LOG = Log(None, None)
_Key = tuple[str, str]


class Evaluator:
    """Judges polls of one cluster by windows of `length` commits.

    A lag up to `allowed_lag` is well. Not thread-safe.
    """

    def __init__(self, *, length: int = LENGTH, allowed_lag: int = 0) -> None:
        self._length = length
        self._allowed = allowed_lag
        self._windows: dict[_Key, dict[TopicPartition, Window]] = {}
        self._logs: dict[TopicPartition, LogHistory] = {}
        self._elsewhere: dict[tuple[_Key, TopicPartition], LogHistory] = {}
        self._last: dict[_Key, GroupLag] = {}
        self._times: deque[float] = deque(maxlen=length)
        """Of the last polls, as many as a window has commits."""
        self._restored_ends: dict[TopicPartition, int] = {}
        """Where logs ended at least, by what an earlier process saw; until the first poll."""

    def restore(
        self,
        group: GroupSample,
        commits: Mapping[TopicPartition, Iterable[Commit]],
        *,
        window_start: float = float("-inf"),
    ) -> None:
        """Begin with the `commits` that an earlier process saw of a group.

        A window of polls would have begun at `window_start`.
        """
        windows = self._windows.setdefault(group.key, {})
        for partition, rows in commits.items():
            known = sorted(rows, key=lambda commit: commit.at)
            window = windows.setdefault(partition, Window(self._length))
            window.restore(known)
            if is_stuck(known, since=window_start):
                window.looks = self._length  # it needs no more of them
            end = max((commit.offset + (commit.lag or 0) for commit in known), default=0)
            self._restored_ends[partition] = max(end, self._restored_ends.get(partition, 0))

    def observe(self, sample: Sample, *, missing: Mapping[_Key, str] | None = None) -> Snapshot:
        """Judge a poll, `sample`.

        `missing` are groups that it could not see, and why: they stay, with an unknown state.
        """
        if self._times and sample.at < self._times[-1]:
            self._begin_again()
        self._times.append(sample.at)
        replaced = {tp for tp, log in sample.logs.items() if self._history(tp).add(log, sample.at)}
        replaced |= {tp for tp, end in self._restored_ends.items() if _is_shorter(sample.logs.get(tp), end)}
        self._restored_ends = {}
        groups = [self._group(group, sample, replaced) for group in sample.groups]
        seen = {group.key for group in sample.groups}
        unseen = {key: reason for key, reason in (missing or {}).items() if key not in seen and key in self._last}
        kept = [_unknown(self._last[key], reason) for key, reason in unseen.items()]
        self._forget(seen | unseen.keys(), sample.logs)
        judged = sorted((*groups, *kept), key=lambda group: (group.name, group.type))
        self._last = {group.key: lag for group, lag in zip(sample.groups, groups, strict=True)} | {
            key: self._last[key] for key in unseen
        }
        return Snapshot(
            at=sample.at,
            cluster=sample.cluster,
            groups=tuple(judged),
            logs=sample.logs,
            away=sample.away,
            brokers=sample.brokers,
            seconds=sample.seconds,
            traffic=sample.traffic,
        )

    @property
    def known(self) -> Mapping[_Key, GroupLag]:
        """The groups of the last poll."""
        return self._last

    def _begin_again(self) -> None:
        """Forget what belongs to times that are in the future now: the clock was set back."""
        self._windows.clear()
        self._logs.clear()
        self._elsewhere.clear()
        self._times.clear()

    def _history(self, partition: TopicPartition) -> LogHistory:
        history = self._logs.get(partition)
        if history is None:
            history = self._logs[partition] = LogHistory()
        return history

    def _forget(self, kept: set[_Key], logs: Mapping[TopicPartition, Log]) -> None:
        self._windows = {key: windows for key, windows in self._windows.items() if key in kept}
        self._elsewhere = {place: history for place, history in self._elsewhere.items() if place[0] in kept}
        if len(self._logs) > len(logs):
            self._logs = {tp: history for tp, history in self._logs.items() if tp in logs}

    def _group(self, group: GroupSample, sample: Sample, replaced: set[TopicPartition]) -> GroupLag:
        windows = self._windows.setdefault(group.key, {})
        if group.error is not None:
            before = self._last.get(group.key)
            known = () if before is None else before.rows
            rows = tuple(_unknown_row(row, group.error) for row in known)
            return GroupLag(group.name, group.type, group.state, Status.UNKNOWN, rows, group.members, group.error)
        partitions = _partitions_of(group, sample.logs)
        for gone in windows.keys() - set(partitions):
            del windows[gone]
        rows = tuple(self._row(group, tp, sample, windows, tp in replaced) for tp in partitions)
        return GroupLag(group.name, group.type, group.state, status_of(rows), rows, group.members)

    def _row(
        self,
        group: GroupSample,
        tp: TopicPartition,
        sample: Sample,
        windows: dict[TopicPartition, Window],
        is_replaced: bool,
    ) -> LagRow:
        history, log = self._log_of(group, tp, sample)
        committed, owner = group.committed.get(tp), group.owners.get(tp)
        row = LagRow(
            group.name,
            group.type,
            *tp,
            committed=committed,
            start=log.start,
            end=log.end,
            lag_records=None,
            lag_seconds=None,
            method=Method.UNKNOWN,
            state=State.UNKNOWN,
            owner=owner,
        )
        if committed is None:
            windows.pop(tp, None)
            note = "" if log.end is not None else _no_end(sample)
            return replace(row, state=State.NONE, note=note)
        window = windows.get(tp)
        if window is None:
            window = windows[tp] = Window(self._length)
        if is_replaced:
            window.clear()
        if log.end is None:
            return replace(row, note=_no_end(sample), complete=window.complete, window=window.commits)
        return self._judged(row, group, sample, window=window, history=history, log=log)

    def _judged(
        self, row: LagRow, group: GroupSample, sample: Sample, *, window: Window, history: LogHistory, log: Log
    ) -> LagRow:
        tp, committed, now = TopicPartition(row.topic, row.partition), row.committed, sample.at
        assert committed is not None
        end = log.end_for(committed)
        assert end is not None
        start = min(end, log.start if log.start is not None else 0)
        is_alive = row.owner is not None or group.is_alive
        if committed > end:
            window.add(committed, None, now, is_alive=is_alive)
            note = f"committed {committed:,}, and the log ends at {end:,}: it was created again, or lost records"
            return replace(row, state=State.AHEAD, note=note, complete=window.complete, window=window.commits)
        lag = group.lags.get(tp, end - committed)
        times = sample.times.get((tp, committed))
        is_empty = times is not None and times.is_empty
        unread = 0 if is_empty else lag
        window.add(committed, unread, now, is_alive=is_alive)
        speeds = Speeds(window.consumption(now), history.growth(), history.start_growth())
        seconds, method = _seconds(group, tp, unread, times=times, history=history, committed=committed)
        first = None if times is None else times.first
        lost = max(0, start - committed) if log.start is not None else 0
        state, note = self._state(window, history, unread, now=now, is_alive=is_alive, lost=lost)
        if is_empty and lag:
            note = "only markers of transactions, or aborted records, are unread"
        return LagRow(  # not `replace`, which takes longer than everything else here
            row.group,
            row.type,
            row.topic,
            row.partition,
            committed=committed,
            start=log.start,
            end=log.end,
            owner=row.owner,
            lag_records=lag,
            lag_seconds=seconds,
            method=method,
            state=state,
            unread_seconds=0.0 if not unread else None if first is None else max(0.0, now - first),
            lost_records=lost,
            trend=speeds.trend,
            consumed_per_second=speeds.consumed,
            produced_per_second=speeds.produced,
            catch_up_seconds=catch_up_seconds(unread, speeds),
            retention_seconds=None
            if group.ends is not None or log.start is None
            else retention_seconds(
                committed=committed,
                start=start,
                end=end if unread else committed,
                speeds=speeds,
                retention=sample.retention.get(row.topic),
                first_unread=first,
                size_bytes=sample.sizes.get(tp),
                now=now,
            ),
            note=note,
            complete=window.complete,
            window=window.commits,
        )

    def _log_of(self, group: GroupSample, tp: TopicPartition, sample: Sample) -> tuple[LogHistory, Log]:
        """Return a log and its history: of this cluster, or as the reader says."""
        if group.ends is None:
            return self._history(tp), sample.logs.get(tp, _NO_LOG)
        log = Log(None, group.ends.get(tp))
        history = self._elsewhere.setdefault((group.key, tp), LogHistory())
        history.add(log, sample.at)
        return history, log

    def _state(
        self, window: Window, history: LogHistory, lag: int, *, now: float, is_alive: bool, lost: int
    ) -> tuple[State, str]:
        if lost:
            return State.LOST, f"{lost:,} records were deleted before they were read"
        if lag <= self._allowed:
            return State.OK, ""
        state = judge(
            window.commits,
            history.since(self._times[0]),
            lag=lag,
            now=now,
            allowed=self._allowed,
            is_alive=is_alive,
        )
        is_new = window.looks < LEAST_LOOKS
        # With few commits, "longer ago than the window is long" is next to nothing: wait for as many polls as fill one.
        is_hasty = state is State.STOP and len(window.commits) < LEAST_LOOKS and window.looks < self._length
        if state is not State.REWIND and (is_new or is_hasty):
            return State.UNKNOWN, f"seen {window.looks} time{'s' if window.looks != 1 else ''}: too soon to tell"
        return state, ""


def status_of(rows: Iterable[LagRow]) -> Status:
    """Return the state of a group: that of its worst partition."""
    states = {row.state for row in rows}
    if states & FAULTS:
        return Status.ERR
    if State.WARN in states:
        return Status.WARN
    return Status.UNKNOWN if State.UNKNOWN in states else Status.OK


def _seconds(
    group: GroupSample,
    tp: TopicPartition,
    lag: int,
    *,
    times: Times | None,
    history: LogHistory,
    committed: int,
) -> tuple[float | None, Method]:
    """Return the lag in seconds and how it is known."""
    if not lag:
        return 0.0, Method.EXACT
    if tp in group.seconds:
        return group.seconds[tp], Method.EXACT
    if times is not None and times.first is not None and times.newest is not None:
        return max(0.0, times.newest - times.first), Method.EXACT if times.is_exact else Method.BOUND
    between = history.seconds_behind(committed)
    return (None, Method.UNKNOWN) if between is None else (between, Method.INTERPOLATED)


def _partitions_of(group: GroupSample, logs: Mapping[TopicPartition, Log]) -> list[TopicPartition]:
    """Return what a group reads: what it has committed, what its members own, and the rest of those topics."""
    named = {*group.committed, *group.owners}
    if group.ends is not None:
        return sorted(named | group.ends.keys())
    topics = {tp.topic for tp in named}
    # A topic that is not among the logs is gone, or was not asked for.
    return sorted(tp for topic in topics for tp in _of_topic(topic, logs))


def _of_topic(topic: str, logs: Mapping[TopicPartition, Log]) -> Iterable[TopicPartition]:
    number = 0
    while (tp := TopicPartition(topic, number)) in logs:
        yield tp
        number += 1


def _is_shorter(log: Log | None, end: int) -> bool:
    return log is not None and log.end is not None and log.end < end


def _no_end(sample: Sample) -> str:
    if sample.away:
        return f"the end of the log is unknown: {', '.join(f'broker {number}' for number in sorted(sample.away))} away"
    return "the end of the log is unknown at the moment"


def _unknown(group: GroupLag, reason: str) -> GroupLag:
    rows = tuple(_unknown_row(row, reason) for row in group.rows)
    return replace(group, status=Status.UNKNOWN, rows=rows, error=reason)


def _unknown_row(row: LagRow, reason: str) -> LagRow:
    """Return a row of the last poll without what only this one could know."""
    return LagRow(
        row.group,
        row.type,
        row.topic,
        row.partition,
        committed=None,
        start=None,
        end=None,
        lag_records=None,
        lag_seconds=None,
        method=Method.UNKNOWN,
        state=State.UNKNOWN,
        owner=row.owner,
        note=reason,
        window=row.window,
    )
