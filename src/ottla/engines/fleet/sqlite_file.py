"""The SQLite file of a store: opens it, checks it, creates its tables and runs transactions on it.

A path and functions that use a connection come in; their results go out, or an Ottla error that says what is wrong with
the file. Threads share one connection, and a forked child opens its own. This module does not know what the rows mean.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ottla.errors import ConfigError, InputError, OttlaError, StoreIncompatible, StoreUnavailable

T = TypeVar("T")
_log = logging.getLogger(__name__)
BUSY_SECONDS = 5.0
"""How long a transaction waits for another process."""
_OPEN_RETRY_SECONDS = 0.01
_APPLICATION = 0x4F74_466C
"""SQLite's application id of these files: "OtFl" in ASCII."""
_VERSION = 1
_PRIVATE, _OTHERS = 0o600, 0o077
"""The mode of the file, and the mask of what group and others must not have."""
_SIDE_FILES = ("-wal", "-shm", "-journal")
_LOG_PAGES = 100
"""Pages of 4 KB in the write-ahead log before SQLite checkpoints it. This bounds the free disk space a store needs."""
# The schema. A group is a "team" and a partition is a "lane", because names in existing files must not change. With
# `ready` and the index `line`, taking a unit does not depend on the number of partitions.
_RANGE = "team INTEGER, topic TEXT, partition INTEGER, start INTEGER, stop INTEGER"
_RANGE_KEY = "PRIMARY KEY (team, topic, partition, start, stop)) WITHOUT ROWID"
_SCHEMA = (
    """CREATE TABLE teams (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, charter TEXT NOT NULL, number INTEGER NOT NULL DEFAULT 0,
        planner_number INTEGER, planner_holder TEXT, planner_beat INTEGER,
        done INTEGER NOT NULL DEFAULT 0, offsets INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0,
        given_back INTEGER NOT NULL DEFAULT 0, reclaimed INTEGER NOT NULL DEFAULT 0,
        given_up INTEGER NOT NULL DEFAULT 0, refused INTEGER NOT NULL DEFAULT 0)""",
    """CREATE TABLE lanes (
        team INTEGER, topic TEXT, partition INTEGER, planned INTEGER NOT NULL, turn INTEGER NOT NULL DEFAULT 0,
        label TEXT NOT NULL, ready INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (team, topic, partition)) WITHOUT ROWID""",
    "CREATE INDEX line ON lanes (team, turn, label) WHERE ready",
    f"CREATE TABLE waiting ({_RANGE}, {_RANGE_KEY}",
    f"CREATE TABLE out ({_RANGE}, number INTEGER, holder TEXT, beat INTEGER, attempt INTEGER, {_RANGE_KEY}",
    f"CREATE TABLE tries ({_RANGE}, attempts INTEGER, {_RANGE_KEY}",
    f"CREATE TABLE failures ({_RANGE}, attempts INTEGER, failure TEXT, {_RANGE_KEY}",
    "CREATE TABLE nodes (team INTEGER, name TEXT, beat INTEGER, report TEXT, PRIMARY KEY (team, name)) WITHOUT ROWID",
    "CREATE TABLE topics (team INTEGER, name TEXT, identity TEXT, PRIMARY KEY (team, name)) WITHOUT ROWID",
    "CREATE TABLE notes (team INTEGER, key TEXT, value BLOB, PRIMARY KEY (team, key)) WITHOUT ROWID",
    f"PRAGMA application_id = {_APPLICATION}",
    f"PRAGMA user_version = {_VERSION}",
)

_inherited: list[sqlite3.Connection] = []
"""Connections that a forked child has from its parent. SQLite forbids using them there, and closing them, too."""
_HARMLESS = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL)
"""Errors after which the connection can still be used."""


