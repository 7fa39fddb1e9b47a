"""Does the ledger know all that is there? An archive that has more than its ledger must not be written to.

A ledger that lost its newest entries, as one from an older backup, would let an archiver read those offsets once more:
readers of plain files would see records twice, and a Delta table, which believes that it has these entries, would leave
records out. Both can be seen before anything is written: files are named by their offsets, and a Delta table has the
number of the last entry. What is seen is a `LakeDamaged` or, with `beyond`, a list. Nothing is changed here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.errors import LakeDamaged
from ottla.lake import layout
from ottla.lake.layout import Format
from ottla.lake.ledger import REPAIR
from ottla.model import TopicPartition

if TYPE_CHECKING:
    from ottla.lake.lake import Lake


def require_known(lake: Lake) -> None:
    """Compares files and Delta log with the ledger; what a Delta log lacks of older entries is added to it again."""
    committed = _committed(lake)
    there = data_files(lake.path)
    last = lake.ledger.last()  # after the two: others may be adding entries
    number = 0 if last is None else last.number
    if committed is not None and committed > number:
        raise LakeDamaged(
            lake.path,
            f"its Delta table has entry {committed}, and its ledger ends with {number}: the ledger has lost its newest"
            f" entries, perhaps because an older copy of it was restored. {REPAIR}",
        )
    found = beyond(there, {} if last is None else last.positions)
    if found:
        raise LakeDamaged(
            lake.path,
            f"{len(found)} files hold offsets that the ledger does not have, for example {found[0]}: it has lost its"
            f" newest entries, perhaps because an older copy of it was restored. {REPAIR}",
        )
    if committed is not None:
        _commit_missing(lake, committed, min(number, lake.ledger.published()))


def beyond(paths: set[str], positions: Mapping[TopicPartition, int]) -> list[str]:
    """The files of ours that hold offsets from the positions on."""
    known = {(name, at.partition): offset for at, offset in positions.items() for name in (at.topic, _short(at))}
    found = []
    for path in sorted(paths):
        named = layout.named(path)
        if named is not None and named.stop > known.get((named.topic, named.partition), 0):
            found.append(path)
    return found


def data_files(root: Path) -> set[str]:
    """All files where readers look, relative to the archive. Links are not followed."""
    found: set[str] = set()
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(("_", "."))]
        inside = os.path.relpath(folder, root)
        found |= {os.path.normpath(os.path.join(inside, name)) for name in names if name.endswith(layout.SUFFIX)}
    return found


def _short(at: TopicPartition) -> str:
    return layout.short(at.topic)


def _committed(lake: Lake) -> int | None:
    if lake.settings.format is not Format.DELTA:
        return None
    from ottla.lake import delta

    return delta.transaction(lake.path)


def _commit_missing(lake: Lake, committed: int, published: int) -> None:
    """The Delta log may be the one that went back: what was published is in it again afterwards."""
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
