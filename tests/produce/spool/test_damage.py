"""Damaged files lose only the batches that were hit, and name them; no batch is ever read back wrong."""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import crc32c
import pytest

from ottla.errors import CorruptBatch, SpoolFailed
from ottla.produce.spool import Damage, Store, Ticket, export, inspect
from ottla.produce.spool.layout import SEGMENT_HEADER_BYTES, SMALLEST_FRAME_HEADER, VERSION
from ottla.wire.batch import HEADER_BYTES

from .batches import entry, numbers, whole

FILES = 2_000
HEAD = SMALLEST_FRAME_HEADER + len("clicks")


@pytest.fixture
def spool(tmp_path: Path) -> tuple[Path, list[Ticket]]:
    """Nine batches in three segments, closed properly."""
    with Store.open(tmp_path / "s", segment_bytes=4096) as store:
        tickets = [store.put(entry(n, size_bytes=1000)) for n in range(9)]
    assert [t.segment for t in tickets] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    return tmp_path / "s", tickets


def change(path: Path, position: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(data)


def flip(path: Path, position: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))


def reopened(path: Path) -> tuple[list[int], list[Damage]]:
    """What the next owner finds, each batch verified; and that it can continue."""
    with Store.open(path) as store:
        entries = numbers(store)
        ticket = store.put(entry(99))
        assert whole(store.read(ticket)) == whole(entry(99))
        store.done([ticket])
        return entries, store.damage


def test_a_flip_in_the_records_loses_that_batch_and_names_it(spool: tuple[Path, list[Ticket]]) -> None:
    path, tickets = spool
    flip(path / "000002.log", tickets[4].position + HEAD + HEADER_BYTES + 500)
    entries, damage = reopened(path)
    assert entries == [0, 1, 2, 3, 5, 6, 7, 8]
    (lost,) = damage
    assert (lost.path, lost.position, lost.size_bytes) == (
        str(path / "000002.log"),
        tickets[4].position,
        tickets[4].size_bytes,
    )
    assert (lost.topic, lost.partition, lost.entries) == ("clicks", 1, 1)
    assert lost.header == entry(4, size_bytes=1000).header
    assert "1 batch is lost of clicks-1, 1 records from sequence 4 of producer 4711" in str(lost)


@pytest.mark.parametrize("offset", [0, 7, 15, 16, 17, 20, 21, 45, 60])
def test_a_flip_in_any_part_of_a_batchs_header_is_caught(spool: tuple[Path, list[Ticket]], offset: int) -> None:
    path, tickets = spool
    flip(path / "000001.log", tickets[1].position + HEAD + offset)
    entries, damage = reopened(path)
    assert entries == [0, 2, 3, 4, 5, 6, 7, 8]
    assert [(d.topic, d.partition, d.entries) for d in damage] == [("clicks", 1, 1)]


@pytest.mark.parametrize("offset", range(0, HEAD, 5))
def test_a_flip_in_a_frames_header_loses_one_batch_and_counts_it(spool: tuple[Path, list[Ticket]], offset: int) -> None:
    path, tickets = spool
    flip(path / "000003.log", tickets[7].position + offset)
    entries, damage = reopened(path)
    assert entries == [0, 1, 2, 3, 4, 5, 6, 8]
    assert [(d.position, d.size_bytes, d.entries) for d in damage] == [(tickets[7].position, tickets[7].size_bytes, 1)]


def test_a_damaged_place_over_several_batches_counts_them(spool: tuple[Path, list[Ticket]]) -> None:
    path, tickets = spool
    change(path / "000001.log", tickets[0].position + 10, bytes(tickets[2].position + 5 - tickets[0].position))
    entries, damage = reopened(path)
    assert entries == [3, 4, 5, 6, 7, 8]
    assert sum(d.entries or 0 for d in damage) == 3