class SqliteFile:
    """One file, opened on first use."""

    def __init__(self, path: Path, address: str) -> None:
        self._path = path
        self._address = address
        self._session = _Session()

    def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a transaction that writes; there is one at a time. It is rolled back if `work` raises.

        Raises `StoreUnavailable` if the file is busy or the disk is full, `StoreIncompatible` or `ConfigError` if the
        file cannot be used.
        """
        return self._transact("BEGIN IMMEDIATE", work)

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a transaction that sees one moment and blocks no writer. Raises what `write` raises."""
        return self._transact("BEGIN", work)

    def close(self) -> None:
        """Close the file. A later transaction opens it again."""
        session = self._own_session()
        with session.lock:
            session.close()

    def _transact(self, begin: str, work: Callable[[sqlite3.Connection], T]) -> T:
        session = self._own_session()
        is_mine = False
        # One try and no context manager: a signal between __enter__ and the block would leave the lock held.
        try:
            if not session.lock.acquire(timeout=2 * BUSY_SECONDS):
                raise StoreUnavailable(self._address, f"other threads have kept it busy for {2 * BUSY_SECONDS:.0f} s")
            if session.is_busy:
                raise StoreUnavailable(self._address, "this thread is already in the middle of a step")
            is_mine = session.is_busy = True
            return _transact_making_room(self._opened(session), begin, work)
        except sqlite3.Error as error:
            if _primary_code(error) not in _HARMLESS:
                session.close()
            raise self._meaning(error) from error
        except OverflowError as error:
            raise InputError(f"offsets and lease numbers must be below 2**63: {error}") from error
        finally:
            if is_mine:
                session.is_busy = False
            try:
                session.lock.release()
            except RuntimeError:
                pass  # this thread did not acquire it

    def _own_session(self) -> _Session:
        """Return the session of this process. A forked child gets a new one."""
        if self._session.pid != os.getpid():
            if self._session.db is not None:
                _inherited.append(self._session.db)
            self._session = _Session()
        return self._session

    def _opened(self, session: _Session) -> sqlite3.Connection:
        """Return the connection. Opens the file again if another file is at the path now."""
        if session.db is not None and session.file != _identity(self._path):
            session.close()
        if session.db is None:
            session.db = self._open()
            session.file = _identity(self._path)
        return session.db

    def _open(self) -> sqlite3.Connection:
        """Open the file, and create it and its tables if it is new. Raises `ConfigError` if the path is unusable."""
        if not self._path.parent.is_dir():
            raise ConfigError(
                f"the fleet's store {self._address}: the folder {self._path.parent} does not exist (three slashes begin"
                " a relative path, four an absolute one)"
            )
        if self._path.is_dir():
            raise ConfigError(f"the fleet's store {self._address}: {self._path} is a folder and must be a file")
        self._create()
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            # isolation_level=None: the sqlite3 module must not begin transactions on its own.
            db = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            try:
                self._prepare(db)
                self._keep_private()
                return db
            except sqlite3.OperationalError as error:
                db.close()
                # SQLite's busy timeout does not cover two processes that switch a new file to WAL at the same time.
                if _primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(_OPEN_RETRY_SECONDS)
            except BaseException:
                db.close()
                raise

    def _create(self) -> None:
        """Create the file with mode 0600, whatever the umask is: write access to a store decides what nodes work on.

        SQLite gives the files beside it the same mode.
        """
        if self._path.exists():
            return
        try:
            # Create it under another name and link it: closing a descriptor of the file itself would drop the POSIX
            # locks that other threads hold on it.
            handle, draft = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.parent)
            os.close(handle)
            try:
                os.link(draft, self._path)
            finally:
                os.unlink(draft)
        except FileExistsError:
            pass  # another process was faster
        except PermissionError as error:
            raise ConfigError(f"the fleet's store {self._address} cannot be created: {error}") from error
        except OSError as error:
            _log.debug("cannot create %s with a private mode, SQLite creates it: %s", self._path, error)

    def _keep_private(self) -> None:
        """Remove the access of others to a file that an earlier version created."""
        for suffix in ("", *_SIDE_FILES):
            path = self._path.with_name(self._path.name + suffix)
            try:
                status = os.stat(path)
                if status.st_uid == os.geteuid() and status.st_mode & _OTHERS:
                    os.chmod(path, _PRIVATE)
            except FileNotFoundError:
                pass

    def _prepare(self, db: sqlite3.Connection) -> None:
        """Check the file before writing anything to it: it may belong to another program."""
        is_new = _transact(db, "BEGIN", self._is_new)  # in one transaction: another process may be creating the tables
        (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreIncompatible(
                f"the fleet's store {self._address}: its file system does not support SQLite's write-ahead log"
            )
        db.execute("PRAGMA synchronous = FULL")  # a step that was answered must survive a power cut
        db.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
        if is_new:
            _transact(db, "BEGIN IMMEDIATE", self._make_tables)
            _empty_log(db)  # moves the tables from the log into the file, which reserves their space

    def _make_tables(self, db: sqlite3.Connection) -> None:
        if self._is_new(db):
            for statement in _SCHEMA:
                db.execute(statement)

    def _is_new(self, db: sqlite3.Connection) -> bool:
        """Whether the file has no tables yet. Raises `StoreIncompatible` if it belongs to something else."""
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not (application or version or tables):
            return True
        if application != _APPLICATION:
            raise StoreIncompatible(f"the fleet's store {self._address} is a database of another program")
        if version != _VERSION:
            raise StoreIncompatible(
                f"the fleet's store {self._address} has version {version}, and this Ottla supports version {_VERSION}:"
                " run the same Ottla on all nodes, or choose another file"
            )
        return False

    def _meaning(self, error: sqlite3.Error) -> OttlaError:
        """Return the Ottla error for an error of SQLite."""
        primary = _primary_code(error)
        if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StoreUnavailable(self._address, f"another process has locked it for over {BUSY_SECONDS:.0f} s")
        if primary == sqlite3.SQLITE_FULL:
            return StoreUnavailable(self._address, "there is no space left on its disk")
        if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            return ConfigError(f"the fleet's store {self._address} cannot be written to: {error}")
        if primary in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR):
            return StoreIncompatible(f"the fleet's store {self._address} is damaged or not a SQLite file: {error}")
        return StoreUnavailable(self._address, str(error))


