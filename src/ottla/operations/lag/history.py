"""What polls saw, in an SQLite file: for windows after a restart, and for looking back.

Snapshots come in. A group is stored when it has changed since it was stored last, and at least every ten minutes,
as one row with all its partitions; rows older than the retention are deleted. Beside them is what a webhook has been
told of each group that is not well. One process writes a file; others may read it.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ottla.errors import ConfigError, OttlaError
from ottla.model import TopicPartition
from ottla.operations.lag.changes import Change
from ottla.operations.lag.values import Commit, GroupLag, GroupSample, GroupType, Snapshot, Status, most

_VERSION = 1
QUIET_SECONDS = 600.0
"""How long a group that does not change is not stored."""
_CLEAN_SECONDS = 300.0
_CLEAN_ROWS = 10
_BUSY_SECONDS = 5.0
_MOST_LOOKS = 100_000
_SCHEMA = """
CREATE TABLE IF NOT EXISTS looks (
    cluster TEXT NOT NULL, type TEXT NOT NULL, name TEXT NOT NULL, at REAL NOT NULL,
    status TEXT NOT NULL, lag INTEGER, seconds REAL, partitions BLOB NOT NULL,
    PRIMARY KEY (cluster, type, name, at)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS looks_by_time ON looks (at);
CREATE TABLE IF NOT EXISTS told (
    cluster TEXT NOT NULL, type TEXT NOT NULL, name TEXT NOT NULL, status TEXT NOT NULL,
    PRIMARY KEY (cluster, type, name)
) WITHOUT ROWID;
"""


class HistoryFailed(OttlaError):
    """A history file cannot be read or written."""


class History:
    """An open file. Threads may share it. Raises `ConfigError` if it is no history, `HistoryFailed` if a disk fails."""

    def __init__(self, path: Path, *, keep_seconds: float) -> None:
        self._path = path
        self._keep = keep_seconds
        self._lock = threading.Lock()
        self._stored: dict[tuple[str, str], tuple[float, Status, bytes]] = {}
        self._cleaned_at = float("-inf")
        try:
            self._file = sqlite3.connect(path, timeout=_BUSY_SECONDS, check_same_thread=False)
            (version,) = self._file.execute("PRAGMA user_version").fetchone()
            tables = {name for (name,) in self._file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if version not in (0, _VERSION) or (version == 0 and tables):
                self._file.close()
                raise ConfigError(f"{path} is another database, not a history of lag: name a new file")
            # A journal that keeps its room: on a disk that is full, what is old can still be deleted.
            self._file.execute("PRAGMA journal_mode = PERSIST")
            self._file.execute("PRAGMA synchronous = NORMAL")
            self._file.executescript(_SCHEMA)
            self._file.execute(f"PRAGMA user_version = {_VERSION}")
        except sqlite3.Error as error:
            raise ConfigError(f"{path} cannot be used as a history: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()

    def add(self, snapshot: Snapshot) -> None:
        """Store what has changed. Raises `HistoryFailed` if that is impossible; the next call tries again."""
        rows, stored = [], {}
        for group in snapshot.groups:
            if group.error is not None:
                continue
            key, content = (str(group.type), group.name), _packed(group)
            at, *before = self._stored.get(key, (float("-inf"), None, b""))
            if before == [group.status, content] and snapshot.at - at < QUIET_SECONDS:
                continue
            stored[key] = (snapshot.at, group.status, content)
            lag = None if group.worst is None else group.lag_records
            seconds = most(row.lag_seconds for row in group.rows)
            rows.append((snapshot.cluster, *key, snapshot.at, str(group.status), lag, seconds, content))
        try:
            with self._lock:
                # First, and on its own: what is written next may find no room.
                if not 0 <= snapshot.at - self._cleaned_at < _CLEAN_SECONDS:
                    self._clean(snapshot.at - self._keep)
                    self._cleaned_at = snapshot.at
                with self._file:
                    self._file.executemany("INSERT OR REPLACE INTO looks VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        except sqlite3.Error as error:
            self._cleaned_at = float("-inf")
            raise HistoryFailed(f"cannot write the history {self._path}: {error}") from error
        self._stored |= stored
        names = {(str(group.type), group.name) for group in snapshot.groups}
        self._stored = {key: value for key, value in self._stored.items() if key in names}

    def _clean(self, before: float) -> None:
        """Delete what is older, in portions that need little room in the journal."""
        deleted = _CLEAN_ROWS
        while deleted >= _CLEAN_ROWS:
            with self._file:
                deleted = self._file.execute(
                    "DELETE FROM looks WHERE (cluster, type, name, at) IN"
                    " (SELECT cluster, type, name, at FROM looks WHERE at < ? ORDER BY at LIMIT ?)",
                    (before, _CLEAN_ROWS),
                ).rowcount

    def looks(self, group: str, since: float) -> list[dict[str, Any]]:
        """Return what was stored about a group since a time, oldest first, at most the last 100,000."""
        rows = self._read(
            "SELECT type, at, status, lag, seconds FROM looks WHERE name = ? AND at >= ? ORDER BY at DESC LIMIT ?",
            (group, since, _MOST_LOOKS),
        )
        return [
            {"type": kind, "at": at, "status": status, "lag_records": lag, "lag_seconds": seconds}
            for kind, at, status, lag, seconds in reversed(rows)
        ]

    def commits(self, cluster: str, since: float) -> dict[GroupKey, dict[TopicPartition, list[Commit]]]:
        """Return the commits of all groups since a time, oldest first."""
        found: dict[GroupKey, dict[TopicPartition, list[Commit]]] = {}
        rows = self._read(
            "SELECT type, name, at, partitions FROM looks WHERE cluster = ? AND at >= ? ORDER BY at", (cluster, since)
        )
        for kind, name, at, content in rows:
            windows = found.setdefault((kind, name), {})
            for tp, committed, end in _unpacked(content):
                if committed is not None:
                    lag = None if end is None else max(0, end - committed)
                    windows.setdefault(tp, []).append(Commit(at, committed, lag))
        return found

    def note_told(self, cluster: str, changes: Iterable[Change]) -> None:
        """Store changes that were accepted elsewhere. Raises `HistoryFailed` if that is impossible."""
        rows = [(cluster, str(change.group.type), change.group.name, str(change.after)) for change in changes]
        try:
            with self._lock, self._file:
                self._file.executemany("INSERT OR REPLACE INTO told VALUES (?, ?, ?, ?)", rows)
                self._file.execute("DELETE FROM told WHERE cluster = ? AND status = ?", (cluster, str(Status.OK)))
        except sqlite3.Error as error:
            raise HistoryFailed(f"cannot write the history {self._path}: {error}") from error

    def told(self, cluster: str) -> dict[GroupKey, Status]:
        """Return the status of each group that was told last, of those that were not well."""
        rows = self._read("SELECT type, name, status FROM told WHERE cluster = ?", (cluster,))
        return {(kind, name): Status(status) for kind, name, status in rows}

    def _read(self, statement: str, values: Iterable[Any]) -> list[Any]:
        try:
            with self._lock:
                return self._file.execute(statement, tuple(values)).fetchall()
        except sqlite3.Error as error:
            raise HistoryFailed(f"cannot read the history {self._path}: {error}") from error


GroupKey = tuple[str, str]
"""Type and name."""


def sample_of(key: GroupKey) -> GroupSample:
    """Return the group that a key of the history means, as `Evaluator.restore` takes it."""
    kind, name = key
    return GroupSample(name, GroupType(kind))


def _packed(group: GroupLag) -> bytes:
    topics: dict[str, list[tuple[int, int | None, int | None]]] = {}
    for row in group.rows:
        topics.setdefault(row.topic, []).append((row.partition, row.committed, row.end))
    return zlib.compress(json.dumps(topics, separators=(",", ":")).encode(), 1)


def _unpacked(content: bytes) -> list[tuple[TopicPartition, int | None, int | None]]:
    try:
        topics: Mapping[str, list[tuple[int, int | None, int | None]]] = json.loads(zlib.decompress(content))
        return [
            (TopicPartition(topic, number), committed, end)
            for topic, rows in topics.items()
            for number, committed, end in rows
        ]
    except (zlib.error, ValueError, TypeError, AttributeError):
        return []  # a damaged row is as good as none
