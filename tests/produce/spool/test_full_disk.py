"""A full disk: freeing room needs no room, and nothing that was accepted is lost or stuck."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ottla import Batching, Producer, Spool, TopicOptions
from ottla.errors import NotDelivered, SpoolFailed, SpoolFull
from ottla.produce.spool import Store, Ticket, inspect
from ottla.testing import FakeKafka

from .batches import entry, numbers, whole
from .small_disk import BLOCK, SmallDisk


@pytest.fixture
def disk(quick: Path, monkeypatch: pytest.MonkeyPatch) -> SmallDisk:
    """One megabyte, 128 KB of it the reserve of a spool with small batches."""
    return SmallDisk(quick, 256, monkeypatch)


def fill(store: Store, *, size_bytes: int = 7_000, first: int = 0) -> dict[int, Ticket]:
    """Put as many entries as there is room for."""
    tickets: dict[int, Ticket] = {}
    with pytest.raises(SpoolFull, match="its disk has no space") as refused:  # noqa: PT012
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
    """Entries without a producer id are written again before they are sent."""
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


def test_a_batch_can_be_split_on_a_full_disk(disk: SmallDisk) -> None:
    with Store.open(disk.folder / "s") as store:
        tickets = fill(store)
        parts = store.put_parts(tickets[3], [entry(n, size_bytes=3_000) for n in (5000, 5001)])
        assert [part.place for part in parts] == [tickets[3].place] * 2
        expected = [0, 1, 2, 5000, 5001, *range(4, len(tickets))]
    with Store.open(disk.folder / "s") as store:
        assert numbers(store) == expected


def test_entries_that_stay_do_not_keep_the_room_of_those_that_go(disk: SmallDisk) -> None:
    """One partition in eight has no leader; the others continue, on a disk that is full again and again."""
    chance = random.Random(7)
    stays: dict[int, Ticket] = {}
    with Store.open(disk.folder / "s") as store:
        waiting: list[Ticket] = []
        for n in range(2_000):
            try:
                ticket = store.put(entry(n, size_bytes=chance.randrange(100, 9_000)))
            except SpoolFull:
                assert waiting, "the space of finished entries was not freed"
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


@pytest.mark.parametrize("blocks", [0, 1, 2, 3])
def test_sparse_segments_are_moved_together_however_little_room_is_left(disk: SmallDisk, blocks: int) -> None:
    with Store.open(disk.folder / "s") as store:
        tickets = fill(store)
        disk.blocks = disk.used + blocks  # enough for the header of a segment, but not for an entry
        stay = {ticket.segment: n for n, ticket in tickets.items()}  # the last one of each
        assert len(stay) >= 3
        store.done(ticket for n, ticket in tickets.items() if n not in stay.values())
        store.put(entry(5000, size_bytes=7_000))
    with Store.open(disk.folder / "s") as store:
        assert numbers(store) == [*stay.values(), 5000]


def test_a_disk_that_others_filled_costs_nothing_but_the_waiting(disk: SmallDisk) -> None:
    foreign = disk.folder / "foreign"
    with Store.open(disk.folder / "s") as store:
        first = [store.put(entry(n, size_bytes=7_000)) for n in range(10)]
        foreign.write_bytes(bytes((disk.blocks - disk.used) * BLOCK))
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


@pytest.mark.parametrize("write_ahead", [False, True])
def test_a_producer_delivers_all_it_accepted_and_continues_after_filling_its_disk(
    disk: SmallDisk, write_ahead: bool
) -> None:
    path = disk.folder / "s"
    kinds: list[str] = []
    with FakeKafka(topics={"t": 1}) as kafka:
        spool = Spool(path, write_ahead=write_ahead, after=0.05)
        batching = Batching(bytes=20_000, linger=0.001)
        events = [lambda event: kinds.append(event.kind)]
        with Producer(kafka.bootstrap, spool=spool, batching=batching, events=events) as producer:
            producer.send("t", b"first").result(30)
            kafka.all_down()
            for _ in range(1000):
                producer.send("t", b"x" * 2000)
            with pytest.raises(SpoolFull, match="No space left on device"):
                producer.persist(1.0)
            kafka.all_up()
            producer.flush(60)
            for _ in range(100):
                producer.send("t", b"y" * 2000)
            producer.persist(30)
            producer.flush(60)
        assert len(kafka.records("t", 0)) == 1101
    assert "spool_full" in kinds
    assert "spool_failed" not in kinds
    assert sorted(os.listdir(path)) == ["owner", "topics.json"]


def test_what_a_full_disk_refuses_fails_at_once_and_is_never_sent_if_its_caller_asks(disk: SmallDisk) -> None:
    with FakeKafka(topics={"t": 1, "u": 1}) as kafka:
        spool = Spool(disk.folder / "s", write_ahead=True)
        with Producer(kafka.bootstrap, spool=spool, batching=Batching(linger=0.001), compression="none") as producer:
            producer.send("t", b"first").result(30)
            producer.send("u", b"first").result(30)
            kafka.all_down()
            kept = []
            while producer.persist_each([delivery := producer.send_many("t", [b"x" * 20_000])], 30) == [None]:
                if delivery.done:
                    break
                kept.append(delivery)
            assert len(kept) > 10
            assert isinstance(getattr(delivery.exception(0), "cause", None), SpoolFull)
            beside = producer.send_many("u", [b"y" * 20_000])
            shared = producer.send("u", b"of another caller, in the same batch")
            (reason,) = producer.persist_each([beside], 30)
            assert isinstance(reason, SpoolFull)
            assert not beside.done
            kafka.all_up()
            assert all(each.result(60) for each in (*kept, beside))
            assert shared.result(60)
            with pytest.raises(NotDelivered, match="1 record"):
                producer.flush(30)
        assert len(kafka.records("t", 0)) == 1 + len(kept)


def test_what_a_hook_made_and_the_disk_has_is_told_from_what_it_refused(tmp_path: Path) -> None:
    """Regression: of batches with a hook nothing was on disk as soon as anything was refused."""
    with FakeKafka(topics={"t": 1, "u": 1}) as kafka:
        spool = Spool(tmp_path / "s", max_bytes=1 << 20)
        hooked = TopicOptions(batch_hook=lambda _, __, rows: rows)
        with Producer(kafka.bootstrap, spool=spool, topics={"t": hooked, "u": hooked}) as producer:
            for topic in ("t", "u"):
                producer.send(topic, b"first").result(30)
            kafka.all_down()
            small = producer.send_many("t", [b"x"])
            large = producer.send_many("u", [random.randbytes(700_000)])
            refused = producer.send_many("u", [random.randbytes(700_000)])
            *kept, reason = producer.persist_each([small, large, refused], 30)
            assert kept == [None, None]
            assert isinstance(reason, SpoolFull)
            kafka.all_up()
            producer.flush(30)
