"""A ledger can name only files of its own archive: nothing elsewhere is read, written or deleted."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.lake import stock

from ottla.errors import LakeDamaged
from ottla.jobs.replay_source import Selection, open_source, records
from ottla.lake import layout
from ottla.lake.lake import Lake
from ottla.lake.layout import LakeSettings
from ottla.lake.paths import attempt_of, data_path, located, staged_path, topic_name
from ottla.lake.verifying import Checked, verify_files
from ottla.model import OffsetRange

CLICKS = OffsetRange("clicks", 0, 0, 10)
OUTSIDE = ("../victim/x.parquet", "a/../../victim/x.parquet", "/etc/x.parquet", "a/./x.parquet", "a//x.parquet")


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "precious.parquet").write_bytes(b"precious")
    return folder


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return stock.create(tmp_path)


def untouched(victim: Path) -> bool:
    return [(file.name, file.read_bytes()) for file in victim.iterdir()] == [("precious.parquet", b"precious")]


def forge(lake: Lake, change: Callable[[dict[str, Any]], None]) -> None:
    """A forged entry, without a checksum, as in earlier versions."""
    done = stock.stage(lake, CLICKS)
    lake.append([done], by=stock.BY)
    file = lake.ledger.path / f"{1:020d}.json"
    row = msgspec.json.decode(file.read_bytes())
    row.pop("checksum", None)
    (lake.path / done.files[0].path).rename(lake.path / "payload")
    change(row)
    file.write_bytes(msgspec.json.encode(row))


@pytest.mark.parametrize("text", [*OUTSIDE, "_ottla/lake.parquet", "a/_ottla/x.parquet", "x\0.parquet", "c:/x.parquet"])
def test_a_path_of_a_file_that_is_not_inside_is_refused_when_it_is_read(lake: Lake, victim: Path, text: str) -> None:
    forge(lake, lambda row: row["files"][0].update(path=text))
    again = Lake.open(lake.path)
    for use in (again.recover, again.files, again.positions, lambda: open_source(str(lake.path))):
        with pytest.raises(LakeDamaged, match="is no path"):
            use()
    assert untouched(victim)


@pytest.mark.parametrize(
    "text",
    [
        "_ottla/staging/../ledger/x.parquet.staged",
        "_ottla/staging/x.parquet.staged",
        "_ottla/ledger/a/x.parquet.staged",
        "../victim/a/x.parquet.staged",
        "/_ottla/staging/a/x.parquet.staged",
    ],
)
def test_a_staged_path_elsewhere_empties_no_folder(lake: Lake, text: str) -> None:
    forge(lake, lambda row: row["files"][0].update(staged=text))
    with pytest.raises(LakeDamaged, match="is no path"):
        Lake.open(lake.path).recover()
    assert len(os.listdir(lake.ledger.path)) == 1


@pytest.mark.parametrize(
    ("where", "value"),
    [("topic", "../../x"), ("topic", ""), ("partition", -1), ("rows", "7"), ("path", 5), ("first_time", [])],
)
def test_what_is_no_entry_is_refused_with_its_file(lake: Lake, where: str, value: object) -> None:
    forge(lake, lambda row: row["files"][0].update({where: value}))
    with pytest.raises(LakeDamaged, match=r"0001\.json cannot be read"):
        Lake.open(lake.path).ledger.last()


def test_a_folder_that_is_a_link_to_elsewhere_gets_no_file(lake: Lake, victim: Path) -> None:
    (lake.path / "topic=clicks").symlink_to(victim, target_is_directory=True)
    with pytest.raises(LakeDamaged, match=r"topic=clicks.* leads out of it through a link"):
        stock.archive(lake, CLICKS)
    assert untouched(victim)


def test_a_file_that_is_a_link_to_elsewhere_is_neither_verified_nor_replayed(lake: Lake, victim: Path) -> None:
    stock.archive(lake, CLICKS)
    file = lake.path / lake.files()[0].path
    other = victim / "precious.parquet"
    other.write_bytes(file.read_bytes())
    source = open_source(str(lake.path))
    file.unlink()
    file.symlink_to(other)
    findings = [str(finding) for finding in verify_files(lake, Checked(), deep=True)]
    assert "leads out of it through a link" in findings[0]
    with pytest.raises(LakeDamaged, match="leads out"):
        list(records(source.partitions[0], start=0, selection=Selection()))
    with pytest.raises(LakeDamaged, match="leads out"):
        open_source(str(lake.path))


def test_a_plain_folder_with_a_link_to_elsewhere_is_not_replayed(tmp_path: Path, victim: Path) -> None:
    pq.write_table(pa.Table.from_batches([stock.records(CLICKS)]), victim / "other.parquet")
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "a.parquet").symlink_to(victim / "other.parquet")
    with pytest.raises(LakeDamaged, match="leads out"):
        open_source(str(folder))


@pytest.mark.parametrize("name", [layout.STAGING, layout.LEDGER, layout.REPLAYS, layout.DELTA_LOG, layout.OWN])
def test_a_folder_of_ours_that_is_a_link_to_elsewhere_is_refused(lake: Lake, victim: Path, name: str) -> None:
    folder = lake.path / name
    if folder.exists():
        folder.rename(lake.path / "aside")
        for inside in (lake.path / "aside").iterdir():
            inside.rename(victim / inside.name)
    folder.symlink_to(victim, target_is_directory=True)
    before = sorted(os.listdir(victim))
    with pytest.raises(LakeDamaged, match="leads out"):
        Lake.open(lake.path)
    assert sorted(os.listdir(victim)) == before


def test_a_new_archive_is_not_created_through_a_link(tmp_path: Path, victim: Path) -> None:
    root = tmp_path / "new"
    root.mkdir()
    (root / "_ottla").symlink_to(victim, target_is_directory=True)
    with pytest.raises(LakeDamaged, match="leads out"):
        Lake.create(root, LakeSettings())
    assert untouched(victim)


def test_a_link_in_the_staging_folder_is_neither_followed_nor_swept(lake: Lake, victim: Path) -> None:
    (lake.path / layout.STAGING / "run-link").symlink_to(victim, target_is_directory=True)
    os.utime(victim / "precious.parquet", (1.0, 1.0))
    assert lake.sweep(0.0) == 0
    assert lake.staged() == []
    assert untouched(victim)


def test_an_archive_behind_a_link_is_an_archive(tmp_path: Path, lake: Lake) -> None:
    (tmp_path / "link").symlink_to(lake.path, target_is_directory=True)
    behind = Lake.open(tmp_path / "link")
    stock.archive(behind, CLICKS)
    assert list(verify_files(behind, Checked(), deep=True)) == []


@given(st.text() | st.lists(st.sampled_from(["..", ".", "", "a", "_ottla", "staging", "x.parquet"])).map("/".join))
def test_no_text_leads_out(text: str) -> None:
    root = Path("/data/archive")
    for check in (data_path, staged_path, topic_name, attempt_of):
        try:
            check(text)
        except ValueError:
            continue
        assert os.path.normpath(root / text).startswith("/data/archive/")
    try:
        assert os.path.normpath(located(root, text)).startswith("/data/archive/")
    except LakeDamaged:
        pass
