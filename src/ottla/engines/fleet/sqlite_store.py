"""A group in a SQLite file, for several processes and threads of one machine.

Steps come in as calls and go out as transactions, each written to disk before it is answered. What they do is in
`sqlite_steps`, how the file is opened in `sqlite_file`. A file on a network file system is not supported: SQLite's
locks do not hold there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ottla.engines.fleet import sqlite_steps as steps
from ottla.engines.fleet.rules import Rules
from ottla.engines.fleet.sqlite_file import SqliteFile
from ottla.engines.fleet.sqlite_steps import StoredGroup
from ottla.engines.fleet.stored_text import (
    charter_of,
    charter_text,
    checked,
    damaged,
    failure_of,
    not_founded,
    report_of,
    report_text,
)
from ottla.engines.fleet.units import (
    Charter,
    Counts,
    Failure,
    Grant,
    Lease,
    Move,
    Node,
    Out,
    PartitionState,
    Pulse,
    Seen,
    Snapshot,
)
from ottla.errors import ConfigError
from ottla.model import OffsetRange, TopicPartition

T = TypeVar("T")


class SqliteStore:
    """One group in a file. Threads may share it, and a forked child has a connection of its own."""

    def __init__(self, file: SqliteFile, address: str, group: str) -> None:
        self._file = file
        self._address = address
        self._group = group

    @classmethod
    def at(cls, url: str, group: str) -> SqliteStore:
        """The store at `sqlite:///relative/path` or `sqlite:////absolute/path`. It is opened with the first step."""
        prefix, slashes, path = url.partition(":///")
        if prefix != "sqlite" or not slashes or not path or path.startswith(":memory:"):
            raise ConfigError(
                "the store's address is not sqlite:///RELATIVE/PATH or sqlite:////ABSOLUTE/PATH (in memory, it is"
                " memory://)"
            )
        return cls(SqliteFile(Path(path).absolute(), url), url, group)

    def __repr__(self) -> str:
        return f"SqliteStore({self._address!r}, {self._group!r})"

    @property
    def address(self) -> str:
        """For messages."""
        return self._address

    def found(self, charter: Charter) -> Charter:
        """The group's charter: this one if the group is new."""

        def insert(db: sqlite3.Connection) -> StoredGroup | None:
            sql = "INSERT OR IGNORE INTO teams (name, charter) VALUES (?, ?)"
            db.execute(sql, (self._group, charter_text(charter)))
            return self._team(db)

        found = self._file.write(insert)
        assert found is not None, "it was inserted just now"
        return found.charter

    def forget(self) -> None:
        """Delete everything of the group."""
        self._word(lambda team: None if team is None else steps.forget(team))

    def close(self) -> None:
        """The file is closed; the group stays."""
        self._file.close()

    # Topics

    def add_topics(self, topics: Mapping[str, str]) -> None:
        """As in `Rules`."""
        self._step(lambda team: steps.add_topics(team, topics))

    def remove_topics(self, names: Iterable[str]) -> None:
        """As in `Rules`."""
        self._word(lambda team: None if team is None else steps.remove_topics(team, names))

    # Planning

    def lead(self, holder: str, over: Seen | None = None) -> Lease | None:
        """As in `Rules`."""
        return self._step(lambda team: steps.lead(team, holder, over))

    def stay(self, lease: Lease) -> bool:
        """As in `Rules`."""
        return self._word(lambda team: team is not None and steps.stay(team, lease))

    def resign(self, lease: Lease) -> bool:
        """As in `Rules`."""
        return self._word(lambda team: team is not None and steps.resign(team, lease))

    def plan(self, lease: Lease, moves: Sequence[Move]) -> bool:
        """As in `Rules`."""
        return self._word(lambda team: team is not None and steps.plan(team, lease, moves))

    def raise_number(self, least: int) -> None:
        """As in `Rules`."""
        self._step(lambda team: steps.raise_number(team, checked(max(0, least), "the number of a lease")))

    # Working

    def take(self, holder: str, most: int = 1) -> list[Grant]:
        """As in `Rules`."""
        return self._word(lambda team: [] if team is None else steps.take(team, holder, most))

    def renew(self, held: Sequence[tuple[OffsetRange, Lease]]) -> list[bool]:
        """As in `Rules`."""
        return self._word(lambda team: [False] * len(held) if team is None else steps.renew(team, held))

    def finish(self, unit: OffsetRange, lease: Lease, reached: int) -> bool:
        """As in `Rules`."""
        return self._word(lambda team: team is not None and steps.finish(team, unit, lease, reached))

    def fail(self, unit: OffsetRange, lease: Lease, failure: Failure) -> bool:
        """As in `Rules`."""
        return self._word(lambda team: team is not None and steps.fail(team, unit, lease, failure))

    def reclaim(self, unit: OffsetRange, seen: Seen, failure: Failure) -> bool:
        """As in `Rules`."""
        return self._word(lambda team: team is not None and steps.reclaim(team, unit, seen, failure))

    # The error list, and beginning anew

    def failures(self) -> list[Failure]:
        """As in `Rules`."""
        sql = "SELECT topic, partition, start, stop, attempts, failure FROM failures WHERE team = ?"

        def look(team: StoredGroup | None) -> list[Failure]:
            rows = [] if team is None else team.db.execute(sql, (team.id,)).fetchall()
            return sorted((failure_of(OffsetRange(*row[:4]), *row[4:]) for row in rows), key=lambda one: one.range)

        return self._sight(look)

    def retry(self, unit: OffsetRange) -> bool:
        """As in `Rules`."""
        return self._word(lambda team: team is not None and steps.retry(team, unit))

    def drop(self, unit: OffsetRange) -> bool:
        """As in `Rules`."""
        return self._word(lambda team: team is not None and steps.drop(team, unit))

    def reset(self, at: TopicPartition, offset: int | None) -> None:
        """As in `Rules`."""
        self._step(lambda team: steps.reset(team, at, offset))

    # Nodes, and looking

    def hello(self, name: str, report: Mapping[str, Any]) -> None:
        """As in `Rules`."""
        self._step(lambda team: steps.hello(team, name, report_text(report)))

    def goodbye(self, name: str, beat: int | None = None) -> bool:
        """As in `Rules`."""
        return self._word(lambda team: team is not None and steps.goodbye(team, name, beat))

    def pulse(self) -> Pulse:
        """As in `Rules`."""
        return self._sight(lambda team: Pulse(None, ()) if team is None else _pulse(team))

    def look(self) -> Snapshot:
        """As in `Rules`."""
        return self._sight(lambda team: Rules(Charter()).look() if team is None else _snapshot(team))

    def waiting(self, at: TopicPartition | None = None, most: int = 1000) -> list[OffsetRange]:
        """As in `Rules`."""
        which = "team = ?" if at is None else steps.THIS_LANE
        sql = f"SELECT topic, partition, start, stop FROM waiting WHERE {which} ORDER BY 1, 2, 3, 4 LIMIT ?"

        def look(team: StoredGroup | None) -> list[OffsetRange]:
            rows = [] if team is None else team.db.execute(sql, (team.id, *(at or ()), max(0, most))).fetchall()
            return [OffsetRange(*row) for row in rows]

        return self._sight(look)

    def note(self, key: str, value: bytes | None) -> None:
        """As in `Rules`."""
        self._step(lambda team: steps.note(team, key, value))

    def notes(self, prefix: str = "") -> dict[str, bytes]:
        """As in `Rules`."""

        def look(team: StoredGroup | None) -> dict[str, bytes]:
            rows = [] if team is None else team.db.execute("SELECT key, value FROM notes WHERE team = ?", (team.id,))
            return {key: value for key, value in rows if key.startswith(prefix)}

        return self._sight(look)

    # Parts of steps

    def _step(self, work: Callable[[StoredGroup], T]) -> T:
        """For what begins something, and needs a group for it."""

        def with_group(team: StoredGroup | None) -> T:
            if team is None:
                raise not_founded(self._group, self._address)
            return work(team)

        return self._word(with_group)

    def _word(self, work: Callable[[StoredGroup | None], T]) -> T:
        return self._file.write(lambda db: work(self._team(db)))

    def _sight(self, work: Callable[[StoredGroup | None], T]) -> T:
        def look(db: sqlite3.Connection) -> T:
            try:
                return work(self._team(db))
            except (ValueError, TypeError) as error:
                raise damaged(self._group, self._address, str(error)) from error

        return self._file.read(look)

    def _team(self, db: sqlite3.Connection) -> StoredGroup | None:
        row = db.execute("SELECT id, charter FROM teams WHERE name = ?", (self._group,)).fetchone()
        return None if row is None else StoredGroup(db, row[0], charter_of(row[1], self._group, self._address))


