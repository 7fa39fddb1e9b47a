"""The spool keeps what it was given, byte for byte, until that is done; and refuses when it is full."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ottla.errors import ConfigError, CorruptBatch, InputError, SpoolFailed, SpoolFull
from ottla.produce.spool import Store, export, inspect

from .batches import contents, entry, numbers, whole


def test_what_was_put_is_read_back_byte_for_byte(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s") as store:
        tickets = {n: store.put(entry(n, size_bytes=n * n)) for n in range(60)}
        assert store.inherited == []
        assert store.count == 60
        for n, ticket in tickets.items():
            assert whole(store.read(ticket)) == whole(entry(n, size_bytes=n * n))


def test_a_batch_of_megabytes_fits_although_it_is_larger_than_a_segment(tmp_path: Path) -> None:
    large = entry(1, size_bytes=3_000_000)
    with Store.open(tmp_path / "s", segment_bytes=4096) as store:
        store.put(entry(0))
        store.put(large)
        store.put(entry(2))
    with Store.open(tmp_path / "s") as store:
        assert [len(data) for data in contents(store).values()] == [101, 3_000_061, 101]
        assert contents(store)[2] == whole(large)


def test_the_next_owner_inherits_in_order_what_is_not_done(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", segment_bytes=4096) as store:
        tickets = [store.put(entry(n)) for n in range(100)]
        store.done(tickets[n] for n in range(100) if n % 7)
    with Store.open(tmp_path / "s") as store:
        assert numbers(store) == list(range(0, 100, 7))
        assert store.damage == []
        kept = store.inherited[3]
        expected = entry(21)
        assert (kept.topic, kept.partition, kept.header) == ("clicks", 0, expected.header)
        assert (kept.floor_offset, kept.created, kept.supersedes) == (20, expected.created, 0)


def test_ids_continue_where_the_last_owner_stopped_even_if_nothing_was_left(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s") as store:
        store.done([store.put(entry(0)), store.put(entry(1))])
    assert os.listdir(tmp_path / "s") == ["owner"]
    with Store.open(tmp_path / "s") as store:
        assert store.put(entry(2)).id == 3


def test_finished_segments_are_removed_and_others_stay(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", segment_bytes=4096) as store:
        tickets = [store.put(entry(n, size_bytes=1000)) for n in range(12)]
        assert [t.segment for t in tickets] == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]
        store.done(t for t in tickets if t.segment != 2)
        store.settle()
        assert sorted(os.listdir(tmp_path / "s")) == ["000002.log", "owner", "reserve"]
        assert numbers_on_disk(tmp_path / "s") == [n for n, t in enumerate(tickets) if t.segment == 2]


def numbers_on_disk(path: Path) -> list[int]:
    return [stored.header.base_sequence for stored in inspect(path)[0]]


def test_an_entry_takes_the_place_of_the_one_that_it_supersedes(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s") as store:
        old = store.put(entry(1))
        store.put(entry(2, supersedes=old.id))
        assert store.count == 1
        assert numbers_on_disk(tmp_path / "s") == [2]
    with Store.open(tmp_path / "s") as store:
        assert numbers(store) == [2]


def test_an_entry_keeps_the_place_of_what_it_stands_for_also_when_it_is_moved(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", max_bytes=46_000) as store:
        first, second, _ = [store.put(entry(n, size_bytes=1000)) for n in (1, 2, 3)]
        again = store.put(entry(20, size_bytes=1000, supersedes=second.id, place=second.place))
        store.put(entry(10, size_bytes=1000, supersedes=first.id, place=first.place))
        twice = store.put(entry(21, size_bytes=1000, supersedes=again.id, place=again.place))
        assert (again.place, twice.place) == (2, 2)
        for n in range(100, 130):  # up to the limit: it needs the space of superseded entries
            store.put(entry(n, size_bytes=1000))
        assert not (tmp_path / "s" / "000001.log").exists()
        assert numbers_on_disk(tmp_path / "s") == [10, 21, 3, *range(100, 130)]
    with Store.open(tmp_path / "s") as store:
        assert numbers(store) == [10, 21, 3, *range(100, 130)]
        assert [s.ticket.place for s in store.inherited[:3]] == [1, 2, 3]


def test_a_superseded_entry_does_not_come_back_when_its_successor_is_gone(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", segment_bytes=4096) as store:
        old, stays = store.put(entry(1)), store.put(entry(3))
        for n in range(50):  # the successor is in another segment, which is removed
            store.done([store.put(entry(100 + n))])
        store.done([store.put(entry(2, supersedes=old.id))])
        for n in range(50):
            store.done([store.put(entry(200 + n))])
        store.settle()
        assert numbers_on_disk(tmp_path / "s") == [3]
        assert store.read(stays).header == entry(3).header


def test_done_twice_or_for_an_unknown_ticket_is_no_error(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s") as store:
        ticket = store.put(entry(1))
        store.put(entry(2))
        store.done([ticket, ticket])
        store.settle()
        store.done([ticket])
        store.settle()
        assert store.count == 1
        with pytest.raises(SpoolFailed, match="entry 1 is not in the spool, or done"):
            store.read(ticket)


def test_a_full_spool_says_how_full_and_takes_more_when_something_is_done(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", max_bytes=20_000) as store:
        tickets = [store.put(entry(n, size_bytes=1000)) for n in range(14)]
        with pytest.raises(SpoolFull) as caught:
            store.put(entry(14, size_bytes=1000))
        assert store.used_bytes == caught.value.used_bytes <= 20_000
        assert caught.value.max_bytes == 20_000
        assert caught.value.needed_bytes == tickets[0].size_bytes
        assert "is full" in str(caught.value)
        store.done(tickets[:4])
        tickets.append(store.put(entry(14, size_bytes=1000)))
        assert store.used_bytes <= 20_000
    with Store.open(tmp_path / "s") as store:
        assert numbers(store) == list(range(4, 15))


def test_a_batch_larger_than_the_whole_limit_is_refused(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", max_bytes=20_000) as store:
        with pytest.raises(SpoolFull):
            store.put(entry(1, size_bytes=20_001))
        store.put(entry(2))


def test_entries_that_stay_do_not_pin_the_space_of_those_that_go(tmp_path: Path) -> None:
    """A partition without a leader: one batch in twenty is not acknowledged, for 40 times the limit."""
    with Store.open(tmp_path / "s", max_bytes=400_000) as store:
        for n in range(12_000):
            ticket = store.put(entry(n, size_bytes=1000))
            if n % 100 or n >= 10_000:
                store.done([ticket])
            if n % 50 == 0:
                store.settle()
        assert store.count == 100
        assert store.used_bytes <= 400_000
        store.settle()
        assert numbers_on_disk(tmp_path / "s") == list(range(0, 10_000, 100))
    with Store.open(tmp_path / "s") as store:
        assert numbers(store) == list(range(0, 10_000, 100))
        store.done(stored.ticket for stored in store.inherited)
    assert os.listdir(tmp_path / "s") == ["owner"]


def test_without_a_limit_dead_bytes_are_given_back_too(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", segment_bytes=8192) as store:
        kept = []
        for n in range(2_000):
            ticket = store.put(entry(n, size_bytes=1000))
            if n % 50:
                store.done([ticket])
            else:
                kept.append(ticket)
            store.settle()
        reserve = os.path.getsize(tmp_path / "s" / "reserve")
        assert store.used_bytes - reserve <= 2 * store.live_bytes + 5 * 8192
        for n, ticket in enumerate(kept):  # tickets stay valid although their entries were moved
            assert whole(store.read(ticket)) == whole(entry(n * 50, size_bytes=1000))


def test_only_the_owner_of_the_files_can_read_them(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s") as store:
        store.done([store.put(entry(1))])
        store.put(entry(2))
        store.settle()
        modes = {name: stat.S_IMODE(os.stat(tmp_path / "s" / name).st_mode) for name in os.listdir(tmp_path / "s")}
        assert modes == dict.fromkeys(("owner", "reserve", "000001.log", "000001.done"), 0o600)
        assert stat.S_IMODE(os.stat(tmp_path / "s").st_mode) == 0o700


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "1.log").write_text("mine too")
    with Store.open(tmp_path) as store:
        store.done([store.put(entry(1))])
    assert sorted(os.listdir(tmp_path)) == ["1.log", "notes.txt", "owner"]


def test_a_closed_store_raises(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    store.close()
    store.close()
    with pytest.raises(SpoolFailed, match="was closed"):
        store.put(entry(1))


def test_wrong_arguments_are_refused_at_the_call(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_bytes > 0"):
        Store.open(tmp_path, max_bytes=0)
    with pytest.raises(ConfigError, match="segment_bytes >= 4096"):
        Store.open(tmp_path, segment_bytes=1)
    good = entry(1)
    with Store.open(tmp_path) as store:
        with pytest.raises(InputError, match="has 61 bytes, its header says 101"):
            store.put(type(good)("t", 0, good.header, b"", -1, 0.0))
        with pytest.raises(InputError, match="1 to 32,767 bytes"):
            store.put(type(good)("t" * 40_000, 0, good.header, good.records, -1, 0.0))
        with pytest.raises(InputError, match="cannot be stored"):
            store.put(type(good)("t", 1 << 40, good.header, good.records, -1, 0.0))
        with pytest.raises(CorruptBatch, match="magic"):
            store.put(type(good)("t", 0, good.header._replace(magic=3), good.records, -1, 0.0))
        assert store.count == 0
        store.put(good)
    with Store.open(tmp_path) as store:
        assert numbers(store) == [1]


def test_export_brings_every_batch_also_of_a_spool_in_use(tmp_path: Path) -> None:
    with Store.open(tmp_path, segment_bytes=4096) as store:
        tickets = [store.put(entry(n)) for n in range(50)]
        store.done(tickets[:10])
        store.settle()
        exported = [(stored.header.base_sequence, whole(batch)) for stored, batch in export(tmp_path)]
    assert exported == [(n, whole(entry(n))) for n in range(10, 50)]


def test_inspecting_changes_nothing(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.put(entry(1))
    (tmp_path / "000001.log").write_bytes((tmp_path / "000001.log").read_bytes()[:-1])
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    stored, damage, owner = inspect(tmp_path)
    assert (stored, owner) == ([], None)
    assert [d.reason for d in damage] == ["cut short"]
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before


@pytest.mark.parametrize("kind", ["nothing", "a file"])
def test_what_is_no_spool_cannot_be_inspected(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    if kind == "a file":
        path.write_text("")
    with pytest.raises(SpoolFailed, match="does not exist" if kind == "nothing" else "is not a directory"):
        inspect(path)


def test_a_relative_path_is_that_of_the_directory_in_which_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with Store.open("s", segment_bytes=4096) as store:
        monkeypatch.chdir(tmp_path / "elsewhere")
        for n in range(10):
            store.put(entry(n, size_bytes=1000))
    monkeypatch.chdir(tmp_path)
    batches = export("s")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert [stored.header.base_sequence for stored, _ in batches] == list(range(10))
    assert os.listdir(tmp_path / "elsewhere") == []
