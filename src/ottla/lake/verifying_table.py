"""Holds the Delta log of an archive against its ledger, and what other tools have made of its files.

Compacting (OPTIMIZE) and clearing up (VACUUM) are allowed: the records are in other files then, which are read and
compared with the receipts. Records that were deleted from the table are told as that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ottla.errors import LakeDamaged
from ottla.lake.contents import Content, Part
from ottla.lake.delta import Table, fields_of, look
from ottla.lake.findings import Checked, Finding
from ottla.lake.inspector import Inspector, Unreadable
from ottla.lake.lake import Lake
from ottla.lake.layout import named
from ottla.lake.paths import located
from ottla.lake.values import LakeFile
from ottla.model import Fingerprint, Receipt


@dataclass(slots=True)
class TableState:
    """The table as it was before the ledger was read: entries up to `due` must be in it."""

    root: Path
    table: Table
    due: int
    gone: list[str] = field(default_factory=list)
    """Files of the ledger that are not in the table, and nobody has taken them out."""
    wrong: list[Finding] = field(default_factory=list)

    @classmethod
    def of(cls, lake: Lake, published: int) -> TableState:
        """As it is now; LakeDamaged if it cannot be read."""
        table = look(lake.path)
        state = cls(lake.path, table, max(published, table.transaction))
        if table.fields is not None and table.fields != fields_of(lake.settings.table_schema):
            state.wrong.append(Finding("_delta_log", "the columns of the table are not those of the archive"))
        return state

    def is_maintained(self, path: str) -> bool:
        """Whether a file that no entry names can be one of the table's maintenance: in the table, or not any more."""
        return path in self.table.files or named(path) is None

    def rewritten(self, number: int, files: Sequence[LakeFile]) -> list[LakeFile]:
        """Which files of an entry are not in the table any more, because somebody has rewritten or deleted them."""
        found = []
        for file in files:
            if file.path in self.table.files:
                if said := self.table.differs(file):
                    self.wrong.append(Finding(file.path, f"the Delta table says {said}"))
            elif number <= self.table.transaction:
                found.append(file)
            elif number <= self.due:
                self.gone.append(file.path)
        return found

    def findings(self, known: set[str]) -> Iterator[Finding]:
        """What is wrong with the log alone."""
        yield from self.wrong
        for path in sorted(self.gone):
            yield Finding(path, "is in the ledger and not in the Delta table")
        for path in sorted(set(self.table.masked) & known):
            yield Finding(path, "some of its records were deleted from the Delta table")


@dataclass(slots=True)
class Rewritten:
    """Ranges whose records are, at least in part, in files that other tools have written."""

    receipts: list[Receipt] = field(default_factory=list)
    expected: list[Fingerprint] = field(default_factory=list)
    live: list[list[Path]] = field(default_factory=list)
    """Their own files that are still in the table."""

    def add(self, receipt: Receipt, expected: Fingerprint, live: list[Path]) -> None:
        """One more."""
        self.receipts.append(receipt)
        self.expected.append(expected)
        self.live.append(live)

    def findings(
        self, state: TableState, known: set[str], inspector: Inspector, checked: Checked, *, deep: bool
    ) -> Iterator[Finding]:
        """Compares the records in those files with the receipts."""
        others = {path: values for path, values in state.table.files.items() if path not in known}
        if not self.receipts:
            for path in sorted(others):
                yield Finding(path, "is in the Delta table and not in the ledger")
            return
        if not deep:
            count = f"{len(self.receipts)} range{'s are' if len(self.receipts) != 1 else ' is'}"
            yield Finding(
                "_delta_log",
                f"{count} in files that another tool has rewritten, or were deleted: --deep compares the records",
                is_wrong=False,
            )
            return
        try:
            parts = [Part(str(located(state.root, path)), others[path].values) for path in sorted(others)]
            found = inspector.by_range(parts, [receipt.range for receipt in self.receipts])
            total = sum(inspector.footer(part.path).rows for part in parts)
            own = [inspector.content([str(path) for path in paths]) for paths in self.live]
        except (Unreadable, LakeDamaged) as error:
            reason = error.reason if isinstance(error, LakeDamaged) else str(error)
            yield Finding(", ".join(sorted(others)), f"cannot be read: {reason}")
            return
        for receipt, expected, mine, theirs in zip(self.receipts, self.expected, own, found, strict=True):
            there = mine.fingerprint + theirs.fingerprint
            checked.records += there.count
            yield from _compared(receipt, expected, there, theirs)
        matched = sum(one.fingerprint.count for one in found)
        if total > matched:
            yield Finding(", ".join(sorted(others)), f"has {total - matched} records that no entry of the ledger has")


def _compared(receipt: Receipt, expected: Fingerprint, there: Fingerprint, theirs: Content) -> Iterator[Finding]:
    where = str(receipt.range)
    if there.count < expected.count:
        yield Finding(where, f"{expected.count - there.count} of its {expected.count} records were deleted since")
    elif there != expected:
        yield Finding(where, f"the Delta table has {there}, the receipt {expected}")
    if theirs.twice:
        yield Finding(where, f"{theirs.twice} offsets are there twice")
