"""A disk without any room: what frees it needs none, and nothing that was taken is lost or stuck."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ottla.errors import SpoolFailed, SpoolFull
from ottla.produce.spool import Store, Ticket, inspect

from .batches import entry, numbers, whole

_BLOCK = 4096


class SmallDisk:
    """Refuses what would take more blocks than it has, for the files below one folder."""

    def __init__(self, folder: Path, blocks: int, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.blocks = blocks
        self.tells_its_size = True
        for name in ("pwritev", "pwrite", "posix_fallocate"):
            patch.setattr(os, name, self._checked(name, getattr(os, name)))
        patch.setattr(os, "statvfs", self._size)

    @property
    def used(self) -> int:
        return sum(_blocks(file.stat().st_size) for file in self.folder.rglob("*") if file.is_file())

    def _size(self, path: object) -> os.statvfs_result:
        free = self.blocks - self.used if self.tells_its_size else 1 << 30
        return os.statvfs_result((_BLOCK, _BLOCK, self.blocks, free, free, 0, 0, 0, 0, 255))

    def _checked(self, name: str, real: Any) -> Any:
        def call(fd: int, *args: Any) -> Any:
            if name == "posix_fallocate":
                stop = args[0] + args[1]
            else:
                stop = args[1] + (sum(map(len, args[0])) if name == "pwritev" else len(args[0]))
            now = os.fstat(fd).st_size
            if self.used + _blocks(max(stop, now)) - _blocks(now) > self.blocks:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(fd, *args)

        return call


def _blocks(size_bytes: int) -> int:
    return -(-size_bytes // _BLOCK)


@pytest.fixture
def disk(quick: Path, monkeypatch: pytest.MonkeyPatch) -> SmallDisk:
    """One megabyte, of which 128 KB are the reserve of a spool with small batches."""
    return SmallDisk(quick, 256, monkeypatch)


def fill(store: Store, *, size_bytes: int = 7_000, first: int = 0) -> dict[int, Ticket]:
    """As many entries as there is room for."""
    tickets: dict[int, Ticket] = {}
    with pytest.raises(SpoolFull, match="its disk has no room") as refused:  # noqa: PT012
        for n in range(first, first + 1000):
            tickets[n] = store.put(entry(n, size_bytes=size_bytes))
    assert refused.value.max_bytes is None
    assert len(tickets) > 10
    return tickets


def test_an_active_segment_in_which_all_is_done_gives_its_room_back(disk: SmallDisk) -> None:
    with Store.open(disk.folder / "s") as store:
        for lap in range(5):  # far below a quarter of a segment
            tickets = fill(store, first=1000 * lap)
            store.done(tickets.values())
            store.settle()
            assert store.count == 0
            assert disk.used < 50
    assert os.listdir(disk.folder / "s") == ["owner"]


def test_a_put_that_meets_the_full_disk_looks_for_what_is_done_itself(disk: SmallDisk) -> None:
    with Store.open(disk.folder / "s") as store:
        tickets = fill(store)
        store.done(tickets.values())
        again = store.put(entry(5000, size_bytes=7_000))
        assert whole(store.read(again)) == whole(entry(5000, size_bytes=7_000))


@pytest.mark.parametrize("fsync", [False, True])
@pytest.mark.parametrize("one_segment", [False, True])
def test_every_entry_can_be_put_again_and_sent_although_there_is_no_room(
    disk: SmallDisk, fsync: bool, one_segment: bool
) -> None:
    """Entries without a producer id are written a second time before they are sent."""
    disk.tells_its_size = not one_segment
    with Store.open(disk.folder / "s", fsync=fsync) as store:
        tickets = fill(store)
        for n, ticket in tickets.items():
            numbered = store.put(entry(n + 5000, size_bytes=7_000, supersedes=ticket.id, place=ticket.place))
            store.durable()
            store.done([numbered])
            store.settle()
        assert store.count == 0
        assert len(fill(store, first=9000)) == len(tickets)


def test_what_replaces_an_entry_survives_a_kill_on_the_full_disk(disk: SmallDisk, tmp_path: Path) -> None:
    with Store.open(disk.folder / "s") as store:
        tickets = fill(store)
        for n, ticket in list(tickets.items())[:20]:
            numbered = store.put(entry(n + 5000, size_bytes=7_000, supersedes=ticket.id, place=ticket.place))
            copy = shutil.copytree(disk.folder / "s", tmp_path / f"copy-{n}")
            assert [s.header.base_sequence for s in inspect(copy)[0]] == [n + 5000, *range(n + 1, len(tickets))]
            store.done([numbered])
            store.settle()
            copy = shutil.copytree(disk.folder / "s", tmp_path / f"after-{n}")
            assert [s.header.base_sequence for s in inspect(copy)[0]] == list(range(n + 1, len(tickets)))


def test_a_batch_can_be_cut_on_a_full_disk(disk: SmallDisk) -> None:
    with Store.open(disk.folder / "s") as store:
        tickets = fill(store)
        parts = store.put_parts(tickets[3], [entry(n, size_bytes=3_000) for n in (5000, 5001)])
        assert [part.place for part in parts] == [tickets[3].place] * 2
        expected = [0, 1, 2, 5000, 5001, *range(4, len(tickets))]
    with Store.open(disk.folder / "s") as store:
        assert numbers(store) == expected


def test_entries_that_stay_do_not_keep_the_room_of_those_that_go(disk: SmallDisk) -> None:
    """One partition in eight has no leader; the others go on, on a disk that is full again and again."""
    chance = random.Random(7)
    stays: dict[int, Ticket] = {}
    with Store.open(disk.folder / "s") as store:
        waiting: list[Ticket] = []
        for n in range(2_000):
            try:
                ticket = store.put(entry(n, size_bytes=chance.randrange(100, 9_000)))
            except SpoolFull:
                assert waiting, "what is done was not given back"
                store.done(waiting)
                waiting.clear()
                store.settle()
                continue
            if len(stays) < 40 and chance.random() < 0.125:
                stays[n] = ticket
            else:
                waiting.append(ticket)
        store.done(waiting)
        store.settle()
        assert store.count == len(stays) == 40
    with Store.open(disk.folder / "s") as store:
        assert [stored.header.base_sequence for stored in store.inherited] == sorted(stays)


def test_a_disk_that_others_filled_costs_nothing_but_the_waiting(disk: SmallDisk) -> None:
    foreign = disk.folder / "foreign"
    with Store.open(disk.folder / "s") as store:
        first = [store.put(entry(n, size_bytes=7_000)) for n in range(10)]
        foreign.write_bytes(bytes((disk.blocks - disk.used) * _BLOCK))
        with pytest.raises(SpoolFull):
            store.put(entry(10, size_bytes=7_000))
        store.done(first[:5])
        store.settle()  # the marks go into the reserve
        assert [s.header.base_sequence for s in inspect(disk.folder / "s")[0]] == [5, 6, 7, 8, 9]
        foreign.unlink()
        store.put(entry(10, size_bytes=7_000))
        assert os.path.getsize(disk.folder / "s" / "reserve") > 100_000, "it is there again"
    with Store.open(disk.folder / "s") as store:
        assert numbers(store) == [5, 6, 7, 8, 9, 10]


def test_the_reserve_is_the_next_owners_and_a_hole_in_its_place_is_not_believed(disk: SmallDisk) -> None:
    with Store.open(disk.folder / "s") as store:
        fill(store)
    reserve = disk.folder / "s" / "reserve"
    size = reserve.stat().st_size
    with Store.open(disk.folder / "s") as store:
        assert store.used_bytes - size >= store.live_bytes
    reserve.unlink()
    with reserve.open("wb") as file:
        file.truncate(size)
    with Store.open(disk.folder / "s") as store:
        assert store.used_bytes < store.live_bytes + size


def test_segments_are_small_where_the_disk_is(disk: SmallDisk) -> None:
    with Store.open(disk.folder / "s") as store:
        assert len({ticket.segment for ticket in fill(store).values()}) >= 3


def test_a_disk_that_fails_for_another_reason_is_not_called_full(disk: SmallDisk, monkeypatch: Any) -> None:
    def refuse(fd: int, buffers: Sequence[Any], position: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with Store.open(disk.folder / "s") as store:
        store.put(entry(1))
        monkeypatch.setattr(os, "pwritev", refuse)
        with pytest.raises(SpoolFailed, match="Input/output error"):
            store.put(entry(2))
