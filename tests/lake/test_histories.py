"""Random histories of an archive, judged by what was in the topic: kills at any touch of the disk, two archivers,
entries that are lost, copies that are restored, compaction, files deleted by hand.

Whatever happens, readers see every archived record once, or the archiver gets an error that says what is wrong.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.lake import stock

from ottla.errors import LakeConflict, LakeDamaged
from ottla.lake import delta, layout, ledger, repair
from ottla.lake import lake as lake_module
from ottla.lake.contents import fingerprint
from ottla.lake.lake import Lake
from ottla.lake.layout import Format
from ottla.lake.verifying import Checked, verify_files
from ottla.model import OffsetRange, TopicPartition

AT = TopicPartition("clicks", 0)


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours runs after it."""


class Doom:
    """Every touch of the disk may be the last one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        """Touches until the kill; 0 for none."""
        touches = [(os, "link"), (os, "rename"), (os, "open"), (shutil, "rmtree"), (delta, "commit")]
        for owner, name in (*touches, (lake_module, "sync"), (ledger, "sync"), (Path, "unlink"), (Path, "mkdir")):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, real: Callable[..., object]) -> Callable[..., object]:
        def touch(*args: object, **kwargs: object) -> object:
            if self.left:
                self.left -= 1
                if not self.left:
                    raise Killed
            return real(*args, **kwargs)

        return touch


class History:
    """An archive, with a model of what must be in it."""

    def __init__(self, path: Path, form: Format, dice: random.Random, doom: Doom) -> None:
        self.lake = stock.create(path, format=form)
        self.copies = path / "copies"
        self.dice = dice
        self.doom = doom
        self.deleted: set[int] = set()
        """Offsets that were deleted by hand."""
        self.is_vacuumed = False
        """Whether the table can no longer be restored, so that lost entries must be put back."""
        self.log: list[str] = []
        self._kept: list[tuple[str, Path, set[int], int]] = []

    # What happens

    def archive(self) -> None:
        lake = self._open()
        done = [stock.stage(lake, span) for span in self._next(lake)]
        self._killed(lambda: lake.append(done, by=stock.BY), self.dice.choice([0, 0, *range(1, 16)]))

    def two_at_once(self) -> None:
        first, other = self._open(), Lake.open(self.lake.path)
        mine = [stock.stage(first, span) for span in self._next(first)]
        theirs = [stock.stage(other, span) for span in self._next(other)]
        first.append(mine, by=stock.BY)
        try:
            other.append(theirs, by=stock.BY)
        except LakeConflict:
            other.discard(theirs)

    def start(self) -> None:
        self._open()

    def lose_entry(self) -> None:
        numbers = self.lake.ledger.listed()
        if numbers and not self.is_vacuumed:
            os.unlink(self.lake.ledger.path / self.lake.ledger.name(numbers[-1]))

    def copy(self) -> None:
        what = "" if self.is_vacuumed else self.dice.choice(["", layout.OWN, layout.LEDGER])
        target = self.copies / str(len(self.log))
        shutil.copytree(self.lake.path / what, target)
        self._kept.append((what, target, set(self.deleted), len(self.lake.ledger.listed())))

    def restore(self) -> None:
        if not self._kept:
            return
        what, target, deleted, entries = self.dice.choice(self._kept)
        shutil.rmtree(self.lake.path / what)
        shutil.copytree(target, self.lake.path / what)
        if not what:  # copies made after that time belong to another history
            self.deleted = deleted
            self._kept = [copy for copy in self._kept if int(copy[1].name) <= int(target.name)]
        self._forget(entries)

    def _forget(self, last: int) -> None:
        """Forget copies of a ledger with more entries: their files are gone."""
        self._kept = [copy for copy in self._kept if not copy[0] or copy[3] <= last]

    def maintain(self) -> None:
        if self.lake.settings.format is Format.PARQUET or not self.lake.ledger.listed():
            return
        self._open()
        table = deltalake.DeltaTable(self.lake.path)
        table.optimize.compact()
        if self.dice.random() < 0.5:
            table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
            self.is_vacuumed = True
            self._kept = [copy for copy in self._kept if not copy[0]]  # without these files a copy is incomplete

    def delete_file(self) -> None:
        if self.lake.settings.format is Format.DELTA:
            return
        files = [path for path in _data(self.lake.path) if self._offsets(path)]
        if files:
            gone = self.dice.choice(files)
            self.deleted |= set(self._offsets(gone))
            self._open()
            if gone.exists():
                gone.unlink()

    # What must be true

    def check(self, *, deep: bool) -> None:
        lake = self._open()
        position = lake.positions().get(AT, 0)
        expected = [offset for offset in range(position) if offset not in self.deleted]
        rows = self._rows()
        assert rows["offset"].to_pylist() == expected, "\n".join(self.log)
        content = stock.records(OffsetRange(*AT, 0, position))
        archived = content.take(pa.array(expected, pa.int64()))
        same = rows.select(["key", "value", "headers"]).cast(archived.select(["key", "value", "headers"]).schema)
        assert fingerprint(same) == fingerprint(archived), self.log
        if deep:
            findings = [str(finding) for finding in verify_files(lake, Checked(), deep=True) if finding.is_wrong]
            assert all("deleted or moved since" in text for text in findings), (findings, self.log)
            assert bool(findings) <= bool(self.deleted), self.log

    def _open(self) -> Lake:
        """Repair as a user would: set aside what is in the way."""
        lake = Lake.open(self.lake.path)
        try:
            lake.recover()
        except LakeDamaged as error:
            self.log.append(f"damaged: {error.reason}")
            damage = repair.look(lake)
            if damage.is_none:
                raise
            repair.set_aside(lake, damage)
            self._forget(damage.last)
            lake = Lake.open(self.lake.path)
            lake.recover()
        # What was deleted by hand and is no longer in the ledger will be archived again.
        self.deleted = {offset for offset in self.deleted if offset < lake.positions().get(AT, 0)}
        lake.sweep(0.0)
        return lake

    def _next(self, lake: Lake) -> list[OffsetRange]:
        start = lake.positions().get(AT, 0)
        cuts = [start]
        for _ in range(self.dice.randint(1, 3)):
            cuts.append(cuts[-1] + self.dice.randint(1, 6))
        return [OffsetRange(*AT, *pair) for pair in itertools.pairwise(cuts)]

    def _killed(self, step: Callable[[], object], touches: int) -> None:
        self.doom.left = touches
        try:
            step()
        except Killed:
            self.log.append(f"killed at {touches}")
        finally:
            self.doom.left = 0

    def _rows(self) -> pa.Table:
        if self.lake.settings.format is Format.DELTA and (self.lake.path / layout.DELTA_LOG).exists():
            table = pa.table(deltalake.DeltaTable(self.lake.path).to_pyarrow_table())
        else:
            tables = [pq.read_table(path, partitioning=None) for path in _data(self.lake.path)]
            schema = self.lake.settings.file_schema
            table = pa.concat_tables([schema.empty_table(), *(part.cast(schema) for part in tables)])
        return table.sort_by("offset")

    def _offsets(self, path: Path) -> list[int]:
        offsets: list[int] = pq.read_table(path, columns=["offset"], partitioning=None)["offset"].to_pylist()
        return offsets


def _data(root: Path) -> list[Path]:
    return [path for path in sorted(root.rglob("*.parquet")) if layout.OWN not in path.parts]


STEPS = [
    *[History.archive] * 6,
    *(History.two_at_once, History.start, History.lose_entry, History.copy, History.copy, History.restore),
    *(History.restore, History.maintain, History.delete_file),
]


def play(path: Path, form: Format, seed: int, monkeypatch: pytest.MonkeyPatch, *, steps: int) -> None:
    dice = random.Random(seed)
    history = History(path, form, dice, Doom(monkeypatch))
    for _ in range(steps):
        step = dice.choice(STEPS)
        history.log.append(step.__name__)
        step(history)
        history.check(deep=False)
    history.check(deep=True)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("form", list(Format), ids=lambda form: form.value)
def test_readers_see_what_was_in_the_topic_once(
    tmp_path: Path, form: Format, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(tmp_path, form, seed, monkeypatch, steps=20)


@pytest.mark.long
@pytest.mark.parametrize("form", list(Format), ids=lambda form: form.value)
def test_a_long_history_changes_nothing_about_that(
    tmp_path: Path, form: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(100, 140):
        with monkeypatch.context() as patch:
            play(tmp_path / str(seed), form, seed, patch, steps=60)
