"""A group in a SQLite file, for several processes and threads of one machine.

Steps come in as calls and become transactions, each written to disk before it returns. `sqlite_steps` has the steps,
`sqlite_file` opens the file. Files on a network file system are not supported: SQLite's locks do not work there.
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
    """One group in a file. Methods without a docstring do what `Rules` says.

    Threads may share it, and a forked child opens its own connection.
    """

    def __init__(self, file: SqliteFile, address: str, group: str) -> None:
        self._file = file
        self._address = address
        self._group = group

    @classmethod
    def from_url(cls, url: str, group: str) -> SqliteStore:
        """Return the store of a group at `sqlite:///relative/path` or `sqlite:////absolute/path`.

        The first step opens the file. Raises `ConfigError` if the address is invalid.
        """
        prefix, slashes, path = url.partition(":///")
        if prefix != "sqlite" or not slashes or not path or path.startswith(":memory:"):
            raise ConfigError(
                "the store's address is not sqlite:///RELATIVE/PATH or sqlite:////ABSOLUTE/PATH (for a store in"
                " memory, use memory://)"
            )
        return cls(SqliteFile(Path(path).absolute(), url), url, group)

    def __repr__(self) -> str:
        return f"SqliteStore({self._address!r}, {self._group!r})"

    @property
    def address(self) -> str:
        """The address for messages."""
        return self._address

    def found(self, charter: Charter) -> Charter:
        """Create the group with this charter unless it exists, and return the charter that it has.

        Raises `StoreIncompatible` if this version of Ottla cannot use the file or the group.
        """

        def insert(db: sqlite3.Connection) -> StoredGroup | None:
            sql = "INSERT OR IGNORE INTO teams (name, charter) VALUES (?, ?)"
            db.execute(sql, (self._group, charter_text(charter)))
            return self._stored_group(db)

        group = self._file.write(insert)
        assert group is not None, "it was inserted just now"
        return group.charter

    def exists(self) -> bool:
        """Return whether the group was created."""
        return self._read(lambda group: group is not None)

    def forget(self) -> None:
        """Delete the group and everything in it."""
        self._write(lambda group: None if group is None else steps.forget(group))

    def close(self) -> None:
        """Close the file. The group stays."""
        self._file.close()

    # Topics

    def add_topics(self, topics: Mapping[str, str]) -> None:
        self._step(lambda group: steps.add_topics(group, topics))

    def remove_topics(self, names: Iterable[str]) -> None:
        self._write(lambda group: None if group is None else steps.remove_topics(group, names))

    # Planning

    def lead(self, holder: str, over: Seen | None = None) -> Lease | None:
        return self._step(lambda group: steps.lead(group, holder, over))

    def stay(self, lease: Lease) -> bool:
        return self._write(lambda group: group is not None and steps.stay(group, lease))

    def resign(self, lease: Lease) -> bool:
        return self._write(lambda group: group is not None and steps.resign(group, lease))

    def plan(self, lease: Lease, moves: Sequence[Move]) -> bool:
        return self._write(lambda group: group is not None and steps.plan(group, lease, moves))

    def raise_number(self, least: int) -> None:
        self._step(lambda group: steps.raise_number(group, checked(max(0, least), "the number of a lease")))

    # Working

    def take(self, holder: str, most: int = 1) -> list[Grant]:
        return self._write(lambda group: [] if group is None else steps.take(group, holder, most))

    def renew(self, held: Sequence[tuple[OffsetRange, Lease]]) -> list[bool]:
        return self._write(lambda group: [False] * len(held) if group is None else steps.renew(group, held))

    def finish(self, unit: OffsetRange, lease: Lease, reached: int) -> bool:
        return self._write(lambda group: group is not None and steps.finish(group, unit, lease, reached))

    def fail(self, unit: OffsetRange, lease: Lease, failure: Failure) -> bool:
        return self._write(lambda group: group is not None and steps.fail(group, unit, lease, failure))

    def reclaim(self, unit: OffsetRange, seen: Seen, failure: Failure) -> bool:
        return self._write(lambda group: group is not None and steps.reclaim(group, unit, seen, failure))

    # The error list, and resetting

    def failures(self) -> list[Failure]:
        sql = "SELECT topic, partition, start, stop, attempts, failure FROM failures WHERE team = ?"

        def look(group: StoredGroup | None) -> list[Failure]:
            rows = [] if group is None else group.db.execute(sql, (group.id,)).fetchall()
            failures = (failure_of(OffsetRange(*row[:4]), *row[4:]) for row in rows)
            return sorted(failures, key=lambda failure: failure.range)

        return self._read(look)

    def retry(self, unit: OffsetRange) -> bool:
        return self._write(lambda group: group is not None and steps.retry(group, unit))

    def drop(self, unit: OffsetRange) -> bool:
        return self._write(lambda group: group is not None and steps.drop(group, unit))

    def reset(self, partition: TopicPartition, offset: int | None) -> None:
        self._step(lambda group: steps.reset(group, partition, offset))

    # Nodes and reports

    def hello(self, name: str, report: Mapping[str, Any]) -> None:
        self._step(lambda group: steps.hello(group, name, report_text(report)))

    def goodbye(self, name: str, beat: int | None = None) -> bool:
        return self._write(lambda group: group is not None and steps.goodbye(group, name, beat))

    def pulse(self) -> Pulse:
        return self._read(lambda group: Pulse(None, ()) if group is None else _pulse(group))

    def look(self) -> Snapshot:
        return self._read(lambda group: Rules(Charter()).look() if group is None else _snapshot(group))

    def waiting(self, partition: TopicPartition | None = None, most: int = 1000) -> list[OffsetRange]:
        condition = "team = ?" if partition is None else steps.THIS_PARTITION
        sql = f"SELECT topic, partition, start, stop FROM waiting WHERE {condition} ORDER BY 1, 2, 3, 4 LIMIT ?"
        parameters = (*(partition or ()), max(0, most))

        def look(group: StoredGroup | None) -> list[OffsetRange]:
            rows = [] if group is None else group.db.execute(sql, (group.id, *parameters)).fetchall()
            return [OffsetRange(*row) for row in rows]

        return self._read(look)

    def note(self, key: str, value: bytes | None) -> None:
        self._step(lambda group: steps.note(group, key, value))

    def notes(self, prefix: str = "") -> dict[str, bytes]:
        def look(group: StoredGroup | None) -> dict[str, bytes]:
            rows = [] if group is None else group.db.execute("SELECT key, value FROM notes WHERE team = ?", (group.id,))
            return {key: value for key, value in rows if key.startswith(prefix)}

        return self._read(look)

    # Parts of steps

    def _step(self, work: Callable[[StoredGroup], T]) -> T:
        """Write, for a step that adds something. Raises `StoreUnavailable` if the group does not exist."""

        def with_group(group: StoredGroup | None) -> T:
            if group is None:
                raise not_founded(self._group, self._address)
            return work(group)

        return self._write(with_group)

    def _write(self, work: Callable[[StoredGroup | None], T]) -> T:
        """Write. `work` gets None if the group does not exist."""
        return self._file.write(lambda db: work(self._stored_group(db)))

    def _read(self, work: Callable[[StoredGroup | None], T]) -> T:
        """Read. `work` gets None if the group does not exist. Raises `StoreIncompatible` for data that is damaged."""

        def look(db: sqlite3.Connection) -> T:
            try:
                return work(self._stored_group(db))
            except (ValueError, TypeError) as error:
                raise damaged(self._group, self._address, str(error)) from error

        return self._file.read(look)

    def _stored_group(self, db: sqlite3.Connection) -> StoredGroup | None:
        """Return the group; None if it does not exist. Raises `StoreIncompatible` if it has another version."""
        row = db.execute("SELECT id, charter FROM teams WHERE name = ?", (self._group,)).fetchone()
        return None if row is None else StoredGroup(db, row[0], charter_of(row[1], self._group, self._address))


def _pulse(group: StoredGroup) -> Pulse:
    return Pulse(steps.planner(group.db, group.id), _outs(group))


def _outs(group: StoredGroup) -> tuple[Out, ...]:
    columns = "topic, partition, start, stop, number, holder, beat, attempt"
    sql = f"SELECT {columns} FROM out WHERE team = ? ORDER BY topic, partition, start, stop"
    return tuple(
        Out(OffsetRange(topic, partition, start, stop), Seen(Lease(number, holder), beat), attempt)
        for topic, partition, start, stop, number, holder, beat, attempt in group.db.execute(sql, (group.id,))
    )


def _snapshot(group: StoredGroup) -> Snapshot:
    number, *counts = group.db.execute(
        "SELECT number, done, offsets, failed, given_back, reclaimed, given_up, refused FROM teams WHERE id = ?",
        (group.id,),
    ).fetchone()
    nodes = group.db.execute("SELECT name, beat, report FROM nodes WHERE team = ? ORDER BY name", (group.id,))
    topics = group.db.execute("SELECT name, identity FROM topics WHERE team = ?", (group.id,))
    return Snapshot(
        planner=steps.planner(group.db, group.id),
        partitions=_partition_states(group),
        out=_outs(group),
        nodes=tuple(Node(name, beat, report_of(report)) for name, beat, report in nodes),
        topics=dict(topics.fetchall()),
        counts=Counts(*counts),
        number=number,
    )


def _partition_states(group: StoredGroup) -> tuple[PartitionState, ...]:
    """Return the state of each partition: its counts, and the lowest offset that is not done."""
    sums = [_sums(group, table) for table in ("waiting", "out", "failures")]
    sql = "SELECT topic, partition, planned FROM lanes WHERE team = ? ORDER BY topic, partition"
    states = []
    for topic, partition, planned in group.db.execute(sql, (group.id,)):
        tp = TopicPartition(topic, partition)
        counts_and_firsts = [by_partition.get(tp, (0, None)) for by_partition in sums]
        done = min((first for _, first in counts_and_firsts if first is not None), default=planned)
        states.append(PartitionState(tp, planned, done, *(count for count, _ in counts_and_firsts)))
    return tuple(states)


def _sums(group: StoredGroup, table: str) -> dict[TopicPartition, tuple[int, int | None]]:
    """Return the number of units and the lowest offset of each partition in a table."""
    sql = f"SELECT topic, partition, count(*), min(start) FROM {table} WHERE team = ? GROUP BY topic, partition"
    rows = group.db.execute(sql, (group.id,))
    return {TopicPartition(topic, partition): (count, first) for topic, partition, count, first in rows}
