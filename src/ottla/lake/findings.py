"""What verifying an archive finds, and how much it has compared. Plain values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as the ledger says. `where` is a file, a range or an entry."""

    where: str
    what: str
    is_wrong: bool = True
    """False: it could not be compared."""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(slots=True)
class Checked:
    """How much was compared."""

    entries: int = 0
    ranges: int = 0
    files: int = 0
    records: int = 0
