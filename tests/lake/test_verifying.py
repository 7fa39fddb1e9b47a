"""`verify` finds what is wrong and names it; `status` summarizes the archive."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.lake import stock

from ottla.lake.lake import Lake
from ottla.lake.layout import Format
from ottla.lake.status import summarize
from ottla.lake.values import Entry, Gap, LakeFile
from ottla.lake.verifying import Checked, verify_files
from ottla.model import OffsetRange, TopicPartition


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = stock.create(tmp_path)
    stock.archive(lake, OffsetRange("clicks", 0, 0, 100), OffsetRange("clicks", 1, 7, 20))
    stock.archive(lake, OffsetRange("clicks", 0, 100, 150))
    return lake


def findings(lake: Lake, *, deep: bool = True) -> list[str]:
    return [str(finding) for finding in verify_files(lake, Checked(), deep=deep)]


def first(lake: Lake) -> Path:
    return lake.locate(lake.files()[0])


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(path, partitioning=None)), path)


def test_all_is_there(lake: Lake) -> None:
    checked = Checked()
    assert list(verify_files(lake, checked, deep=True)) == []
    assert (checked.entries, checked.ranges, checked.files, checked.records) == (2, 3, 3, 163)


def test_a_missing_file_is_named(lake: Lake) -> None:
    path = first(lake)
    path.unlink()
    gone = "is missing: it was published, and has been deleted or moved since"
    assert findings(lake) == [f"{path.relative_to(lake.path)}: {gone}"]


def test_a_damaged_file_is_named(lake: Lake) -> None:
    path = first(lake)
    path.write_bytes(path.read_bytes()[:-20])
    assert any(f"{path.relative_to(lake.path)}: cannot be read" in text for text in findings(lake))


def test_records_that_are_missing_show_in_the_footer(lake: Lake) -> None:
    rewrite(first(lake), lambda table: table.slice(0, 90))
    texts = findings(lake, deep=False)
    assert "the bytes of its footer are not those that were written" in texts[1]
    assert "has 90 records, the ledger says 100" in texts[2]
    assert "has offsets 0 to 89, the ledger 0 to 99" in texts[3]


def test_a_changed_value_shows_in_the_fingerprint(lake: Lake) -> None:
    def change(table: pa.Table) -> pa.Table:
        values = table["value"].to_pylist()
        values[17] = b"forged"
        return table.set_column(1, "value", pa.array(values, pa.binary()))

    rewrite(first(lake), change)
    assert any("bytes, the ledger says" in text for text in findings(lake, deep=False))
    (wrong,) = [text for text in findings(lake) if text.startswith("clicks-0[0, 100): ")]
    assert "have 100:" in wrong


def test_a_record_that_is_there_twice_in_place_of_another_shows(lake: Lake) -> None:
    def change(table: pa.Table) -> pa.Table:
        return pa.concat_tables([table.slice(0, 50), table.slice(49, 1), table.slice(51)])

    rewrite(first(lake), change)
    assert any("1 offsets are there twice" in text for text in findings(lake))


def test_a_foreign_file_is_named(lake: Lake) -> None:
    stray = first(lake).with_name("part-stray.parquet")
    pq.write_table(pa.table({"a": [1]}), stray)
    assert findings(lake, deep=False) == [
        f"{stray.relative_to(lake.path)}: is not in the ledger: another program put it there"
    ]


def test_a_delta_table_that_lost_a_file_is_reported(tmp_path: Path) -> None:
    lake = stock.create(tmp_path, format=Format.DELTA)
    stock.archive(lake, OffsetRange("clicks", 0, 0, 100))
    stock.archive(lake, OffsetRange("clicks", 0, 100, 110))
    os.unlink(lake.path / "_delta_log" / f"{2:020d}.json")
    path = lake.files()[1].path
    assert findings(lake) == [f"{path}: is in the ledger and not in the Delta table"]


def test_status_joins_neighbours_and_shows_gaps(lake: Lake) -> None:
    gap = Gap(OffsetRange("clicks", 0, 150, 200), "deleted")
    lake.append([stock.stage(lake, OffsetRange("clicks", 0, 200, 210))], by=stock.BY, gaps=[gap])
    status, other = summarize(lake.ledger.entries())
    assert status.ranges == [OffsetRange("clicks", 0, 0, 150), OffsetRange("clicks", 0, 200, 210)]
    assert (status.records, status.files, status.gaps, status.overlaps, status.next_offset) == (160, 3, [gap], [], 210)
    assert other.topic_partition == TopicPartition("clicks", 1)
    assert other.ranges == [OffsetRange("clicks", 1, 7, 20)]
    assert status.first_time == stock.NOON / 1e6


def test_ranges_that_were_recorded_twice_are_overlaps(lake: Lake) -> None:
    entries = list(lake.ledger.entries())
    status = summarize([*entries, entries[1]])[0]
    assert status.overlaps == [OffsetRange("clicks", 0, 100, 150)]
    holes = summarize([entries[0], entries[1], _moved(lake)])[0]
    assert [gap.reason for gap in holes.gaps] == ["not explained by the ledger"]


def _moved(lake: Lake) -> Entry:
    entry = lake.ledger.read(2)
    receipt = replace(entry.receipts[0], range=OffsetRange("clicks", 0, 300, 350))
    return replace(entry, receipts=(receipt,), files=())


@pytest.mark.parametrize("form", list(Format), ids=lambda form: form.value)
def test_an_archive_that_grows_meanwhile_verifies(tmp_path: Path, form: Format) -> None:
    lake = stock.create(tmp_path, format=form)
    stock.archive(lake, OffsetRange("clicks", 0, 0, 5))
    over = threading.Event()

    def archive() -> None:
        start = 5
        while not over.is_set():
            stock.archive(lake, OffsetRange("clicks", 0, start, start + 5))
            start += 5

    with ThreadPoolExecutor(1) as threads:
        grows = threads.submit(archive)
        try:
            entries = grown = 0
            while grown < 4:
                other = Lake.open(lake.path)
                checked = Checked()
                assert list(verify_files(other, checked, deep=True)) == []
                assert checked.entries >= entries
                grown += checked.entries > entries
                entries = checked.entries
        finally:
            over.set()
        grows.result()


def test_an_entry_that_is_being_published_verifies(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry is recorded, and its files move out of staging while they are verified."""
    monkeypatch.setattr(lake, "publish", lambda entry: None)
    lake.append([stock.stage(lake, OffsetRange("clicks", 0, 150, 160))], by=stock.BY)
    assert findings(lake) == []
    real = Lake.locate
    moved: list[Entry | None] = []

    def moving(self: Lake, file: LakeFile) -> Path:
        path = real(self, file)
        if not moved and "staging" in path.parts:
            moved.append(Lake.open(lake.path).recover())
        return path

    monkeypatch.setattr(Lake, "locate", moving)
    assert findings(lake) == []
    assert moved


def test_a_damaged_entry_does_not_hide_the_others(lake: Lake) -> None:
    entry = lake.ledger.path / lake.ledger.name(1)
    entry.write_bytes(entry.read_bytes().replace(b'"here"', b'"hero"'))
    (lake.path / lake.ledger.read(2).files[0].path).unlink()
    texts = findings(lake)
    assert "its checksum is wrong" in texts[0]
    assert "is missing" in texts[1]