def test_a_damaged_place_whose_batches_were_acknowledged_is_no_loss(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        tickets = [store.put(entry(n)) for n in range(5)]
        store.done(tickets[1:3])
    change(tmp_path / "000001.log", tickets[1].position + 10, bytes(tickets[2].size_bytes))
    assert reopened(tmp_path) == ([0, 3, 4], [])


@pytest.mark.parametrize("keep", [0, 1, 20, SEGMENT_HEADER_BYTES - 1, SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES + 100])
@pytest.mark.parametrize("segment", [1, 2, 3])
def test_a_segment_cut_short_loses_its_end_and_counts_it(
    spool: tuple[Path, list[Ticket]], keep: int, segment: int
) -> None:
    path, _ = spool
    os.truncate(path / f"{segment:06d}.log", keep)
    entries, damage = reopened(path)
    assert entries == [n for n in range(9) if n // 3 != segment - 1]
    if keep >= SEGMENT_HEADER_BYTES:
        assert {d.reason for d in damage} == {"cut short"}
        assert sum(d.entries or 0 for d in damage) == 3


def test_a_segment_cut_exactly_after_a_batch_is_noticed(spool: tuple[Path, list[Ticket]]) -> None:
    path, tickets = spool
    os.truncate(path / "000002.log", tickets[5].position)
    os.truncate(path / "000003.log", tickets[7].position)
    entries, damage = reopened(path)
    assert entries == [0, 1, 2, 3, 4, 6]
    assert [(Path(d.path).name, d.reason, d.entries) for d in damage] == [
        ("000002.log", "cut short", 1),
        ("000003.log", "cut short", 2),
    ]


def test_a_zero_filled_end_is_cut_short(spool: tuple[Path, list[Ticket]]) -> None:
    path, tickets = spool
    change(path / "000003.log", tickets[8].position, bytes(10_000))
    entries, damage = reopened(path)
    assert entries == [0, 1, 2, 3, 4, 5, 6, 7]
    assert [(d.reason, d.entries) for d in damage] == [("cut short", 1)]


def test_the_torn_end_of_the_last_segment_is_reported_once(spool: tuple[Path, list[Ticket]]) -> None:
    path, tickets = spool
    os.truncate(path / "000003.log", tickets[8].position + 300)
    os.unlink(path / "owner")  # which records that there was more: a kill during a write leaves no such record
    entries, damage = reopened(path)
    assert entries == [0, 1, 2, 3, 4, 5, 6, 7]
    assert [(d.reason, d.topic, d.partition, d.entries) for d in damage] == [("cut short", "clicks", 2, 1)]
    assert damage[0].header == entry(8, size_bytes=1000).header
    assert reopened(path) == (entries, [])


def test_a_missing_segment_does_not_keep_the_others_from_being_read(spool: tuple[Path, list[Ticket]]) -> None:
    path, _ = spool
    os.unlink(path / "000002.log")
    assert reopened(path)[0] == [0, 1, 2, 6, 7, 8]


@pytest.mark.parametrize("offset", [0, 9, 12, 25, 40, SEGMENT_HEADER_BYTES - 1])
def test_the_batches_of_a_segment_with_a_damaged_header_are_saved(
    spool: tuple[Path, list[Ticket]], offset: int
) -> None:
    path, _ = spool
    flip(path / "000002.log", offset)
    assert reopened(path) == (list(range(9)), [])


def test_damaged_headers_everywhere_and_no_owner_file_still_lose_nothing(spool: tuple[Path, list[Ticket]]) -> None:
    path, _ = spool
    for number in (1, 2, 3):
        change(path / f"{number:06d}.log", 0, os.urandom(SEGMENT_HEADER_BYTES))
    os.unlink(path / "owner")
    assert reopened(path) == (list(range(9)), [])


@pytest.mark.parametrize("damaged", [b"", b"\0" * 512, b"{", os.urandom(512)])
def test_a_damaged_owner_file_is_no_obstacle(spool: tuple[Path, list[Ticket]], damaged: bytes) -> None:
    path, _ = spool
    (path / "owner").write_bytes(damaged)
    assert reopened(path) == (list(range(9)), [])


@pytest.mark.parametrize("damaged", [None, b"", b"\0" * 48, b"x" * 47, os.urandom(480)])
def test_lost_acknowledgements_lose_no_batch(tmp_path: Path, damaged: bytes | None) -> None:
    with Store.open(tmp_path) as store:
        tickets = [store.put(entry(n)) for n in range(6)]
        store.done(tickets[:3])
    marks = tmp_path / "000001.done"
    if damaged is None:
        marks.unlink()
    else:
        marks.write_bytes(damaged)
    with Store.open(tmp_path) as store:
        assert numbers(store) == [0, 1, 2, 3, 4, 5]
        store.done([store.inherited[0].ticket, store.inherited[5].ticket])
    with Store.open(tmp_path) as store:  # and new ones are found, whatever is before them
        assert numbers(store) == [1, 2, 3, 4]


def test_acknowledgements_of_another_segment_acknowledge_nothing(spool: tuple[Path, list[Ticket]]) -> None:
    path, _ = spool
    with Store.open(path) as store:
        store.done(stored.ticket for stored in store.inherited[:2])
    shutil.copy(path / "000001.done", path / "000002.done")
    assert reopened(path) == ([2, 3, 4, 5, 6, 7, 8], [])


def test_records_that_contain_a_spool_are_never_taken_for_entries(tmp_path: Path) -> None:
    with Store.open(tmp_path / "inner") as store:
        for n in range(5):
            store.put(entry(n))
    inner = (tmp_path / "inner" / "000001.log").read_bytes()
    carrier = entry(7, records=inner)
    with Store.open(tmp_path / "inner") as store:  # the same spool, so that only the position differs
        ticket = store.put(carrier)
    with Store.open(tmp_path / "inner") as store:
        assert whole(store.read(store.inherited[5].ticket)) == whole(carrier)
    flip(tmp_path / "inner" / "000002.log", ticket.position)
    assert reopened(tmp_path / "inner")[0] == [0, 1, 2, 3, 4]


def test_a_read_notices_what_changed_on_disk_since_the_start(spool: tuple[Path, list[Ticket]]) -> None:
    path, tickets = spool
    with Store.open(path) as store:
        flip(path / "000001.log", tickets[0].position + 400)
        with pytest.raises(CorruptBatch, match="clicks-0"):
            store.read(store.inherited[0].ticket)
        flip(path / "000001.log", tickets[1].position + 4)
        with pytest.raises(CorruptBatch, match="entry 2 of the spool is damaged"):
            store.read(store.inherited[1].ticket)
        os.truncate(path / "000003.log", tickets[8].position + 200)
        with pytest.raises(CorruptBatch):
            store.read(store.inherited[8].ticket)
        os.unlink(path / "000002.log")
        with pytest.raises(SpoolFailed, match=r"000002\.log: cannot be read"):
            store.read(store.inherited[4].ticket)
        assert whole(store.read(store.inherited[2].ticket)) == whole(entry(2, size_bytes=1000))


def test_a_damaged_segment_is_kept_aside_when_the_rest_of_it_is_delivered(spool: tuple[Path, list[Ticket]]) -> None:
    path, tickets = spool
    flip(path / "000001.log", tickets[1].position + 600)
    damaged = (path / "000001.log").read_bytes()
    with Store.open(path) as store:
        store.done(stored.ticket for stored in store.inherited)
    assert sorted(os.listdir(path)) == ["000001.damaged", "owner"]
    assert (path / "000001.damaged").read_bytes() == damaged
    assert reopened(path) == ([], [])


def test_a_newer_format_is_refused_and_left_as_it_is(spool: tuple[Path, list[Ticket]]) -> None:
    path, _ = spool

    data = bytearray((path / "000002.log").read_bytes())
    data[8:10] = (VERSION + 1).to_bytes(2, "big")
    data[12:16] = crc32c.crc32c(bytes(data[:12])).to_bytes(4, "big")
    (path / "000002.log").write_bytes(data)
    before = {name: (path / name).read_bytes() for name in os.listdir(path)}
    with pytest.raises(SpoolFailed, match="written by a newer Ottla: its format is 2, this one reads up to 1"):
        Store.open(path)
    with pytest.raises(SpoolFailed, match="newer"):
        inspect(path)
    assert {name: (path / name).read_bytes() for name in os.listdir(path)} == before


def test_segments_of_two_spools_in_one_directory_are_refused(spool: tuple[Path, list[Ticket]], tmp_path: Path) -> None:
    path, _ = spool
    with Store.open(tmp_path / "other") as store:
        store.put(entry(5))
    shutil.copy(tmp_path / "other" / "000001.log", path / "000009.log")
    with pytest.raises(SpoolFailed, match=r"000001\.log and 000009\.log belong to different spools"):
        Store.open(path)


@dataclass(frozen=True)
class Original:
    """A spool before it is damaged: the files, and the live entries with their position and bytes."""

    files: dict[str, bytes]
    live: dict[int, tuple[str, int, int, bytes]]
    done: dict[int, bytes]


def make_original(path: Path, chance: random.Random) -> Original:
    """Batches of several sizes over several segments, some acknowledged, some superseded; closed properly."""
    live: dict[int, bytes] = {}
    done: dict[int, bytes] = {}
    with Store.open(path, segment_bytes=4096) as store:
        tickets: list[Ticket] = []
        for n in range(chance.randint(5, 40)):
            new = entry(n, size_bytes=chance.choice((10, 50, 200, 900)))
            tickets.append(store.put(new))
            live[tickets[-1].id] = whole(new)
        for ticket in chance.sample(tickets, len(tickets) // chance.randint(2, 6)):
            store.done([ticket])
            done[ticket.id] = live.pop(ticket.id)
    places = {s.ticket.id: (f"{s.ticket.segment:06d}.log", s.ticket) for s in inspect(path)[0]}
    assert places.keys() == live.keys()
    return Original(
        {name: (path / name).read_bytes() for name in os.listdir(path)},
        {i: (places[i][0], places[i][1].position, places[i][1].size_bytes, data) for i, data in live.items()},
        done,
    )


def damaged(data: bytes, chance: random.Random) -> tuple[bytes, int, int]:
    """The file after one fault, and the bytes `[start, stop)` that have changed."""
    offset = chance.randrange(len(data))
    kind = chance.choice(("flip", "flip", "flip", "cut", "cut", "zeros", "noise", "zero end"))
    if kind == "cut":
        return data[:offset], offset, len(data)
    if kind == "flip":
        return (
            data[:offset] + bytes([data[offset] ^ (1 << chance.randrange(8))]) + data[offset + 1 :],
            offset,
            offset + 1,
        )
    length = len(data) - offset if kind == "zero end" else min(chance.choice((2, 30, 512, 4096)), len(data) - offset)
    new = chance.randbytes(length) if kind == "noise" else bytes(length)
    changed = [i for i in range(length) if new[i] != data[offset + i]]
    start, stop = (offset + changed[0], offset + changed[-1] + 1) if changed else (offset, offset)
    return data[:offset] + new + data[offset + length :], start, stop


def test_random_faults_lose_only_what_they_hit_and_name_all_of_it(quick: Path) -> None:
    chance = random.Random(20240817)
    original = make_original(quick / "0", chance)
    hits = losses = 0
    for case in range(FILES):
        if case % 60 == 0:
            original = make_original(quick / f"original-{case}", chance)
        path = quick / "case"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        name = chance.choice([n for n, data in original.files.items() if data and n != "owner"])
        bad, start, stop = damaged(original.files[name], chance)
        for other, data in original.files.items():
            (path / other).write_bytes(bad if other == name else data)
        places = {i: (offset, offset + size) for i, (file, offset, size, _) in original.live.items() if file == name}
        hit = {i for i, (offset, end) in places.items() if max(offset, start) < min(end, stop)}
        hits += bool(hit)
        losses += len(hit)
        context = f"case {case}: {name} [{start}, {stop})"
        entries = {stored.ticket.id: whole(batch) for stored, batch in export(path)}
        damage = inspect(path)[1]
        extra = entries.keys() - original.live.keys()
        assert extra <= original.done.keys(), context
        assert name.endswith(".done") or not extra, context
        assert entries == {
            **{i: data for i, (_, _, _, data) in original.live.items() if i not in hit},
            **{i: original.done[i] for i in extra},
        }, context
        for i in hit:
            _, offset, size, _ = original.live[i]
            assert any(d.path == str(path / name) and offset + size > d.position for d in damage), (context, i, damage)
        # Only without the segment's header it is unknown whether a gap without a frame was acknowledged.
        if start >= SEGMENT_HEADER_BYTES or name.endswith(".done"):
            assert sum(d.entries or 0 for d in damage) == len(hit), (context, hit, damage)
        if case % 10 == 0:
            with Store.open(path) as store:
                assert {s.ticket.id: whole(store.read(s.ticket)) for s in store.inherited} == entries, context
                assert store.damage == damage, context
    assert hits > FILES / 4
    assert losses > hits
