"""The ledger: entries in files of their own, numbered without holes, each created once, whole and for good.

Entries come in and go out. Creating one is the moment at which records come into the archive: it fails if somebody
else has created that number, and after a crash it is there with its whole content or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ottla.errors import LakeDamaged, LakeError
from ottla.files import create_whole
from ottla.lake.values import Entry

_DIGITS = 20
_ENDING = ".json"


class Ledger:
    """The entries of one archive. It remembers nothing: every call looks at the folder."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path = path
        self._root = root

    def numbers(self) -> list[int]:
        """Of all entries, in order."""
        names = (name.removesuffix(_ENDING) for name in os.listdir(self.path) if name.endswith(_ENDING))
        found = sorted(int(name) for name in names if len(name) == _DIGITS and name.isdecimal())
        if found and found[-1] != len(found):
            missing = next(number for number, there in enumerate(found, 1) if number != there)
            raise LakeDamaged(self._root, f"ledger entry {self._file(missing).name} is missing")
        return found

    def entries(self) -> Iterator[Entry]:
        """All of them, in order."""
        for number in self.numbers():
            yield self.read(number)

    def last(self) -> Entry | None:
        """The newest one; None while nothing is archived."""
        numbers = self.numbers()
        return self.read(numbers[-1]) if numbers else None

    def read(self, number: int) -> Entry:
        """One of them."""
        path = self._file(number)
        try:
            entry = Entry.from_json(msgspec.json.decode(path.read_bytes()))
        except (OSError, msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
            raise LakeDamaged(self._root, f"ledger entry {path.name} cannot be read: {error}") from error
        if entry.number != number:
            raise LakeDamaged(self._root, f"ledger entry {path.name} says that it is number {entry.number}")
        return entry

    def create(self, entry: Entry) -> bool:
        """Writes the entry; False if there is one of its number already. Returns when it is on the disk."""
        content = msgspec.json.format(msgspec.json.encode(entry.to_json()), indent=1)
        return create_file(self._file(entry.number), content, root=self._root)

    def _file(self, number: int) -> Path:
        return self.path / f"{number:0{_DIGITS}d}{_ENDING}"


def create_file(path: Path, content: bytes, *, root: Path) -> bool:
    """Creates a file with its whole content, durably; False if it exists already."""
    try:
        create_whole(path, content)
    except FileExistsError:
        return False
    except OSError as error:
        raise LakeError(root, f"{path.name} cannot be written: {error}") from error
    return True
