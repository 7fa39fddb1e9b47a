"""The results of verifying an archive: what differs, and how much was compared. Plain values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """A difference from the ledger. `where` is a file, a range or an entry."""

    where: str
    what: str
    is_wrong: bool = True
    """False if it could not be compared."""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(slots=True)
class Checked:
    """How much was compared."""

    entries: int = 0
    ranges: int = 0
    files: int = 0
    records: int = 0
