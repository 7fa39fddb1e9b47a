"""The steps of `Rules` as changes to the tables of a SQLite file, inside a transaction that the caller holds.

A group and the arguments of a step come in; rows change. Functions without a docstring do what the method of `Rules`
with the same name does. Nothing is opened, committed or rolled back here. The schema calls a group "team" and a
partition "lane".
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ottla.engines.fleet.stored_text import failure_text
from ottla.engines.fleet.units import Charter, Failure, Grant, Lease, Move, Out, Seen
from ottla.model import OffsetRange, TopicPartition

THIS_PARTITION = "team = ? AND topic = ? AND partition = ?"
THIS_UNIT = f"{THIS_PARTITION} AND start = ? AND stop = ?"
_TABLES = ("lanes", "waiting", "out", "tries", "failures", "nodes", "topics", "notes")


class StoredGroup(NamedTuple):
    """A group that exists in the file."""

    db: sqlite3.Connection
    id: int
    charter: Charter

    def key(self, unit: OffsetRange) -> tuple[int, str, int, int, int]:
        """The parameters of `THIS_UNIT`."""
        return self.id, unit.topic, unit.partition, unit.start, unit.stop


# Topics


def add_topics(group: StoredGroup, topics: Mapping[str, str]) -> None:
    group.db.executemany(
        "INSERT INTO topics VALUES (?, ?, ?)"
        " ON CONFLICT (team, name) DO UPDATE SET identity = excluded.identity WHERE excluded.identity != ''",
        [(group.id, name, identity) for name, identity in topics.items()],
    )


def remove_topics(group: StoredGroup, names: Iterable[str]) -> None:
    group.db.executemany("DELETE FROM topics WHERE team = ? AND name = ?", [(group.id, name) for name in names])


# Planning


def lead(group: StoredGroup, holder: str, over: Seen | None) -> Lease | None:
    current = planner(group.db, group.id)
    if current is not None and current != over:
        return None
    lease = Lease(_next_number(group), holder)
    _set_planner(group, lease.number, holder, 0)
    return lease


def stay(group: StoredGroup, lease: Lease) -> bool:
    if not _is_planner(group, lease):
        return _refuse(group)
    _add(group, "planner_beat", 1)
    return True


def resign(group: StoredGroup, lease: Lease) -> bool:
    if not _is_planner(group, lease):
        return _refuse(group)
    _set_planner(group, None, None, None)
    return True


def plan(group: StoredGroup, lease: Lease, moves: Sequence[Move]) -> bool:
    if not _is_planner(group, lease) or any(_planned(group, move.partition) != move.before for move in moves):
        return _refuse(group)
    for move in moves:
        _set_planned(group, move.partition, move.to)
        for unit in move.units:
            _wait(group, unit)
        _settle(group, move.partition)
    return True


def raise_number(group: StoredGroup, least: int) -> None:
    group.db.execute("UPDATE teams SET number = max(number, ?) WHERE id = ?", (least, group.id))


def planner(db: sqlite3.Connection, group_id: int) -> Seen | None:
    """Return the planner's lease, or None if no node plans."""
    sql = "SELECT planner_number, planner_holder, planner_beat FROM teams WHERE id = ?"
    number, holder, beat = db.execute(sql, (group_id,)).fetchone()
    return None if number is None else Seen(Lease(number, holder), beat)


# Working


def take(group: StoredGroup, holder: str, most: int) -> list[Grant]:
    grants: list[Grant] = []
    while len(grants) < most and (partition := _next_in_line(group)) is not None:
        sql = f"SELECT start, stop FROM waiting WHERE {THIS_PARTITION} ORDER BY start, stop LIMIT 1"
        unit = OffsetRange(*partition, *_row(group, sql, *partition))
        lease = Lease(_next_number(group), holder)
        _remove(group, "waiting", unit)
        attempt = _try(group, unit)
        group.db.execute("REPLACE INTO out VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?)", (*group.key(unit), *lease, attempt))
        group.db.execute(f"UPDATE lanes SET turn = ? WHERE {THIS_PARTITION}", (lease.number, group.id, *partition))
        _settle(group, partition)
        grants.append(Grant(unit, lease, attempt))
    return grants


def renew(group: StoredGroup, held: Sequence[tuple[OffsetRange, Lease]]) -> list[bool]:
    sql = f"UPDATE out SET beat = beat + 1 WHERE {THIS_UNIT} AND number = ? AND holder = ?"
    return [group.db.execute(sql, (*group.key(unit), *lease)).rowcount == 1 for unit, lease in held]


