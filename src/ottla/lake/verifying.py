"""Verifies the files of an archive against its ledger: everything that is recorded is there, and nothing else.

A lake comes in; findings go out one by one, with the place and what was compared. Nothing is changed.

The archive may grow meanwhile. So the files that readers see are listed before the ledger is read: each of them was
recorded before it became visible, and a file that no entry names is not the archive's.

No parser in this process sees bytes that may be damaged. If a file has the SHA-256 from the ledger, it is what was
written. Other files, and those of entries of earlier versions, are read in a separate process (`inspector.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from ottla.errors import LakeDamaged
from ottla.lake import contents, digests
from ottla.lake.contents import Content
from ottla.lake.findings import Checked, Finding
from ottla.lake.inspector import Inspector, Unreadable
from ottla.lake.lake import Lake
from ottla.lake.layout import Format
from ottla.lake.staleness import data_files
from ottla.lake.status import UNEXPLAINED, summarize
from ottla.lake.values import Entry, LakeFile
from ottla.lake.verifying_logs import verify_brokers
from ottla.lake.verifying_table import Rewritten, TableState
from ottla.model import OffsetRange, Receipt

__all__ = ["Checked", "Finding", "verify_brokers", "verify_files"]

T = TypeVar("T")
_GONE = "is missing: it was published, and has been deleted or moved since"


def verify_files(lake: Lake, checked: Checked, *, deep: bool) -> Iterator[Finding]:
    """Compare the files with the ledger: sizes and footers, or with `deep` every byte. Yields what differs.

    `checked` counts what was compared. Damage is a finding, never an exception.
    """
    with Inspector() as inspector:
        yield from _Verification(lake, checked, inspector, deep=deep).findings()


@dataclass(slots=True)
class _State:
    """The state of a file."""

    is_readable: bool = True
    is_as_written: bool = False
    """Whether its bytes have the SHA-256 from the ledger."""


class _Verification:
    """One pass over an archive."""

    def __init__(self, lake: Lake, checked: Checked, inspector: Inspector, *, deep: bool) -> None:
        self._lake = lake
        self._checked = checked
        self._inspector = inspector
        self._deep = deep
        self._known: set[str] = set()
        self._table: TableState | None = None
        self._rewritten = Rewritten()
        self._published = 0

    def findings(self) -> Iterator[Finding]:
        lake = self._lake
        self._published = lake.ledger.published()
        if lake.settings.format is Format.DELTA:
            try:
                self._table = TableState.of(lake, self._published)
            except LakeDamaged as error:
                yield Finding("_delta_log", error.reason)
        # Before the ledger: a file that an archiver publishes meanwhile would otherwise look like a foreign one.
        present = data_files(lake.path)
        try:
            numbers = lake.ledger.numbers()
        except LakeDamaged as error:
            yield Finding("_ottla/ledger", error.reason)
            return
        readable: list[int] = []
        for number in numbers:
            try:
                entry = lake.ledger.read(number)
            except LakeDamaged as error:
                yield Finding(f"entry {number}", error.reason)
                continue
            readable.append(number)
            self._checked.entries += 1
            self._known.update(file.path for file in entry.files)
            yield from self._entry(entry)
        if len(readable) < len(numbers):
            return  # the files of an unreadable entry would look like foreign ones
        for status in summarize(lake.ledger.read(number) for number in readable):
            for overlap in status.overlaps:
                yield Finding(str(overlap), "is in the archive twice")
            for gap in status.gaps:
                if gap.reason == UNEXPLAINED:
                    yield Finding(str(gap.range), "is missing between two archived ranges")
        yield from self._foreign(present)

    def _foreign(self, present: set[str]) -> Iterator[Finding]:
        table = self._table
        for path in sorted(present - self._known):
            if table is not None and table.is_maintained(path):
                continue
            yield Finding(path, "is not in the ledger: another program put it there")
        if table is not None:
            yield from table.findings(self._known)
            yield from self._rewritten.findings(table, self._known, self._inspector, self._checked, deep=self._deep)

    def _entry(self, entry: Entry) -> Iterator[Finding]:
        of_range: dict[OffsetRange, list[LakeFile]] = {}
        for file in entry.files:
            of_range.setdefault(file.range, []).append(file)
        for receipt in entry.receipts:
            files = sorted(of_range.pop(receipt.range, []), key=lambda file: file.first_offset)
            self._checked.ranges += 1
            rows = sum(file.rows for file in files)
            if rows != receipt.count:
                yield Finding(str(receipt.range), f"its files have {rows} records, its receipt {receipt.count}")
            rewritten = [] if self._table is None else self._table.rewritten(entry.number, files)
            live = [file for file in files if file not in rewritten]
            states = []
            for file in live:
                state = _State()
                yield from self._file(entry, file, state)
                states.append(state)
            if rewritten:
                readable = [
                    self._lake.locate(file) for file, state in zip(live, states, strict=True) if state.is_readable
                ]
                self._rewritten.add(receipt, entry.fingerprint(receipt), readable)
            elif self._deep and rows == receipt.count and all(state.is_readable for state in states):
                yield from self._content(entry, receipt, files, all(state.is_as_written for state in states))
        for span in of_range:
            yield Finding(f"entry {entry.number}", f"has files of {span} and no receipt for it")

    def _file(self, entry: Entry, file: LakeFile, state: _State) -> Iterator[Finding]:
        self._checked.files += 1
        try:
            size = self._read_file(file, lambda path: os.stat(path).st_size)
            digest = self._read_file(file, digests.of_file if self._deep else digests.of_footer) if file.sha256 else ""
        except FileNotFoundError:
            state.is_readable = False
            yield Finding(file.path, _GONE if entry.number <= self._published else "is missing")
            return
        except (LakeDamaged, OSError) as error:
            state.is_readable = False
            yield Finding(file.path, f"cannot be read: {error.reason if isinstance(error, LakeDamaged) else error}")
            return
        if size != file.size_bytes:
            yield Finding(file.path, f"has {size} bytes, the ledger says {file.size_bytes}")
        if digest and digest != (file.sha256 if self._deep else file.footer_sha256):
            what = "its bytes" if self._deep else "the bytes of its footer"
            yield Finding(file.path, f"{what} are not those that were written: it is damaged, or was replaced")
        elif digest and size == file.size_bytes:
            state.is_as_written = True
            return  # its bytes are those that were written, so its footer is, too
        yield from self._footer(file, state)

    def _footer(self, file: LakeFile, state: _State) -> Iterator[Finding]:
        try:
            footer = self._read_file(file, lambda path: self._inspector.footer(str(path)))
        except (Unreadable, FileNotFoundError) as error:
            state.is_readable = False
            yield Finding(file.path, f"cannot be read: {error}")
            return
        if footer.rows != file.rows:
            yield Finding(file.path, f"has {footer.rows} records, the ledger says {file.rows}")
        if footer.offsets is not None and footer.offsets != (file.first_offset, file.last_offset):
            first, last = footer.offsets
            yield Finding(
                file.path, f"has offsets {first} to {last}, the ledger {file.first_offset} to {file.last_offset}"
            )

    def _content(self, entry: Entry, receipt: Receipt, files: list[LakeFile], is_safe: bool) -> Iterator[Finding]:
        names = ", ".join(file.path for file in files)
        try:
            content = self._read([str(self._lake.locate(file)) for file in files], is_safe)
        except (Unreadable, LakeDamaged, OSError, pa.ArrowException) as error:
            yield Finding(str(receipt.range), f"{names} cannot be read: {error}")
            return
        self._checked.records += content.fingerprint.count
        if content.fingerprint != entry.fingerprint(receipt):
            yield _differs(receipt, names, content, is_old=not all(file.sha256 for file in files), entry=entry)
        if content.twice:
            yield Finding(str(receipt.range), f"{content.twice} offsets are there twice")

    def _read(self, paths: list[str], is_safe: bool) -> Content:
        """Read files in this process if their digests are right, otherwise in the separate one."""
        try:
            return contents.content(paths) if is_safe else self._inspector.content(paths)
        except (Unreadable, FileNotFoundError):
            if all(os.path.exists(path) for path in paths):
                raise
            raise Unreadable("a file was deleted or moved in the meantime") from None

    def _read_file(self, file: LakeFile, read: Callable[[Path], T]) -> T:
        """Read the file where it is now. Tries twice: an archiver may move it out of staging in between."""
        try:
            return read(self._lake.locate(file))
        except FileNotFoundError:
            return read(self._lake.locate(file))


def _differs(receipt: Receipt, names: str, content: Content, *, is_old: bool, entry: Entry) -> Finding:
    if is_old and content.has_replaced_names and content.fingerprint.count == receipt.count:
        return Finding(
            str(receipt.range),
            "names of headers were no UTF-8, and are other bytes in the files: an earlier version kept no fingerprint"
            " of that",
            is_wrong=False,
        )
    return Finding(str(receipt.range), f"{names} have {content.fingerprint}, the receipt {entry.fingerprint(receipt)}")