def _pulse(team: StoredGroup) -> Pulse:
    return Pulse(steps.planner(team.db, team.id), _outs(team))


def _outs(team: StoredGroup) -> tuple[Out, ...]:
    columns = "topic, partition, start, stop, number, holder, beat, attempt"
    sql = f"SELECT {columns} FROM out WHERE team = ? ORDER BY topic, partition, start, stop"
    return tuple(
        Out(OffsetRange(topic, partition, start, stop), Seen(Lease(number, holder), beat), attempt)
        for topic, partition, start, stop, number, holder, beat, attempt in team.db.execute(sql, (team.id,))
    )


def _snapshot(team: StoredGroup) -> Snapshot:
    number, *counts = team.db.execute(
        "SELECT number, done, offsets, failed, given_back, reclaimed, given_up, refused FROM teams WHERE id = ?",
        (team.id,),
    ).fetchone()
    nodes = team.db.execute("SELECT name, beat, report FROM nodes WHERE team = ? ORDER BY name", (team.id,))
    topics = team.db.execute("SELECT name, identity FROM topics WHERE team = ?", (team.id,))
    return Snapshot(
        planner=steps.planner(team.db, team.id),
        lanes=_lanes(team),
        out=_outs(team),
        nodes=tuple(Node(name, beat, report_of(report)) for name, beat, report in nodes),
        topics=dict(topics.fetchall()),
        counts=Counts(*counts),
        number=number,
    )


def _lanes(team: StoredGroup) -> tuple[PartitionState, ...]:
    sums = [_sums(team, table) for table in ("waiting", "out", "failures")]
    sql = "SELECT topic, partition, planned FROM lanes WHERE team = ? ORDER BY topic, partition"
    lanes = []
    for topic, partition, planned in team.db.execute(sql, (team.id,)):
        at = TopicPartition(topic, partition)
        found = [one.get(at, (0, None)) for one in sums]
        done = min((first for _, first in found if first is not None), default=planned)
        lanes.append(PartitionState(at, planned, done, *(many for many, _ in found)))
    return tuple(lanes)


def _sums(team: StoredGroup, table: str) -> dict[TopicPartition, tuple[int, int | None]]:
    """Of each partition: how many units, and the first offset."""
    sql = f"SELECT topic, partition, count(*), min(start) FROM {table} WHERE team = ? GROUP BY topic, partition"
    return {TopicPartition(topic, part): (many, first) for topic, part, many, first in team.db.execute(sql, (team.id,))}