def finish(group: StoredGroup, unit: OffsetRange, lease: Lease, reached: int) -> bool:
    if _held(group, unit, lease) is None:
        return _refuse(group)
    (attempts,) = _row(group, f"SELECT attempts FROM tries WHERE {THIS_UNIT}", *_range(unit))
    _remove(group, "out", unit)
    _remove(group, "tries", unit)
    if reached > unit.start:
        _add(group, "done", 1)
        _add(group, "offsets", reached - unit.start)
    else:
        _add(group, "given_back", 1)
    if reached < unit.stop:
        rest = OffsetRange(unit.topic, unit.partition, reached, unit.stop)
        if rest == unit and attempts > 1:
            group.db.execute("INSERT INTO tries VALUES (?, ?, ?, ?, ?, ?)", (*group.key(unit), attempts - 1))
        _wait(group, rest)
    _settle(group, unit.topic_partition)
    return True


def fail(group: StoredGroup, unit: OffsetRange, lease: Lease, failure: Failure) -> bool:
    out = _held(group, unit, lease)
    if out is None:
        return _refuse(group)
    _add(group, "failed", 1)
    _lose(group, out, failure)
    return True


def reclaim(group: StoredGroup, unit: OffsetRange, seen: Seen, failure: Failure) -> bool:
    out = _held(group, unit, seen.lease)
    if out is None or out.seen != seen:
        return False
    _add(group, "reclaimed", 1)
    _lose(group, out, failure)
    return True


# The error list, and resetting


def retry(group: StoredGroup, unit: OffsetRange) -> bool:
    if not _remove(group, "failures", unit):
        return False
    _wait(group, unit)
    _settle(group, unit.topic_partition)
    return True


def drop(group: StoredGroup, unit: OffsetRange) -> bool:
    if not _remove(group, "failures", unit):
        return False
    _settle(group, unit.topic_partition)
    return True


def reset(group: StoredGroup, partition: TopicPartition, offset: int | None) -> None:
    for table in ("waiting", "out", "tries", "failures"):
        group.db.execute(f"DELETE FROM {table} WHERE {THIS_PARTITION}", (group.id, *partition))
    if offset is None:
        group.db.execute(f"DELETE FROM lanes WHERE {THIS_PARTITION}", (group.id, *partition))
    else:
        _set_planned(group, partition, offset)
        _settle(group, partition)


# Nodes and notes


def hello(group: StoredGroup, name: str, report: str) -> None:
    group.db.execute(
        "INSERT INTO nodes VALUES (?, ?, 0, ?)"
        " ON CONFLICT (team, name) DO UPDATE SET beat = beat + 1, report = excluded.report",
        (group.id, name, report),
    )


def goodbye(group: StoredGroup, name: str, beat: int | None) -> bool:
    sql = "DELETE FROM nodes WHERE team = ? AND name = ? AND beat = coalesce(?, beat)"
    return group.db.execute(sql, (group.id, name, beat)).rowcount == 1


def note(group: StoredGroup, key: str, value: bytes | None) -> None:
    if value is None:
        group.db.execute("DELETE FROM notes WHERE team = ? AND key = ?", (group.id, key))
    else:
        group.db.execute("REPLACE INTO notes VALUES (?, ?, ?)", (group.id, key, value))


def forget(group: StoredGroup) -> None:
    """Delete the group and everything in it."""
    for table in _TABLES:
        group.db.execute(f"DELETE FROM {table} WHERE team = ?", (group.id,))
    group.db.execute("DELETE FROM teams WHERE id = ?", (group.id,))


# Parts of steps


def _row(group: StoredGroup, sql: str, *values: object) -> Any:
    """Return the first row of a query whose first parameter is the group."""
    return group.db.execute(sql, (group.id, *values)).fetchone()


def _range(unit: OffsetRange) -> tuple[str, int, int, int]:
    return unit.topic, unit.partition, unit.start, unit.stop


def _add(group: StoredGroup, column: str, by: int) -> None:
    """Add to a counter of the group."""
    group.db.execute(f"UPDATE teams SET {column} = {column} + ? WHERE id = ?", (by, group.id))


def _refuse(group: StoredGroup) -> bool:
    """Count a call by a holder who has lost the lease."""
    _add(group, "refused", 1)
    return False


