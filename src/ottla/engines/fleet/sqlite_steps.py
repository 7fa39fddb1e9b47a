"""The steps of a group on the tables of a SQLite file, inside a transaction that somebody else holds.

A group and what is to be done come in, as in `Rules`, and rows change. Nothing is opened, committed or undone here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ottla.engines.fleet.stored_text import failure_text
from ottla.engines.fleet.units import Charter, Failure, Grant, Lease, Move, Out, Seen
from ottla.model import OffsetRange, TopicPartition

THIS_LANE = "team = ? AND topic = ? AND partition = ?"
THIS_UNIT = f"{THIS_LANE} AND start = ? AND stop = ?"
_TABLES = ("lanes", "waiting", "out", "tries", "failures", "nodes", "topics", "notes")


class StoredGroup(NamedTuple):
    """A group that was founded, as a file knows it."""

    db: sqlite3.Connection
    id: int
    charter: Charter

    def key(self, unit: OffsetRange) -> tuple[int, str, int, int, int]:
        """What `THIS_UNIT` asks for."""
        return self.id, unit.topic, unit.partition, unit.start, unit.stop


# Topics


def add_topics(team: StoredGroup, topics: Mapping[str, str]) -> None:
    """As in `Rules`."""
    team.db.executemany(
        "INSERT INTO topics VALUES (?, ?, ?)"
        " ON CONFLICT (team, name) DO UPDATE SET identity = excluded.identity WHERE excluded.identity != ''",
        [(team.id, name, identity) for name, identity in topics.items()],
    )


def remove_topics(team: StoredGroup, names: Iterable[str]) -> None:
    """As in `Rules`."""
    team.db.executemany("DELETE FROM topics WHERE team = ? AND name = ?", [(team.id, name) for name in names])


# Planning


def lead(team: StoredGroup, holder: str, over: Seen | None) -> Lease | None:
    """As in `Rules`."""
    now = planner(team.db, team.id)
    if now is not None and now != over:
        return None
    lease = Lease(_next_number(team), holder)
    _set_planner(team, lease.number, holder, 0)
    return lease


def stay(team: StoredGroup, lease: Lease) -> bool:
    """As in `Rules`."""
    if not _leads(team, lease):
        return _refuse(team)
    _add(team, "planner_beat", 1)
    return True


def resign(team: StoredGroup, lease: Lease) -> bool:
    """As in `Rules`."""
    if not _leads(team, lease):
        return _refuse(team)
    _set_planner(team, None, None, None)
    return True


def plan(team: StoredGroup, lease: Lease, moves: Sequence[Move]) -> bool:
    """As in `Rules`."""
    if not _leads(team, lease) or any(_planned(team, move.at) != move.before for move in moves):
        return _refuse(team)
    for move in moves:
        _set_planned(team, move.at, move.to)
        for unit in move.units:
            _wait(team, unit)
        _settle(team, move.at)
    return True


def raise_number(team: StoredGroup, least: int) -> None:
    """As in `Rules`."""
    team.db.execute("UPDATE teams SET number = max(number, ?) WHERE id = ?", (least, team.id))


def planner(db: sqlite3.Connection, team: int) -> Seen | None:
    """Who plans."""
    sql = "SELECT planner_number, planner_holder, planner_beat FROM teams WHERE id = ?"
    number, holder, beat = db.execute(sql, (team,)).fetchone()
    return None if number is None else Seen(Lease(number, holder), beat)


# Working


def take(team: StoredGroup, holder: str, most: int) -> list[Grant]:
    """As in `Rules`."""
    grants: list[Grant] = []
    while len(grants) < most and (at := _next_in_line(team)) is not None:
        sql = f"SELECT start, stop FROM waiting WHERE {THIS_LANE} ORDER BY start, stop LIMIT 1"
        unit = OffsetRange(*at, *_row(team, sql, *at))
        lease = Lease(_next_number(team), holder)
        _remove(team, "waiting", unit)
        attempt = _try(team, unit)
        team.db.execute("REPLACE INTO out VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?)", (*team.key(unit), *lease, attempt))
        team.db.execute(f"UPDATE lanes SET turn = ? WHERE {THIS_LANE}", (lease.number, team.id, *at))
        _settle(team, at)
        grants.append(Grant(unit, lease, attempt))
    return grants


def renew(team: StoredGroup, held: Sequence[tuple[OffsetRange, Lease]]) -> list[bool]:
    """As in `Rules`."""
    sql = f"UPDATE out SET beat = beat + 1 WHERE {THIS_UNIT} AND number = ? AND holder = ?"
    return [team.db.execute(sql, (*team.key(unit), *lease)).rowcount == 1 for unit, lease in held]


def finish(team: StoredGroup, unit: OffsetRange, lease: Lease, reached: int) -> bool:
    """As in `Rules`."""
    if _held(team, unit, lease) is None:
        return _refuse(team)
    (attempts,) = _row(team, f"SELECT attempts FROM tries WHERE {THIS_UNIT}", *_range(unit))
    _remove(team, "out", unit)
    _remove(team, "tries", unit)
    if reached > unit.start:
        _add(team, "done", 1)
        _add(team, "offsets", reached - unit.start)
    else:
        _add(team, "given_back", 1)
    if reached < unit.stop:
        rest = OffsetRange(unit.topic, unit.partition, reached, unit.stop)
        if rest == unit and attempts > 1:
            team.db.execute("INSERT INTO tries VALUES (?, ?, ?, ?, ?, ?)", (*team.key(unit), attempts - 1))
        _wait(team, rest)
    _settle(team, unit.topic_partition)
    return True


def fail(team: StoredGroup, unit: OffsetRange, lease: Lease, failure: Failure) -> bool:
    """As in `Rules`."""
    out = _held(team, unit, lease)
    if out is None:
        return _refuse(team)
    _add(team, "failed", 1)
    _lose(team, out, failure)
    return True


def reclaim(team: StoredGroup, unit: OffsetRange, seen: Seen, failure: Failure) -> bool:
    """As in `Rules`."""
    out = _held(team, unit, seen.lease)
    if out is None or out.seen != seen:
        return False
    _add(team, "reclaimed", 1)
    _lose(team, out, failure)
    return True


# The error list, and beginning anew


def retry(team: StoredGroup, unit: OffsetRange) -> bool:
    """As in `Rules`."""
    if not _remove(team, "failures", unit):
        return False
    _wait(team, unit)
    _settle(team, unit.topic_partition)
    return True


def drop(team: StoredGroup, unit: OffsetRange) -> bool:
    """As in `Rules`."""
    if not _remove(team, "failures", unit):
        return False
    _settle(team, unit.topic_partition)
    return True


def reset(team: StoredGroup, at: TopicPartition, offset: int | None) -> None:
    """As in `Rules`."""
    for table in ("waiting", "out", "tries", "failures"):
        team.db.execute(f"DELETE FROM {table} WHERE {THIS_LANE}", (team.id, *at))
    if offset is None:
        team.db.execute(f"DELETE FROM lanes WHERE {THIS_LANE}", (team.id, *at))
    else:
        _set_planned(team, at, offset)
        _settle(team, at)


# Nodes, and what is kept for others


def hello(team: StoredGroup, name: str, report: str) -> None:
    """As in `Rules`."""
    team.db.execute(
        "INSERT INTO nodes VALUES (?, ?, 0, ?)"
        " ON CONFLICT (team, name) DO UPDATE SET beat = beat + 1, report = excluded.report",
        (team.id, name, report),
    )


def goodbye(team: StoredGroup, name: str, beat: int | None) -> bool:
    """As in `Rules`."""
    sql = "DELETE FROM nodes WHERE team = ? AND name = ? AND beat = coalesce(?, beat)"
    return team.db.execute(sql, (team.id, name, beat)).rowcount == 1


def note(team: StoredGroup, key: str, value: bytes | None) -> None:
    """As in `Rules`."""
    if value is None:
        team.db.execute("DELETE FROM notes WHERE team = ? AND key = ?", (team.id, key))
    else:
        team.db.execute("REPLACE INTO notes VALUES (?, ?, ?)", (team.id, key, value))


def forget(team: StoredGroup) -> None:
    """Delete everything of the group."""
    for table in _TABLES:
        team.db.execute(f"DELETE FROM {table} WHERE team = ?", (team.id,))
    team.db.execute("DELETE FROM teams WHERE id = ?", (team.id,))


# Parts of steps


def _row(team: StoredGroup, sql: str, *values: object) -> Any:
    return team.db.execute(sql, (team.id, *values)).fetchone()


def _range(unit: OffsetRange) -> tuple[str, int, int, int]:
    return unit.topic, unit.partition, unit.start, unit.stop


def _add(team: StoredGroup, column: str, by: int) -> None:
    team.db.execute(f"UPDATE teams SET {column} = {column} + ? WHERE id = ?", (by, team.id))


def _refuse(team: StoredGroup) -> bool:
    _add(team, "refused", 1)
    return False


def _next_number(team: StoredGroup) -> int:
    _add(team, "number", 1)
    (number,) = _row(team, "SELECT number FROM teams WHERE id = ?")
    return int(number)


def _leads(team: StoredGroup, lease: Lease) -> bool:
    now = planner(team.db, team.id)
    return now is not None and now.lease == lease


def _set_planner(team: StoredGroup, number: int | None, holder: str | None, beat: int | None) -> None:
    sql = "UPDATE teams SET planner_number = ?, planner_holder = ?, planner_beat = ? WHERE id = ?"
    team.db.execute(sql, (number, holder, beat, team.id))


def _planned(team: StoredGroup, at: TopicPartition) -> int | None:
    row = _row(team, f"SELECT planned FROM lanes WHERE {THIS_LANE}", *at)
    return None if row is None else int(row[0])


def _set_planned(team: StoredGroup, at: TopicPartition, offset: int) -> None:
    team.db.execute(
        "INSERT INTO lanes (team, topic, partition, planned, label) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (team, topic, partition) DO UPDATE SET planned = excluded.planned",
        (team.id, *at, offset, f"{at.topic}/{at.partition}"),
    )


def _next_in_line(team: StoredGroup) -> TopicPartition | None:
    sql = "SELECT topic, partition FROM lanes WHERE team = ? AND ready ORDER BY turn, label LIMIT 1"
    row = _row(team, sql)
    return None if row is None else TopicPartition(*row)


def _settle(team: StoredGroup, at: TopicPartition) -> None:
    """Whether a partition is ready, after something has changed there."""
    ready = _has(team, "waiting", at)
    if team.charter.ordered:
        ready = ready and not _has(team, "out", at) and not _has(team, "failures", at)
    team.db.execute(f"UPDATE lanes SET ready = ? WHERE {THIS_LANE}", (ready, team.id, *at))


def _has(team: StoredGroup, table: str, at: TopicPartition) -> bool:
    return _row(team, f"SELECT 1 FROM {table} WHERE {THIS_LANE} LIMIT 1", *at) is not None


def _wait(team: StoredGroup, unit: OffsetRange) -> None:
    team.db.execute("INSERT OR IGNORE INTO waiting VALUES (?, ?, ?, ?, ?)", team.key(unit))


def _remove(team: StoredGroup, table: str, unit: OffsetRange) -> bool:
    return team.db.execute(f"DELETE FROM {table} WHERE {THIS_UNIT}", team.key(unit)).rowcount == 1


def _try(team: StoredGroup, unit: OffsetRange) -> int:
    team.db.execute(
        "INSERT INTO tries VALUES (?, ?, ?, ?, ?, 1)"
        " ON CONFLICT (team, topic, partition, start, stop) DO UPDATE SET attempts = attempts + 1",
        team.key(unit),
    )
    (attempts,) = _row(team, f"SELECT attempts FROM tries WHERE {THIS_UNIT}", *_range(unit))
    return int(attempts)


def _held(team: StoredGroup, unit: OffsetRange, lease: Lease) -> Out | None:
    sql = f"SELECT beat, attempt FROM out WHERE {THIS_UNIT} AND number = ? AND holder = ?"
    row = _row(team, sql, *_range(unit), *lease)
    return None if row is None else Out(unit, Seen(lease, row[0]), row[1])


def _lose(team: StoredGroup, out: Out, failure: Failure) -> None:
    _remove(team, "out", out.range)
    if out.attempt < team.charter.max_attempts:
        _wait(team, out.range)
    else:
        _remove(team, "tries", out.range)
        _add(team, "given_up", 1)
        values = (*team.key(out.range), out.attempt, failure_text(failure))
        team.db.execute("REPLACE INTO failures VALUES (?, ?, ?, ?, ?, ?, ?)", values)
    _settle(team, out.range.topic_partition)
