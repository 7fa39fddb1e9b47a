"""Detects a stale ledger: an archive that has more than its ledger knows must not be written to.

A ledger that lost its newest entries, for example because an old backup was restored, would make an archiver read those
offsets again. Readers of plain files would then see records twice, and a Delta table, which already has entries with
these numbers, would leave records out. Both are visible before anything is written: file names contain offsets, and a
Delta table has the number of its last entry. `require_known` raises, `beyond` lists the files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.errors import Advice, LakeDamaged
from ottla.lake import layout
from ottla.lake.layout import Format
from ottla.model import TopicPartition

if TYPE_CHECKING:
    from ottla.lake.lake import Lake


def require_known(lake: Lake) -> None:
    """Raise `LakeDamaged` if files or the Delta log have more than the ledger.

    A Delta log that is the stale one gets the entries that it lacks.
    """
    committed = _committed(lake)
    present = data_files(lake.path)
    last = lake.ledger.last()  # read last: other archivers may add entries meanwhile
    number = 0 if last is None else last.number
    if committed is not None and committed > number:
        raise LakeDamaged(
            lake.path,
            f"its Delta table has entry {committed}, and its ledger ends with {number}: the ledger has lost its newest"
            f" entries, perhaps because an older copy of it was restored. {Advice.LAKE_REPAIR}",
        )
    unknown = beyond(present, {} if last is None else last.positions)
    if unknown:
        raise LakeDamaged(
            lake.path,
            f"{len(unknown)} files hold offsets that the ledger does not have, for example {unknown[0]}: the ledger has"
            f" lost its newest entries, perhaps because an older copy of it was restored. {Advice.LAKE_REPAIR}",
        )
    if committed is not None:
        _commit_missing(lake, committed, min(number, lake.ledger.published()))


def beyond(paths: set[str], positions: Mapping[TopicPartition, int]) -> list[str]:
    """Return the archive's own files that have offsets at or after the positions."""
    known: dict[tuple[str, int], int] = {}
    for tp, offset in positions.items():
        for name in (tp.topic, layout.short(tp.topic)):  # file names may have the topic shortened
            known[name, tp.partition] = offset
    unknown = []
    for path in sorted(paths):
        named = layout.named(path)
        if named is not None and named.stop > known.get((named.topic, named.partition), 0):
            unknown.append(path)
    return unknown


def data_files(root: Path) -> set[str]:
    """Return all Parquet files where readers look, relative to the archive. Does not follow links."""
    paths: set[str] = set()
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(("_", "."))]
        inside = os.path.relpath(folder, root)
        paths |= {os.path.normpath(os.path.join(inside, name)) for name in names if name.endswith(layout.SUFFIX)}
    return paths


def _committed(lake: Lake) -> int | None:
    if lake.settings.format is not Format.DELTA:
        return None
    from ottla.lake import delta

    return delta.transaction(lake.path)


def _commit_missing(lake: Lake, committed: int, published: int) -> None:
    """Commit published entries that the Delta log lacks, because an old copy of the log was restored."""
    from ottla.lake import delta

    for number in range(committed + 1, published + 1):
        entry = lake.ledger.read(number)
        gone = [file.path for file in entry.files if not lake.locate(file).exists()]
        if gone:
            raise LakeDamaged(
                lake.path,
                f"entry {number} is not in its Delta table any more, and neither is {gone[0]} on the disk: restore the"
                " table's log, or the file",
            )
        delta.commit(lake.path, lake.settings, entry)
