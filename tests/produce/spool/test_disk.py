"""A disk that is full or fails: an error at the call, nothing half stored, and it works again when there is space."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ottla.errors import SpoolFailed, SpoolFull
from ottla.produce.spool import Store, Ticket, inspect

from .batches import entry, numbers, whole


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """Limit the size of files of this process: the write beyond it is short, the next one is refused."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))  # Python ignores SIGXFSZ
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_write_that_is_cut_in_the_middle_leaves_nothing_and_the_next_one_works(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.put(entry(0, size_bytes=3000))
        size = os.path.getsize(tmp_path / "000001.log")
        for _ in range(3):
            with (
                largest_file(5000),
                pytest.raises(SpoolFailed, match=r"000001\.log: cannot be written: File too large"),
            ):
                store.put(entry(1, size_bytes=3000))
            assert os.path.getsize(tmp_path / "000001.log") == size
            assert store.count == 1
        store.put(entry(2, size_bytes=3000))
    with Store.open(tmp_path) as store:
        assert numbers(store) == [0, 2]
        assert store.damage == []


def test_a_segment_that_cannot_be_cut_back_is_given_up_without_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with Store.open(tmp_path) as store:
        store.put(entry(0, size_bytes=3000))
        with monkeypatch.context() as patch:
            patch.setattr(os, "ftruncate", refuse)
            with largest_file(5000), pytest.raises(SpoolFailed, match="cannot be written"):
                store.put(entry(1, size_bytes=3000))
        ticket = store.put(entry(2, size_bytes=3000))
        assert ticket.segment == 2
        assert os.path.getsize(tmp_path / "000001.log") == 5000
    with Store.open(tmp_path) as store:
        assert numbers(store) == [0, 2]
        assert store.damage == []  # the half entry was never promised, and the next segment shows that


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of half a megabyte."""
    if os.getuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small file system")
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(path)], capture_output=True, check=False, timeout=10
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    yield path
    subprocess.run(["umount", str(path)], check=True, timeout=10)


def until_full(store: Store) -> Iterator[Ticket]:
    for n in range(1_000):
        try:
            yield store.put(entry(n, size_bytes=7_000))
        except SpoolFull:
            return


def test_a_full_disk_is_reported_and_the_spool_recovers_when_there_is_space(small_disk: Path) -> None:
    with Store.open(small_disk / "s", segment_bytes=65_536) as store:
        tickets = list(until_full(store))
        assert len(tickets) > 40
        with pytest.raises(SpoolFull, match="No space left on device"):
            store.put(entry(999, size_bytes=7_000))
        for n, ticket in enumerate(tickets):
            assert whole(store.read(ticket)) == whole(entry(n, size_bytes=7_000))
        store.done(tickets[:30])  # acknowledgements arrive although there is hardly room to write them down
        store.settle()
        again = store.put(entry(1000, size_bytes=7_000))
        assert whole(store.read(again)) == whole(entry(1000, size_bytes=7_000))
        expected = [*range(30, len(tickets)), 1000]
    with Store.open(small_disk / "s") as store:
        assert numbers(store) == expected
        assert store.damage == []
        store.done(stored.ticket for stored in store.inherited)
    assert os.listdir(small_disk / "s") == ["owner"]


def failing_once(monkeypatch: pytest.MonkeyPatch, name: str, number: int = errno.EIO) -> list[Any]:
    """Make the next call of os.`name` fail and later ones work. Returns the arguments of all."""
    real, calls = getattr(os, name), []

    def call(*args: Any, **options: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            raise OSError(number, os.strerror(number))
        return real(*args, **options)

    monkeypatch.setattr(os, name, call)
    return calls


@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
def test_a_failing_fsync_names_what_is_in_doubt_and_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    with Store.open(tmp_path, fsync=True) as store:
        if call == "fdatasync":
            store.put(entry(0))
            store.durable()
        before = store.count
        first = [store.put(entry(n)) for n in (1, 2, 3)]
        store.done(first[:1])
        with monkeypatch.context() as patch:
            failing_once(patch, call)
            with pytest.raises(
                SpoolFailed, match=r"fsync failed: Input/output error; 2 stored batches are doubtful"
            ) as caught:
                store.durable()
            assert caught.value.doubtful == tuple(first[1:])
            store.durable()  # proves nothing about the dropped pages, and does not pretend to
        second = [
            store.put(entry(n, supersedes=ticket.id)) for n, ticket in zip((2, 3), caught.value.doubtful, strict=True)
        ]
        assert {ticket.segment for ticket in second} == {2}
        assert store.count == before + 4  # until they are durable, both are kept
        store.durable()
        assert store.count == before + 2
    with Store.open(tmp_path) as store:
        assert numbers(store) == [*range(before), 2, 3]
        assert {s.ticket.segment for s in store.inherited if s.header.base_sequence} == {2}


def test_without_fsync_nothing_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [failing_once(monkeypatch, name) for name in ("fsync", "fdatasync")]
    with Store.open(tmp_path) as store:
        store.put(entry(1))
        store.durable()
    assert calls == [[], []]


def test_marks_that_cannot_be_written_are_written_later_and_nothing_comes_back_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = os.open

    def no_marks(path: Any, flags: int, *rest: Any) -> int:
        if str(path).endswith(".done") and flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, flags, *rest)

    with Store.open(tmp_path / "s", segment_bytes=4096) as store:
        old, _ = store.put(entry(1)), store.put(entry(2))
        filler = [store.put(entry(100 + n, size_bytes=1000)) for n in range(6)]
        new = store.put(entry(3, supersedes=old.id))
        filler += [store.put(entry(200 + n, size_bytes=1000)) for n in range(6)]
        assert old.segment < new.segment < filler[-1].segment
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", no_marks)
            store.done([new, *filler])
            for _ in range(3):
                store.settle()
            # The successor is done, but must stay until the entry it superseded is marked as done.
            assert (tmp_path / "s" / f"{new.segment:06d}.log").exists()
            copy = shutil.copytree(tmp_path / "s", tmp_path / "copy")
            assert 1 not in [s.header.base_sequence for s in inspect(copy)[0]]
        assert len([r for r in caplog.records if "cannot write marks" in r.message]) == 1
        store.settle()
        assert not (tmp_path / "s" / f"{new.segment:06d}.log").exists()
    with Store.open(tmp_path / "s") as store:
        assert numbers(store) == [2]


def test_a_disk_that_cannot_read_a_page_costs_only_the_batches_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path) as store:
        tickets = [store.put(entry(n, size_bytes=3000)) for n in range(20)]
    real = os.pread

    def bad_sector(fd: int, count: int, position: int) -> bytes:
        if position < 20_480 and position + count > 16_384 and os.fstat(fd).st_size > 20_480:
            raise OSError(errno.EIO, "Input/output error")
        return real(fd, count, position)

    monkeypatch.setattr(os, "pread", bad_sector)
    stored, damage, _ = inspect(tmp_path)
    hit = {t.id for t in tickets if t.position < 20_480 and t.position + t.size_bytes > 16_384}
    assert {s.ticket.id for s in stored} == {t.id for t in tickets} - hit
    assert sum(d.entries or 0 for d in damage) == len(hit)
