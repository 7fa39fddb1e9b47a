"""Verifies the Delta log of an archive against its ledger, including files that other tools have rewritten.

The state of the table and the ledger's files come in; findings go out. Compaction (OPTIMIZE) and VACUUM are allowed:
the records are then in other files, which are read and compared with the receipts. Deleted records are a finding.
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
    """The table, read before the ledger: entries up to `due` must be in it."""

    root: Path
    table: Table
    due: int
    gone: list[str] = field(default_factory=list)
    """Files of the ledger that never came into the table."""
    wrong: list[Finding] = field(default_factory=list)

    @classmethod
    def of(cls, lake: Lake, published: int) -> TableState:
        """Read the current state of the table. Raises `LakeDamaged` if it cannot be read."""
        table = look(lake.path)
        state = cls(lake.path, table, max(published, table.transaction))
        if table.fields is not None and table.fields != fields_of(lake.settings.table_schema):
            state.wrong.append(Finding("_delta_log", "the columns of the table are not those of the archive"))
        return state

    def is_maintained(self, path: str) -> bool:
        """Return whether a file that no entry names may come from the table's maintenance, also from an earlier one."""
        return path in self.table.files or named(path) is None

    def rewritten(self, number: int, files: Sequence[LakeFile]) -> list[LakeFile]:
        """Return the files of an entry that were in the table and were rewritten or deleted since."""
        rewritten = []
        for file in files:
            if file.path in self.table.files:
                if difference := self.table.differs(file):
                    self.wrong.append(Finding(file.path, f"the Delta table says {difference}"))
            elif number <= self.table.transaction:
                rewritten.append(file)
            elif number <= self.due:
                self.gone.append(file.path)
        return rewritten

    def findings(self, known: set[str]) -> Iterator[Finding]:
        """Yield what is wrong with the log itself."""
        yield from self.wrong
        for path in sorted(self.gone):
            yield Finding(path, "is in the ledger and not in the Delta table")
        for path in sorted(set(self.table.masked) & known):
            yield Finding(path, "some of its records were deleted from the Delta table")


@dataclass(slots=True)
class Rewritten:
    """Ranges with at least some of their records in files that other tools wrote."""

    receipts: list[Receipt] = field(default_factory=list)
    expected: list[Fingerprint] = field(default_factory=list)
    live: list[list[Path]] = field(default_factory=list)
    """The ranges' own files that are still in the table."""

    def add(self, receipt: Receipt, expected: Fingerprint, live: list[Path]) -> None:
        """Add a range."""
        self.receipts.append(receipt)
        self.expected.append(expected)
        self.live.append(live)

    def findings(
        self, state: TableState, known: set[str], inspector: Inspector, checked: Checked, *, deep: bool
    ) -> Iterator[Finding]:
        """Compare the records in those files with the receipts. Yields what differs."""
        others = {path: values for path, values in state.table.files.items() if path not in known}
        if not self.receipts:
            for path in sorted(others):
                yield Finding(path, "is in the Delta table and not in the ledger")
            return
        if not deep:
            count = f"{len(self.receipts)} range{'s are' if len(self.receipts) != 1 else ' is'}"
            yield Finding(
                "_delta_log",
                f"{count} in files that another tool has rewritten, or were deleted: a deep verification compares"
                " the records",
                is_wrong=False,
            )
            return
        try:
            parts = [Part(str(located(state.root, path)), others[path].values) for path in sorted(others)]
            foreign = inspector.by_range(parts, [receipt.range for receipt in self.receipts])
            total = sum(inspector.footer(part.path).rows for part in parts)
            own = [inspector.content([str(path) for path in paths]) for paths in self.live]
        except (Unreadable, LakeDamaged) as error:
            reason = error.reason if isinstance(error, LakeDamaged) else str(error)
            yield Finding(", ".join(sorted(others)), f"cannot be read: {reason}")
            return
        for receipt, expected, in_own, in_foreign in zip(self.receipts, self.expected, own, foreign, strict=True):
            actual = in_own.fingerprint + in_foreign.fingerprint
            checked.records += actual.count
            yield from _compared(receipt, expected, actual, in_foreign)
        matched = sum(content.fingerprint.count for content in foreign)
        if total > matched:
            yield Finding(", ".join(sorted(others)), f"has {total - matched} records that no entry of the ledger has")


def _compared(receipt: Receipt, expected: Fingerprint, actual: Fingerprint, foreign: Content) -> Iterator[Finding]:
    where = str(receipt.range)
    if actual.count < expected.count:
        yield Finding(where, f"{expected.count - actual.count} of its {expected.count} records were deleted since")
    elif actual != expected:
        yield Finding(where, f"the Delta table has {actual}, the receipt {expected}")
    if foreign.twice:
        yield Finding(where, f"{foreign.twice} offsets are there twice")
