"""A group in a SQLite file: what is refused, and what a full disk, a lock and a vanished file do."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ottla.engines.fleet import sqlite_file
from ottla.engines.fleet.store import Store, open_store
from ottla.engines.fleet.units import Charter
from ottla.errors import ConfigError, StoreIncompatible, StoreUnavailable

from .test_stores import planned


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fleet.db"


@pytest.fixture
def store(path: Path, group: str) -> Iterator[Store]:
    store = open_store(f"sqlite:///{path}", group)
    yield store
    store.close()


def test_a_relative_path_is_that_of_the_folder_where_the_store_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///here.db", group)
    monkeypatch.chdir("/")
    store.found(Charter())
    store.close()
    assert (tmp_path / "here.db").is_file()


def test_nothing_is_opened_before_the_first_step(path: Path, store: Store) -> None:
    assert not path.exists()
    store.look()
    assert path.exists()


def modes(path: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mode & 0o777 for file in path.parent.glob("fleet.db*")}


@pytest.mark.parametrize("mask", [0o000, 0o022])
def test_the_files_are_for_this_account_alone(path: Path, store: Store, mask: int) -> None:
    before = os.umask(mask)
    try:
        planned(store, 3)
    finally:
        os.umask(before)
    assert modes(path) == dict.fromkeys(("fleet.db", "fleet.db-wal", "fleet.db-shm"), 0o600)
    assert [file.name for file in path.parent.iterdir() if not file.name.startswith("fleet.db")] == []


def test_a_file_that_others_could_read_is_closed_to_them(path: Path, store: Store) -> None:
    planned(store, 3)
    for file in path.parent.glob("fleet.db*"):
        file.chmod(0o666)
    other = open_store(f"sqlite:///{path}", "other")
    planned(other, 3)
    assert set(modes(path).values()) == {0o600}
    other.close()


def test_a_file_of_another_owner_keeps_its_mode(path: Path, store: Store) -> None:
    path.write_text("my diary\n" * 1000)
    path.chmod(0o644)
    with pytest.raises(StoreIncompatible):
        store.found(Charter())
    assert modes(path) == {"fleet.db": 0o644}


def test_every_step_is_on_disk_before_it_is_answered(path: Path, store: Store) -> None:
    store.found(Charter())
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    db.close()
    file = sqlite_file.SqliteFile(path, "x")
    assert file.read(lambda own: own.execute("PRAGMA synchronous").fetchone()) == (2,)
    file.close()


def test_a_folder_that_is_missing(tmp_path: Path, group: str) -> None:
    with pytest.raises(ConfigError, match=r"the folder .*/nowhere does not exist \(three slashes begin .*, four "):
        open_store(f"sqlite:///{tmp_path}/nowhere/fleet.db", group).found(Charter())


def test_a_folder_in_the_place_of_the_file(tmp_path: Path, group: str) -> None:
    with pytest.raises(ConfigError, match="is a folder and must be a file"):
        open_store(f"sqlite:///{tmp_path}", group).found(Charter())


def test_a_file_that_is_no_database_is_left_as_it_is(path: Path, store: Store) -> None:
    path.write_text("my diary\n" * 1000)
    with pytest.raises(StoreIncompatible, match="is damaged or not a SQLite file"):
        store.found(Charter())
    assert path.read_text().startswith("my diary\n")


def test_a_database_of_something_else_is_left_as_it_is(path: Path, store: Store) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE diary (day, text)")
    db.commit()
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreIncompatible, match="is a database of another program"):
        store.found(Charter())
    assert path.read_bytes() == before


def test_a_file_of_another_version(path: Path, store: Store) -> None:
    store.found(Charter())
    store.close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 7")
    db.close()
    with pytest.raises(StoreIncompatible, match="has version 7, and this Ottla supports version 1"):
        store.found(Charter())


def test_a_file_that_is_damaged(path: Path, store: Store) -> None:
    planned(store, 500)
    store.close()
    whole = bytearray(path.read_bytes())
    whole[4096:] = bytes(len(whole) - 4096)
    path.write_bytes(whole)
    with pytest.raises(StoreIncompatible, match="is damaged"):
        store.look()


def test_a_file_that_another_process_keeps_locked(path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 0.1)
    planned(store, 1)
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="another process has locked it for over"):
        store.take("a")
    assert len(store.waiting()) == 1, "looking waits for nobody"
    db.execute("ROLLBACK")
    db.close()
    assert len(store.take("a")) == 1


def test_a_disk_that_is_full_undoes_the_step_and_later_steps_work(store: Store) -> None:
    planned(store, 3)
    before = store.look()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(StoreUnavailable):
            store.note("large", bytes(1_000_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert store.look() == before
    assert store.notes() == {}
    assert len(store.take("a")) == 1


def test_the_log_beside_the_file_stays_small(path: Path, store: Store) -> None:
    """Found: it grew to 4 MB before it was emptied, and on a disk with less room it was never emptied at all."""
    store.found(Charter())
    for number in range(300):
        store.hello("node", {"told": f"{number} {'x' * 4000}"})
    assert path.with_name("fleet.db-wal").stat().st_size < 1_000_000


def test_a_disk_that_is_full_of_the_log_empties_it(path: Path, group: str) -> None:
    file = sqlite_file.SqliteFile(path, f"sqlite:///{path}")
    log = path.with_name("fleet.db-wal")

    def step(db: sqlite3.Connection) -> int:
        if log.stat().st_size:
            full = sqlite3.OperationalError("database or disk is full")
            full.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise full
        return 1

    file.write(lambda db: db.execute("INSERT INTO notes VALUES (1, 'key', ?)", (bytes(100_000),)))
    assert log.stat().st_size > 100_000
    assert file.write(step) == 1
    assert file.read(lambda db: db.execute("SELECT length(value) FROM notes").fetchone()) == (100_000,)
    file.close()


def test_a_file_that_was_deleted_is_a_new_store(path: Path, store: Store) -> None:
    planned(store, 3)
    for file in path.parent.glob("fleet.db*"):
        file.unlink()
    assert store.waiting() == []
    with pytest.raises(StoreUnavailable, match="has no group"):
        store.lead("a")
    assert store.found(Charter(ordered=True)) == Charter(ordered=True)
    assert path.exists()


def test_two_groups_share_a_file(path: Path, store: Store) -> None:
    planned(store, 3)
    other = open_store(f"sqlite:///{path}", "other")
    planned(other, 5)
    store.forget()
    assert len(other.take("a", 9)) == 5
    other.close()


def test_many_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    for attempt in range(12):
        url = f"sqlite:///{tmp_path}/new-{attempt}.db"
        stores = [open_store(url, "etl") for _ in range(6)]
        with ThreadPoolExecutor(len(stores)) as pool:
            charters = list(pool.map(lambda store: store.found(Charter(max_attempts=3)), stores))
        assert {charter.max_attempts for charter in charters} == {3}
        for store in stores:
            store.close()