def _next_number(group: StoredGroup) -> int:
    """Return the number of the next lease."""
    _add(group, "number", 1)
    (number,) = _row(group, "SELECT number FROM teams WHERE id = ?")
    return int(number)


def _is_planner(group: StoredGroup, lease: Lease) -> bool:
    """Whether this lease is that of the planner."""
    current = planner(group.db, group.id)
    return current is not None and current.lease == lease


def _set_planner(group: StoredGroup, number: int | None, holder: str | None, beat: int | None) -> None:
    sql = "UPDATE teams SET planner_number = ?, planner_holder = ?, planner_beat = ? WHERE id = ?"
    group.db.execute(sql, (number, holder, beat, group.id))


def _planned(group: StoredGroup, partition: TopicPartition) -> int | None:
    """Return the planned offset of a partition; None if it was not planned yet."""
    row = _row(group, f"SELECT planned FROM lanes WHERE {THIS_PARTITION}", *partition)
    return None if row is None else int(row[0])


def _set_planned(group: StoredGroup, partition: TopicPartition, offset: int) -> None:
    group.db.execute(
        "INSERT INTO lanes (team, topic, partition, planned, label) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (team, topic, partition) DO UPDATE SET planned = excluded.planned",
        (group.id, *partition, offset, f"{partition.topic}/{partition.partition}"),
    )


def _next_in_line(group: StoredGroup) -> TopicPartition | None:
    """Return the ready partition that was served longest ago."""
    sql = "SELECT topic, partition FROM lanes WHERE team = ? AND ready ORDER BY turn, label LIMIT 1"
    row = _row(group, sql)
    return None if row is None else TopicPartition(*row)


def _settle(group: StoredGroup, partition: TopicPartition) -> None:
    """Update whether a partition is ready, after its units have changed."""
    ready = _has(group, "waiting", partition)
    if group.charter.ordered:
        ready = ready and not _has(group, "out", partition) and not _has(group, "failures", partition)
    group.db.execute(f"UPDATE lanes SET ready = ? WHERE {THIS_PARTITION}", (ready, group.id, *partition))


def _has(group: StoredGroup, table: str, partition: TopicPartition) -> bool:
    """Whether a table has units of this partition."""
    return _row(group, f"SELECT 1 FROM {table} WHERE {THIS_PARTITION} LIMIT 1", *partition) is not None


def _wait(group: StoredGroup, unit: OffsetRange) -> None:
    """Add a waiting unit, once: a log that was recreated can bring the same range a second time."""
    group.db.execute("INSERT OR IGNORE INTO waiting VALUES (?, ?, ?, ?, ?)", group.key(unit))


def _remove(group: StoredGroup, table: str, unit: OffsetRange) -> bool:
    """Delete a unit from a table, and return whether it was there."""
    return group.db.execute(f"DELETE FROM {table} WHERE {THIS_UNIT}", group.key(unit)).rowcount == 1


def _try(group: StoredGroup, unit: OffsetRange) -> int:
    """Count an attempt, and return its number."""
    group.db.execute(
        "INSERT INTO tries VALUES (?, ?, ?, ?, ?, 1)"
        " ON CONFLICT (team, topic, partition, start, stop) DO UPDATE SET attempts = attempts + 1",
        group.key(unit),
    )
    (attempts,) = _row(group, f"SELECT attempts FROM tries WHERE {THIS_UNIT}", *_range(unit))
    return int(attempts)


def _held(group: StoredGroup, unit: OffsetRange, lease: Lease) -> Out | None:
    """Return the entry of a unit if this lease holds it."""
    sql = f"SELECT beat, attempt FROM out WHERE {THIS_UNIT} AND number = ? AND holder = ?"
    row = _row(group, sql, *_range(unit), *lease)
    return None if row is None else Out(unit, Seen(lease, row[0]), row[1])


def _lose(group: StoredGroup, out: Out, failure: Failure) -> None:
    """End an attempt that did not succeed: retry the unit, or move it to the error list."""
    _remove(group, "out", out.range)
    if out.attempt < group.charter.max_attempts:
        _wait(group, out.range)
    else:
        _remove(group, "tries", out.range)
        _add(group, "given_up", 1)
        values = (*group.key(out.range), out.attempt, failure_text(failure))
        group.db.execute("REPLACE INTO failures VALUES (?, ?, ?, ?, ?, ?, ?)", values)
    _settle(group, out.range.topic_partition)