class _Session:
    """The connection of this process, and the lock on it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self.is_busy = False
        """Whether a transaction is open. The lock is reentrant, so a signal handler could begin a second one."""
        self.db: sqlite3.Connection | None = None
        self.file: tuple[int, int] | None = None

    def close(self) -> None:
        if self.db is not None:
            self.db.close()
        self.db = None


def _transact_making_room(db: sqlite3.Connection, begin: str, work: Callable[[sqlite3.Connection], T]) -> T:
    """Run a transaction. If the disk is full, checkpoint the log and try again."""
    # SQLite only checkpoints after a commit, and none would succeed once the log has filled the disk.
    try:
        return _transact(db, begin, work)
    except sqlite3.Error as error:
        if _primary_code(error) != sqlite3.SQLITE_FULL or not _empty_log(db):
            raise
    return _transact(db, begin, work)


def _empty_log(db: sqlite3.Connection) -> bool:
    """Checkpoint and truncate the log. Returns whether all of it is in the file now."""
    try:
        (is_busy, *_) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error:
        return False  # others are reading it, or there is no space for the file to grow
    return not is_busy


def _transact(db: sqlite3.Connection, begin: str, work: Callable[[sqlite3.Connection], T]) -> T:
    """Run a transaction, and roll it back if anything raises."""
    try:
        db.execute(begin)
        result = work(db)
        db.execute("COMMIT")
        return result
    except BaseException:
        try:
            if db.in_transaction:
                db.execute("ROLLBACK")
        except sqlite3.Error:
            pass  # the first error says more
        raise


def _primary_code(error: sqlite3.Error) -> int:
    """SQLite's primary result code, without the extension."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode, to notice that another file is at the path now."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
