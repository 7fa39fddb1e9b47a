"""The ledger: entries in files of their own, numbered without holes, each created once, whole and for good.

Entries come in and go out. Creating one is the moment at which records come into the archive: it fails if somebody
else has created that number, and after a crash it is there with its whole content or not at all. Beside the entries
there are marks: an empty file with the number of an entry says that this entry, and all before it, were published. Only
the newest mark is kept. It also says where to look for the newest entry, so that looking costs the same after years.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ottla.errors import LakeDamaged, LakeError
from ottla.files import create_whole, sync
from ottla.lake import layout
from ottla.lake.checksummed import seal, unseal
from ottla.lake.values import ENTRY_KEYS, Entry

_DIGITS = 20
_ENDING = ".json"
_Seen = tuple[int, int, int, int]


class Ledger:
    """The entries of one archive. It remembers the newest one, and looks whether it is still the one it was."""

    def __init__(self, root: Path) -> None:
        self.path = root / layout.LEDGER
        self.marks = root / layout.PUBLISHED
        self._root = root
        self._newest: tuple[_Seen, Entry] | None = None

    def numbers(self) -> list[int]:
        """Of all entries, in order. It lists the whole folder."""
        marked = self.published()  # before the entries: both grow while we look
        found = self.listed()
        if marked > len(found):
            raise self._lost(marked)
        return found

    def listed(self) -> list[int]:
        """The same, whatever was published."""
        found = _numbers(self.path, _ENDING)
        if found and found[-1] != len(found):
            missing = next(number for number, there in enumerate(found, 1) if number != there)
            raise LakeDamaged(self._root, f"ledger entry {self.name(missing)} is missing")
        return found

    def name(self, number: int) -> str:
        """Of the file of an entry."""
        return self._file(number).name

    def entries(self, last: int | None = None) -> Iterator[Entry]:
        """All of them, in order, up to a number if one is given."""
        for number in self.numbers() if last is None else range(1, last + 1):
            yield self.read(number)

    def last(self) -> Entry | None:
        """The newest one; None while nothing is archived. Only what is newer than the last look is looked for."""
        number = max(self.published(), self._newest[1].number if self._newest is not None else 0)
        if not number:
            numbers = self.numbers()
            return self._read_newest(numbers[-1]) if numbers else None
        while self._file(number + 1).exists():
            number += 1
        return self._read_newest(number)

    def read(self, number: int) -> Entry:
        """One of them."""
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
        """Writes the entry; False if there is one of its number already. Returns when it is on the disk."""
        return create_file(self._file(entry.number), seal(entry.to_json()), root=self._root)

    def published(self) -> int:
        """Up to this entry, everything is known to have been published; 0 where nothing is known."""
        try:
            return max(_numbers(self.marks, ""), default=0)
        except FileNotFoundError:
            return 0

    def mark(self, number: int) -> None:
        """Notes for good that the entry was published."""
        try:
            self.marks.mkdir(exist_ok=True)
            os.close(os.open(self._mark(number), os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o666))
            sync(self.marks)
            for older in _numbers(self.marks, ""):
                if older < number:
                    self._mark(older).unlink(missing_ok=True)
        except OSError as error:
            raise LakeError(self._root, f"entry {number} cannot be marked as published: {error}") from error

    def unmark(self) -> None:
        """Forgets which entries were published: for a ledger that lost its newest entries and is to go on."""
        for number in _numbers(self.marks, "") if self.marks.exists() else ():
            self._mark(number).unlink(missing_ok=True)
        self._newest = None

    def _read_newest(self, number: int) -> Entry:
        try:
            found = os.stat(self._file(number))
        except OSError:
            raise self._lost(number) from None
        seen = (number, found.st_ino, found.st_size, found.st_mtime_ns)
        if self._newest is None or self._newest[0] != seen:
            self._newest = (seen, self.read(number))
        return self._newest[1]

    def _lost(self, number: int) -> LakeDamaged:
        return LakeDamaged(
            self._root,
            f"ledger entry {self._file(number).name} was published and is missing: the ledger has lost its newest"
            f" entries, perhaps because an older copy of it was restored. {REPAIR}",
        )

    def _mark(self, number: int) -> Path:
        return self.marks / f"{number:0{_DIGITS}d}"

    def _file(self, number: int) -> Path:
        return self.path / f"{number:0{_DIGITS}d}{_ENDING}"


REPAIR = (
    "Put the missing entries back; or 'ottla lake repair PATH' says what is there without an entry, and can set it"
    " aside"
)
"""What to do about a ledger that went back."""


def _numbers(folder: Path, ending: str) -> list[int]:
    names = (name.removesuffix(ending) for name in os.listdir(folder) if name.endswith(ending))
    return sorted(int(name) for name in names if len(name) == _DIGITS and name.isdecimal() and name.isascii())


def create_file(path: Path, content: bytes, *, root: Path) -> bool:
    """Creates a file with its whole content, durably; False if it exists already."""
    try:
        create_whole(path, content)
    except FileExistsError:
        return False
    except OSError as error:
        raise LakeError(root, f"{path.name} cannot be written: {error}") from error
    return True
