"""Files of a range: where records go, how large files become, and what stays on disk after an error."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.lake import stock

from ottla.errors import ConfigError, LakeError
from ottla.lake import layout, writer
from ottla.lake.verifying import Checked, verify_files
from ottla.lake.writer import FileOptions, RangeFiles
from ottla.model import OffsetRange

ONE = OffsetRange("clicks", 2, 0, 5000)


def test_a_file_that_is_large_enough_is_followed_by_another_one(tmp_path: Path) -> None:
    lake = stock.create(tmp_path)
    with RangeFiles(lake.path, lake.settings, ONE, options=stock.SMALL) as files:
        for start in range(0, 60_000, 1000):
            batch = stock.records(OffsetRange("clicks", 2, start, start + 1000))
            files.add(batch, writer.as_numbers(batch.column("timestamp")))
        made = files.close()
    assert len(made) > 2
    assert [file.path for file in made] == sorted({file.path for file in made})
    assert sum(file.rows for file in made) == 60_000
    assert all(size < 3 << 16 for size in (file.size_bytes for file in made))


def test_event_times_that_jump_about_keep_the_order_of_offsets_in_each_folder(tmp_path: Path) -> None:
    lake = stock.create(tmp_path, partition_by=("date", "hour"))
    hours = np.random.default_rng(5).integers(0, 100, 5000) * 3_600_000_000
    done = stock.stage(lake, ONE, times=lambda offsets: stock.NOON + hours[offsets])
    lake.append([done], by=stock.BY)
    assert len({layout.folder(file.values) for file in done.files}) == 100
    count = 0
    for file in done.files:
        offsets = pq.read_table(lake.path / file.path, partitioning=None)["offset"].to_numpy()
        assert (np.diff(offsets) > 0).all()
        assert (file.first_offset, file.last_offset) == (offsets[0], offsets[-1])
        count += len(offsets)
    assert count == 5000


@pytest.mark.parametrize("moment", [-1, -1000, 253_402_300_800_000_000, (1 << 62)])
def test_times_that_are_no_date_are_counted_and_kept(tmp_path: Path, moment: int) -> None:
    lake = stock.create(tmp_path)
    done = stock.stage(lake, ONE, times=lambda offsets: np.full(len(offsets), moment))
    assert done.untimed == 5000
    assert [file.values["date"] for file in done.files] == ["1970-01-01"]


def test_a_topic_with_the_longest_name_has_files_with_names(tmp_path: Path) -> None:
    names = set()
    for last in "xy":
        lake = stock.create(tmp_path / last, partition_by=())
        done = stock.stage(lake, OffsetRange("t" * 248 + last, 0, 0, 5))
        lake.append([done], by=stock.BY)
        names.add(done.files[0].path)
        folders = stock.create(tmp_path / last / "folders")
        folders.append([stock.stage(folders, OffsetRange("t" * 248 + last, 0, 0, 5))], by=stock.BY)
    assert len(names) == 2, "two topics, two names"


def test_an_error_leaves_nothing_behind(tmp_path: Path) -> None:
    lake = stock.create(tmp_path)
    batch = stock.records(ONE)

    def fail() -> None:
        with RangeFiles(lake.path, lake.settings, ONE, options=stock.SMALL) as files:
            files.add(batch, writer.as_numbers(batch.column("timestamp")))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert lake.staged() == []


def test_a_full_disk_is_reported_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = stock.create(tmp_path)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(writer, "sync", lambda path: (_ for _ in ()).throw(full))
    with pytest.raises(LakeError, match="No space left"):
        stock.stage(lake, ONE)
    assert lake.staged() == []


def test_sizes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="file_bytes"):
        FileOptions(file_bytes=10)


def test_garbage_in_times_makes_no_more_folders_than_allowed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lake = stock.create(tmp_path)
    days = np.random.default_rng(7).permutation(5000)
    days[::2] = 3  # half of the records are of one day

    few = replace(stock.SMALL, max_folders=40)
    done = stock.stage(lake, ONE, times=lambda offsets: days[offsets] * 86_400_000_000, options=few)
    lake.append([done], by=stock.BY)
    assert len({layout.folder(file.values) for file in done.files}) <= 41
    assert len(done.files) <= 50
    assert 2450 <= done.untimed <= 2461
    assert "more than 40 folders" in caplog.text
    assert sum(file.rows for file in lake.files()) == 5000
    assert list(verify_files(lake, Checked(), deep=True)) == []


def test_folders_are_counted_over_all_of_a_range(tmp_path: Path) -> None:
    lake = stock.create(tmp_path)
    with RangeFiles(lake.path, lake.settings, ONE, options=replace(stock.SMALL, max_folders=4)) as files:
        for start in range(0, 100, 10):
            batch = stock.records(OffsetRange("clicks", 2, start, start + 10))
            files.add(batch, np.arange(start, start + 10) * 86_400_000_000)
        made = files.close()
    assert len(made) == 5
    assert files.untimed == 96


def test_many_folders_are_few_files_and_little_memory(tmp_path: Path) -> None:
    lake = stock.create(tmp_path)
    with RangeFiles(lake.path, lake.settings, ONE, options=stock.SMALL) as files:
        for start in range(0, 40_000, 2000):
            batch = stock.records(OffsetRange("clicks", 2, start, start + 2000))
            files.add(batch, np.arange(2000) % 200 * 86_400_000_000)
            assert sum(file.waiting_bytes for file in files._open.values()) <= 2 << 16
            assert sum(file.is_begun for file in files._open.values()) <= 64
        made = files.close()
    assert sum(file.rows for file in made) == 40_000
    assert len(made) < 20 * 200 / 3
