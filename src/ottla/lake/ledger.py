"""The ledger of an archive: numbered entries without holes, one file each, which are created once and never change.

Entries come in and go out. Creating an entry is the moment at which its records belong to the archive. It fails if the
number is taken, and after a crash the file is there with its whole content or not at all. Marks stand beside the
entries: an empty file named by a number means that this entry and all before it are published. Only the newest mark is
kept. It also tells where to look for the newest entry, so that finding it costs the same after years.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ottla.errors import Advice, LakeDamaged, LakeError
from ottla.files import create_whole, sync
from ottla.lake import layout
from ottla.lake.checksummed import seal, unseal
from ottla.lake.values import ENTRY_KEYS, Entry

_DIGITS = 20
_ENDING = ".json"
_Stamp = tuple[int, int, int, int]
"""Number, inode, size and modification time of an entry's file."""


class Ledger:
    """The entries of one archive. Caches the newest entry until its file changes.

    Methods raise `LakeDamaged` if an entry is missing or cannot be read, and `LakeError` if one cannot be written.
    """

    def __init__(self, root: Path) -> None:
        self.path = root / layout.LEDGER
        self.marks = root / layout.PUBLISHED
        self._root = root
        self._newest: tuple[_Stamp, Entry] | None = None

    def numbers(self) -> list[int]:
        """Return the numbers of all entries, in order. Lists the whole folder."""
        marked = self.published()  # read before the entries: an archiver may add both meanwhile
        numbers = self.listed()
        if marked > len(numbers):
            raise self._lost(marked)
        return numbers

    def listed(self) -> list[int]:
        """Return the numbers of all entries without comparing them with the marks."""
        numbers = _numbers(self.path, _ENDING)
        if numbers and numbers[-1] != len(numbers):
            missing = next(expected for expected, number in enumerate(numbers, 1) if expected != number)
            raise LakeDamaged(self._root, f"ledger entry {self.name(missing)} is missing")
        return numbers

    def name(self, number: int) -> str:
        """Return the file name of an entry."""
        return self._file(number).name

    def entries(self, last: int | None = None) -> Iterator[Entry]:
        """Yield the entries in order, up to `last` if given."""
        for number in self.numbers() if last is None else range(1, last + 1):
            yield self.read(number)

    def last(self) -> Entry | None:
        """Return the newest entry; None while nothing is archived. Looks only past the newest known one."""
        number = max(self.published(), self._newest[1].number if self._newest is not None else 0)
        if not number:
            numbers = self.numbers()
            return self._read_newest(numbers[-1]) if numbers else None
        while self._file(number + 1).exists():
            number += 1
        return self._read_newest(number)

    def read(self, number: int) -> Entry:
        """Read one entry."""
        path = self._file(number)
        try:
            entry = Entry.from_json(unseal(path.read_bytes(), ENTRY_KEYS))
        except FileNotFoundError:
            raise LakeDamaged(self._root, f"ledger entry {path.name} is missing") from None
        except (OSError, msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
            raise LakeDamaged(self._root, f"ledger entry {path.name} cannot be read: {error}") from error
        if entry.number != number:
            raise LakeDamaged(self._root, f"ledger entry {path.name} says that it is number {entry.number}")
        return entry

    def create(self, entry: Entry) -> bool:
        """Write the entry and return when it is on disk. Return False if its number is taken."""
        return create_file(self._file(entry.number), seal(entry.to_json()), root=self._root)

    def published(self) -> int:
        """Return the newest mark: all entries up to it are published. 0 without a mark."""
        try:
            return max(_numbers(self.marks, ""), default=0)
        except FileNotFoundError:
            return 0

    def mark(self, number: int) -> None:
        """Mark the entry, and all before it, as published."""
        try:
            self.marks.mkdir(exist_ok=True)
            # O_NOFOLLOW: a link in place of the mark must not create a file elsewhere.
            os.close(os.open(self._mark(number), os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o666))
            sync(self.marks)
            for older in _numbers(self.marks, ""):  # after the new mark is durable
                if older < number:
                    self._mark(older).unlink(missing_ok=True)
        except OSError as error:
            raise LakeError(self._root, f"entry {number} cannot be marked as published: {error}") from error

    def unmark(self) -> None:
        """Remove all marks, to repair a ledger that lost its newest entries."""
        for number in _numbers(self.marks, "") if self.marks.exists() else ():
            self._mark(number).unlink(missing_ok=True)
        self._newest = None

    def _read_newest(self, number: int) -> Entry:
        try:
            status = os.stat(self._file(number))
        except OSError:
            raise self._lost(number) from None
        stamp = (number, status.st_ino, status.st_size, status.st_mtime_ns)
        if self._newest is None or self._newest[0] != stamp:
            self._newest = (stamp, self.read(number))
        return self._newest[1]

    def _lost(self, number: int) -> LakeDamaged:
        return LakeDamaged(
            self._root,
            f"ledger entry {self._file(number).name} was published and is missing: the ledger has lost its newest"
            f" entries, perhaps because an older copy of it was restored. {Advice.LAKE_REPAIR}",
        )

    def _mark(self, number: int) -> Path:
        return self.marks / f"{number:0{_DIGITS}d}"

    def _file(self, number: int) -> Path:
        return self.path / f"{number:0{_DIGITS}d}{_ENDING}"


def _numbers(folder: Path, ending: str) -> list[int]:
    names = (name.removesuffix(ending) for name in os.listdir(folder) if name.endswith(ending))
    return sorted(int(name) for name in names if len(name) == _DIGITS and name.isdecimal() and name.isascii())


def create_file(path: Path, content: bytes, *, root: Path) -> bool:
    """Create a file with its whole content, durably. Return False if it exists. Raises `LakeError` if that fails."""
    try:
        create_whole(path, content)
    except FileExistsError:
        return False
    except OSError as error:
        raise LakeError(root, f"{path.name} cannot be written: {error}") from error
    return True
