"""Repairs an archive whose ledger has lost its newest entries, so that it can be written to again.

`look` finds what is in the way; `set_aside` takes it out of the archive. Nothing is deleted: files and entries move to
a separate folder where no reader sees them, and a Delta table is restored, which adds a version to it. The offsets
are due again afterwards, and the next archiver reads them from the brokers.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ottla.errors import LakeError
from ottla.files import sync
from ottla.lake import layout
from ottla.lake.lake import Lake
from ottla.lake.layout import Format
from ottla.lake.paths import located
from ottla.lake.staleness import beyond, data_files
from ottla.lake.values import Entry

_ENDING = ".aside"
"""The suffix of files that were set aside: some readers read every `**/*.parquet`."""


@dataclass(frozen=True, slots=True)
class Damage:
    """What prevents writing to an archive."""

    last: int
    """The newest entry that can stay."""
    withdrawn: int | None = None
    """An entry that was recorded, was never published, and has lost its files."""
    lost: int = 0
    """The newest entry that was published, if the ledger has lost it; otherwise 0."""
    files: tuple[str, ...] = ()
    """Files with offsets that the ledger does not have."""

    @property
    def is_none(self) -> bool:
        """Whether nothing is in the way."""
        return self.withdrawn is None and not self.lost and not self.files


def look(lake: Lake) -> Damage:
    """Return what is in the way, and change nothing. No archiver may run at the same time.

    Raises `LakeDamaged` if an entry or the Delta log cannot be read.
    """
    marked, committed = lake.ledger.published(), _committed(lake)
    present = data_files(lake.path)
    numbers = lake.ledger.listed()
    last = lake.ledger.read(numbers[-1]) if numbers else None
    withdrawn = None
    if last is not None and last.number > max(marked, committed) and _has_lost_files(lake, last):
        withdrawn = last.number
        last = lake.ledger.read(last.number - 1) if last.number > 1 else None
    known = 0 if last is None else last.number
    newest = max(marked, committed)
    files = beyond(present, {} if last is None else last.positions)
    return Damage(known, withdrawn, newest if newest > known else 0, tuple(files))


def set_aside(lake: Lake, damage: Damage) -> Path:
    """Take everything that is in the way out of the archive. Return the folder where it is now.

    Raises `LakeError` if a file cannot be moved or a Delta table cannot be restored.
    """
    name = f"{layout.ASIDE}/{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{uuid.uuid4().hex[:8]}"
    folder = located(lake.path, name)
    moves = [(path, f"{name}/{path}{_ENDING}") for path in damage.files]
    if damage.withdrawn is not None:
        entry = f"{layout.LEDGER}/{lake.ledger.name(damage.withdrawn)}"
        moves.append((entry, f"{name}/{entry}"))
    try:
        folder.mkdir(parents=True)
        # The table first: while it lists the files, they must be where it says.
        if lake.settings.format is Format.DELTA and _committed(lake) > damage.last:
            from ottla.lake import delta

            delta.go_back(lake.path, damage.last)
        _move(lake.path, moves)
    except OSError as error:
        raise LakeError(lake.path, f"it cannot be repaired: {error}") from error
    lake.ledger.unmark()
    if damage.last:
        lake.ledger.mark(damage.last)
    return folder


def _committed(lake: Lake) -> int:
    if lake.settings.format is not Format.DELTA:
        return 0
    from ottla.lake import delta

    return delta.transaction(lake.path)


def _has_lost_files(lake: Lake, entry: Entry) -> bool:
    return any(not lake.locate(file).exists() for file in entry.files)


def _move(root: Path, moves: Iterable[tuple[str, str]]) -> None:
    touched: set[Path] = set()
    for source, target in moves:
        before, after = located(root, source), located(root, target)
        after.parent.mkdir(parents=True, exist_ok=True)
        os.rename(before, after)
        touched |= {before.parent, after.parent}
    for folder in touched:
        sync(folder)
