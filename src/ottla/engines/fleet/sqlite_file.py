"""A SQLite file as the place of a fleet: opened, checked, and used in transactions.

A path comes in; transactions go out, or an error of Ottla's that says what is wrong with the file. Threads share one
connection, and a forked child makes its own. The tables are made here; what is in them is not known.
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
_OPEN_PAUSE = 0.01
_APPLICATION = 0x4F74_466C
"""By which a file says that it is one of these; the digits read OtFl."""
_VERSION = 1
_PRIVATE, _OTHERS = 0o600, 0o077
"""The mode of the file, and of it what others would have."""
_BESIDE = ("-wal", "-shm", "-journal")
_LOG_PAGES = 100
"""Of 4 KB, after which the log beside the file is emptied into it: the least room that a store needs on its disk."""
_RANGE = "team INTEGER, topic TEXT, partition INTEGER, start INTEGER, stop INTEGER"
_RANGE_KEY = "PRIMARY KEY (team, topic, partition, start, stop)) WITHOUT ROWID"
_TABLES = (
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
"""What a forked child has from its parent. SQLite forbids to use them, and to close them as well."""


class SqliteFile:
    """One file. It is opened when it is first used."""

    def __init__(self, path: Path, address: str) -> None:
        self._path = path
        self._address = address
        self._session = _Session()

    def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """A transaction of one writer at a time. It is undone if the work raises."""
        return self._transact("BEGIN IMMEDIATE", work)

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """A transaction that sees one moment, and holds nobody up."""
        return self._transact("BEGIN", work)

    def close(self) -> None:
        """A later transaction opens the file again."""
        session = self._own_session()
        with session.lock:
            session.close()

    def _transact(self, begin: str, work: Callable[[sqlite3.Connection], T]) -> T:
        session = self._own_session()
        is_mine = False
        # Not with blocks of our own: an interrupt on the way in or out of one would leave the lock to nobody.
        try:
            if not session.lock.acquire(timeout=2 * BUSY_SECONDS):
                raise StoreUnavailable(self._address, f"other threads have used it for {2 * BUSY_SECONDS:.0f} s")
            if session.is_busy:
                raise StoreUnavailable(self._address, "it is in the middle of a step of this very thread")
            is_mine = session.is_busy = True
            return _carried_out(self._opened(session), begin, work)
        except sqlite3.Error as error:
            if _primary(error) not in _HARMLESS:
                session.close()
            raise self._meaning(error) from error
        except OverflowError as error:
            raise InputError(f"offsets and numbers of leases must be below 2**63: {error}") from error
        finally:
            if is_mine:
                session.is_busy = False
            try:
                session.lock.release()
            except RuntimeError:
                pass  # this thread did not get it

    def _own_session(self) -> _Session:
        if self._session.pid != os.getpid():
            if self._session.db is not None:
                _inherited.append(self._session.db)
            self._session = _Session()
        return self._session

    def _opened(self, session: _Session) -> sqlite3.Connection:
        """The connection, if the file is still the one that was opened."""
        if session.db is not None and session.file != _identity(self._path):
            session.close()
        if session.db is None:
            session.db = self._open()
            session.file = _identity(self._path)
        return session.db

    def _open(self) -> sqlite3.Connection:
        if not self._path.parent.is_dir():
            raise ConfigError(
                f"the fleet's store {self._address}: the folder {self._path.parent} does not exist (three slashes: from"
                " the current folder on; four: an absolute path)"
            )
        if self._path.is_dir():
            raise ConfigError(f"the fleet's store {self._address}: {self._path} is a folder, and must be a file")
        self._create()
        until = time.monotonic() + BUSY_SECONDS
        while True:
            # Without isolation_level, the module begins no transactions of its own.
            db = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            try:
                self._prepare(db)
                self._keep_private()
                return db
            except sqlite3.OperationalError as error:
                db.close()
                # Two that switch a new file to WAL at the same time do not wait for one another by themselves.
                if _primary(error) != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                    raise
                time.sleep(_OPEN_PAUSE)
            except BaseException:
                db.close()
                raise

    def _create(self) -> None:
        """A new file belongs to this account alone, whatever the umask says: those who can write to a store decide what
        its nodes work on. SQLite gives the files beside it the same mode."""
        if self._path.exists():
            return
        try:
            # Not opened under its own name: closing it would end the locks that other threads have on it by then.
            handle, draft = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.parent)
            os.close(handle)
            try:
                os.link(draft, self._path)
            finally:
                os.unlink(draft)
        except FileExistsError:
            pass  # somebody was faster
        except PermissionError as error:
            raise ConfigError(f"the fleet's store {self._address} cannot be created: {error}") from error
        except OSError as error:
            _log.debug("%s is left to SQLite to create: %s", self._path, error)

    def _keep_private(self) -> None:
        """A file of an earlier version is closed to others, too."""
        for end in ("", *_BESIDE):
            path = self._path.with_name(self._path.name + end)
            try:
                found = os.stat(path)
                if found.st_uid == os.geteuid() and found.st_mode & _OTHERS:
                    os.chmod(path, _PRIVATE)
            except FileNotFoundError:
                pass

    def _prepare(self, db: sqlite3.Connection) -> None:
        """Look before anything is written: the file may be somebody else's."""
        is_new = _undone(db, "BEGIN", self._is_new)  # at one moment: another process may be making its tables
        (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreIncompatible(
                f"the fleet's store {self._address}: its file system cannot do what SQLite's WAL needs"
            )
        db.execute("PRAGMA synchronous = FULL")
        db.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
        if is_new:
            _undone(db, "BEGIN IMMEDIATE", self._make_tables)
            _empty_log(db)  # the tables have their room in the file from now on

    def _make_tables(self, db: sqlite3.Connection) -> None:
        if self._is_new(db):
            for statement in _TABLES:
                db.execute(statement)

    def _is_new(self, db: sqlite3.Connection) -> bool:
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not (application or version or tables):
            return True
        if application != _APPLICATION:
            raise StoreIncompatible(f"the fleet's store {self._address} is a database of something else")
        if version != _VERSION:
            raise StoreIncompatible(
                f"the fleet's store {self._address} is of version {version}, and this Ottla understands version"
                f" {_VERSION}: let all nodes run the same Ottla, or choose another file"
            )
        return False

    def _meaning(self, error: sqlite3.Error) -> OttlaError:
        primary = _primary(error)
        if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StoreUnavailable(self._address, f"another process has it locked for over {BUSY_SECONDS:.0f} s")
        if primary == sqlite3.SQLITE_FULL:
            return StoreUnavailable(self._address, "there is no space left on its disk")
        if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            return ConfigError(f"the fleet's store {self._address} cannot be written to: {error}")
        if primary in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR):
            return StoreIncompatible(f"the fleet's store {self._address} is damaged, or no SQLite file: {error}")
        return StoreUnavailable(self._address, str(error))


