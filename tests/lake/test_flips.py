"""Every byte of an archive matters: `verify --deep` finds every changed byte, and no damage crashes the process."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from tests.lake import stock

from ottla.errors import LakeError
from ottla.jobs.replay_source import Selection, open_source, records
from ottla.lake import layout, verifying
from ottla.lake.inspector import Inspector, Unreadable
from ottla.lake.lake import Lake
from ottla.lake.layout import Format
from ottla.lake.verifying import Checked, verify_files
from ottla.model import OffsetRange


def span(start: int, stop: int) -> OffsetRange:
    return OffsetRange("clicks", 0, start, stop)


def small(path: Path, **settings: object) -> Lake:
    lake = stock.create(path, **settings)
    stock.archive(lake, span(0, 6))
    stock.archive(lake, span(6, 9))
    return lake


def wrong(lake: Path) -> list[str]:
    try:
        return [str(finding) for finding in verify_files(Lake.open(lake), Checked(), deep=True) if finding.is_wrong]
    except LakeError as error:
        return [str(error)]


def flips(path: Path, bits: int, *, step: int = 1) -> Iterator[tuple[int, int]]:
    """Change bytes of the file, one at a time, and a few random bits of each."""
    content = path.read_bytes()
    dice = random.Random(path.name)
    for place in range(dice.randrange(step), len(content), step):
        for bit in dice.sample(range(8), bits):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            path.write_bytes(changed)
            yield place, bit
    path.write_bytes(content)


class _Nothing(Inspector):
    """Reports every file as unreadable: damage must be known before a file is parsed."""

    def _ask(self, question: dict[str, object]) -> object:
        raise Unreadable("not looked at")


def _hunt(lake: Lake, files: list[Path], bits: int, *, step: int = 1) -> None:
    missed = []
    for path in files:
        for place, bit in flips(path, bits, step=step):
            if not wrong(lake.path):
                missed.append((str(path.relative_to(lake.path)), place, bit))
    assert missed == []
    assert wrong(lake.path) == []


def _files(lake: Lake) -> list[Path]:
    return [path for path in sorted(lake.path.rglob("*")) if path.is_file() and path.stat().st_size]


def test_a_flip_in_any_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "Inspector", _Nothing)
    lake = small(tmp_path)
    _hunt(lake, _files(lake), bits=1, step=23)


@pytest.mark.long
def test_a_flip_of_any_bit_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "Inspector", _Nothing)
    lake = small(tmp_path)
    _hunt(lake, _files(lake), bits=8)


def _rows(lake: Path) -> list[dict[str, object]] | str:
    try:
        rows = pa.table(deltalake.DeltaTable(lake).to_pyarrow_table()).to_pylist()
    except BaseException as error:
        return type(error).__name__
    return sorted(rows, key=lambda row: str(row["offset"]))


@pytest.mark.parametrize("step", [31, pytest.param(1, marks=pytest.mark.long)])
def test_a_flip_in_a_delta_log_is_found_if_readers_would_see_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr(verifying, "Inspector", _Nothing)
    lake = small(tmp_path, format=Format.DELTA)
    expected = _rows(lake.path)
    missed = []
    for path in _files(lake):
        if layout.DELTA_LOG not in path.parts:
            continue
        for place, bit in flips(path, 1, step=step):
            if not wrong(lake.path) and _rows(lake.path) != expected:
                missed.append((path.name, place, bit))
    assert missed == []
    assert wrong(lake.path) == []


def test_damage_that_ends_a_process_ends_no_verification(tmp_path: Path) -> None:
    """Flips in a footer that is parsed, as for archives of earlier versions: some crash the process that parses it."""
    lake = small(tmp_path)
    path = lake.path / lake.files()[0].path
    content = path.read_bytes()
    dice = random.Random(5)
    with Inspector() as inspector:
        for _ in range(200):
            changed = bytearray(content)
            changed[dice.randrange(len(content) - 700, len(content))] ^= 1 << dice.randrange(8)
            path.write_bytes(changed)
            for look in (lambda: inspector.footer(str(path)), lambda: inspector.content([str(path)])):
                with suppress(Unreadable):
                    look()
    assert wrong(lake.path)


def test_a_process_that_dies_is_reported_and_another_one_answers(tmp_path: Path) -> None:
    lake = small(tmp_path)
    good = str(lake.path / lake.files()[0].path)
    with Inspector() as inspector:
        assert inspector.footer(good).rows == 6
        assert inspector._child is not None
        inspector._child.kill()
        inspector._child.wait()
        with pytest.raises(Unreadable, match="SIGKILL"):
            inspector.footer(good)
        assert inspector.content([good]).fingerprint.count == 6
        with pytest.raises(Unreadable):
            inspector.footer(str(tmp_path / "nowhere.parquet"))


def test_a_replay_reads_no_damaged_file(tmp_path: Path) -> None:
    lake = small(tmp_path)
    source = open_source(str(lake.path))
    path = lake.path / lake.files()[0].path
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(LakeError, match="not those that were written"):
        list(records(source.partitions[0], start=0, selection=Selection()))
