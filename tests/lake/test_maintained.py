"""What others do to an archive: OPTIMIZE and VACUUM of a Delta table, days deleted by hand, restored copies."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from tests.lake import stock

from ottla.errors import LakeDamaged
from ottla.jobs.replay_source import open_source
from ottla.lake import delta, layout, repair
from ottla.lake.lake import Lake
from ottla.lake.layout import Format
from ottla.lake.verifying import Checked, verify_files
from ottla.model import OffsetRange, TopicPartition

CLICKS = TopicPartition("clicks", 0)


def span(start: int, stop: int) -> OffsetRange:
    return OffsetRange("clicks", 0, start, stop)


@pytest.fixture(params=list(Format), ids=lambda form: form.value)
def lake(tmp_path: Path, request: pytest.FixtureRequest) -> Lake:
    return _filled(stock.create(tmp_path, format=request.param))


@pytest.fixture
def table(tmp_path: Path) -> Lake:
    return _filled(stock.create(tmp_path, format=Format.DELTA))


def _filled(lake: Lake) -> Lake:
    for number in range(4):
        stock.archive(lake, span(number * 10, number * 10 + 10))
    return lake


def findings(lake: Lake, *, deep: bool = True, wrong: bool = True) -> list[str]:
    return [str(finding) for finding in verify_files(lake, Checked(), deep=deep) if finding.is_wrong is wrong]


def rows(lake: Lake) -> list[int]:
    """Return the offsets that readers of the format see."""
    if lake.settings.format is Format.DELTA:
        table = pa.table(deltalake.DeltaTable(lake.path).to_pyarrow_table(columns=["offset"]))
    else:
        table = pa.concat_tables(pa.parquet.read_table(path, columns=["offset"]) for path in _data(lake.path))
    return sorted(table["offset"].to_pylist())


def _data(root: Path) -> list[Path]:
    return [path for path in root.rglob("*.parquet") if "_ottla" not in path.parts]


def maintain(lake: Lake) -> None:
    delta = deltalake.DeltaTable(lake.path)
    delta.optimize.compact()
    delta.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


def test_an_archive_goes_on_after_optimize_and_vacuum_and_verifies(table: Lake) -> None:
    maintain(table)
    assert not any((table.path / file.path).exists() for file in table.files())
    for number in (40, 50):
        stock.archive(Lake.open(table.path), span(number, number + 10))
        assert rows(table) == list(range(number + 10))
    assert findings(table) == []
    assert findings(table, deep=False) == []
    assert "4 ranges are in files that another tool has rewritten" in findings(table, deep=False, wrong=False)[0]
    maintain(table)
    maintain(table)
    assert findings(table) == []


def test_ranges_that_were_rewritten_in_part_are_put_together(tmp_path: Path) -> None:
    lake = stock.create(tmp_path, format=Format.DELTA, partition_by=("date", "hour"))
    for number in range(3):  # an hour and a half: each range is in two folders
        done = stock.stage(
            lake, span(number * 10, number * 10 + 10), times=lambda offsets: stock.NOON + (offsets % 10) * 600_000_000
        )
        lake.append([done], by=stock.BY)
    deltalake.DeltaTable(lake.path).optimize.compact(partition_filters=[("hour", "=", "12")])
    assert findings(lake) == []
    maintain(lake)
    assert findings(lake) == []


def test_records_that_were_deleted_from_the_table_or_changed_there_are_reported(table: Lake) -> None:
    delta = deltalake.DeltaTable(table.path)
    delta.delete("offset = 17")
    assert findings(table) == ["clicks-0[10, 20): 1 of its 10 records were deleted since"]
    delta.update(updates={"value": "key"}, predicate="offset = 7")
    assert [text for text in findings(table) if text.startswith("clicks-0[0, 10): the Delta table has 10:")]
    extra = stock.records(span(100, 101)).select([0, 1, 3, 4, 5, 6, 7, 2])
    more = pa.Table.from_batches([extra]).append_column("date", pa.array([None], pa.date32()))
    deltalake.write_deltalake(table.path, more, mode="append")
    assert any("has 1 records that no entry of the ledger has" in text for text in findings(table))
    with pytest.raises(LakeDamaged, match="deleted or rewritten"):
        open_source(str(table.path))


def test_a_path_of_the_delta_log_that_leads_elsewhere_is_not_read(table: Lake, tmp_path: Path) -> None:
    maintain(table)
    live = next(iter(delta.live_files(table.path)))
    (table.path / live).rename(tmp_path / "elsewhere.parquet")
    (table.path / live).symlink_to(tmp_path / "elsewhere.parquet")
    assert any("leads out of it through a link" in text for text in findings(table))


def test_an_old_day_that_was_deleted_by_hand_stops_nothing_and_is_reported(tmp_path: Path) -> None:
    lake = _filled(stock.create(tmp_path))
    shutil.rmtree(lake.path / "topic=clicks")
    again = Lake.open(lake.path)
    assert again.recover() is not None
    stock.archive(again, span(40, 50))
    assert rows(lake) == list(range(40, 50))
    assert ["has been deleted or moved since" in text for text in findings(lake)] == [True] * 4


def _backup(lake: Lake, tmp_path: Path, *names: str) -> None:
    for name in names:
        shutil.copytree(lake.path / name, tmp_path / "backup" / name)


def _restore(lake: Lake, tmp_path: Path, *names: str) -> None:
    for name in names:
        shutil.rmtree(lake.path / name)
        shutil.copytree(tmp_path / "backup" / name, lake.path / name)


@pytest.mark.parametrize("restored", ["the entry alone", "_ottla"])
def test_a_ledger_that_lost_its_newest_entry_is_noticed_before_anything_is_written(
    lake: Lake, tmp_path: Path, restored: str
) -> None:
    _backup(lake, tmp_path, layout.OWN)
    for number in (40, 50):
        stock.archive(lake, span(number, number + 10))
    if restored == layout.OWN:
        _restore(lake, tmp_path, layout.OWN)
    else:
        os.unlink(lake.ledger.path / lake.ledger.name(6))
    last = 50 if restored == "the entry alone" else 40
    again = Lake.open(lake.path)
    with pytest.raises(LakeDamaged, match=r"lost its newest|is missing") as refused:
        stock.archive(again, span(last, 60))
    assert "lake.repair" in str(refused.value)
    assert rows(lake) == list(range(60)), "nothing was written, nothing is gone"
    damage = repair.look(again)
    assert damage.last == last // 10
    assert len(damage.files) == (60 - last) // 10
    folder = repair.set_aside(again, damage)
    assert len([path for path in folder.rglob("*") if path.is_file()]) == len(damage.files)
    repaired = Lake.open(lake.path)
    assert repair.look(repaired).is_none
    assert rows(repaired) == list(range(last))
    assert findings(repaired) == []
    stock.archive(repaired, span(last, 70))
    assert rows(repaired) == list(range(70))
    assert findings(repaired) == []


def test_an_archiver_at_work_notices_that_the_ledger_went_back(lake: Lake) -> None:
    os.unlink(lake.ledger.path / lake.ledger.name(4))
    with pytest.raises(LakeDamaged, match=r"0004\.json was published and is missing"):
        stock.archive(lake, span(30, 50))


def test_a_delta_log_that_went_back_gets_the_entries_again(table: Lake, tmp_path: Path) -> None:
    _backup(table, tmp_path, layout.DELTA_LOG)
    stock.archive(table, span(40, 50))
    stock.archive(table, span(50, 60))
    _restore(table, tmp_path, layout.DELTA_LOG)
    assert len(findings(table)) == 2
    stock.archive(Lake.open(table.path), span(60, 70))
    assert rows(table) == list(range(70))
    assert findings(table) == []


def test_a_delta_log_that_is_gone_is_written_again(table: Lake) -> None:
    shutil.rmtree(table.path / layout.DELTA_LOG)
    Lake.open(table.path).recover()
    assert rows(table) == list(range(40))
    assert findings(table) == []


def test_a_whole_archive_that_was_restored_goes_on(lake: Lake, tmp_path: Path) -> None:
    shutil.copytree(lake.path, tmp_path / "copy")
    stock.archive(lake, span(40, 50))
    shutil.rmtree(lake.path)
    shutil.copytree(tmp_path / "copy", lake.path)
    stock.archive(Lake.open(lake.path), span(40, 60))
    assert rows(lake) == list(range(60))
    assert findings(lake) == []