_HARMLESS = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL)


class _Session:
    """The connection of this process, and who may use it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self.is_busy = False
        """Whether a transaction is open. The thread that has one may be asked for another, by a signal handler."""
        self.db: sqlite3.Connection | None = None
        self.file: tuple[int, int] | None = None

    def close(self) -> None:
        if self.db is not None:
            self.db.close()
        self.db = None


def _carried_out(db: sqlite3.Connection, begin: str, work: Callable[[sqlite3.Connection], T]) -> T:
    """A transaction that makes room for itself where the log beside the file has filled the disk: SQLite empties the
    log after a step that succeeded, and none would any more."""
    try:
        return _undone(db, begin, work)
    except sqlite3.Error as error:
        if _primary(error) != sqlite3.SQLITE_FULL or not _empty_log(db):
            raise
    return _undone(db, begin, work)


def _empty_log(db: sqlite3.Connection) -> bool:
    """Whether all of the log is in the file now, and its room is free."""
    try:
        (is_busy, *_) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error:
        return False  # others read it, or there is no room to grow into
    return not is_busy


def _undone(db: sqlite3.Connection, begin: str, work: Callable[[sqlite3.Connection], T]) -> T:
    """A transaction that is undone when something goes wrong."""
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
            pass  # what went wrong first says more
        raise


def _primary(error: sqlite3.Error) -> int:
    """The kind of error, without its details."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
