"""Holds an archive against itself, and against the brokers: is everything there that the ledger says, and nothing else?

A lake comes in, findings go out one by one: what is wrong, where exactly, and what was compared. Nothing is changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ottla.errors import LakeDamaged, OffsetsLost
from ottla.fetch.reader import Reader
from ottla.lake import layout
from ottla.lake.lake import Lake
from ottla.lake.layout import Format
from ottla.lake.status import UNEXPLAINED, summarize
from ottla.lake.values import Entry, LakeFile
from ottla.model import Fingerprint, OffsetRange, Receipt
from ottla.wire.columns import from_arrow
from ottla.wire.encode import fingerprint_of

_ROWS = 65_536
_UNREADABLE = ("is missing", "cannot be read")


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


def verify_files(lake: Lake, checked: Checked, *, deep: bool) -> Iterator[Finding]:
    """The receipts against the files: sizes, rows and offsets from their footers; `deep` reads every record."""
    known: set[str] = set()
    for entry in lake.ledger.entries():
        checked.entries += 1
        known.update(file.path for file in entry.files)
        yield from _entry(lake, entry, checked, deep=deep)
    for status in summarize(lake.ledger.entries()):
        for overlap in status.overlaps:
            yield Finding(str(overlap), "is in the archive twice")
        for gap in status.gaps:
            if gap.reason == UNEXPLAINED:
                yield Finding(str(gap.range), "is missing between two archived ranges")
    for path in sorted(_data_files(lake) - known):
        yield Finding(path, "is not in the ledger: it was put there by somebody else")
    if lake.settings.format is Format.DELTA:
        yield from _delta(lake, known)


def verify_brokers(lake: Lake, reader: Reader, checked: Checked, *, topics: Iterable[str] = ()) -> Iterator[Finding]:
    """The receipts against the logs: every range is read again and its fingerprint compared."""
    wanted = frozenset(topics)
    begins: dict[str, dict[Any, int]] = {}
    for entry in lake.ledger.entries():
        for receipt in entry.receipts:
            one = receipt.range
            if wanted and one.topic not in wanted:
                continue
            if one.topic not in begins:
                begins[one.topic] = {**reader.offsets(one.topic, "earliest")}
            yield from _logged(reader, receipt, begins[one.topic].get(one.topic_partition), checked)


def fingerprint(records: pa.RecordBatch | pa.Table) -> Fingerprint:
    """That of the records in columns key, value and headers."""
    if not records.num_rows:
        return Fingerprint()
    columns = from_arrow(
        records.column("value"), key=records.column("key"), headers=records.column("headers"), timestamp=None
    )
    return fingerprint_of(columns)


def _logged(reader: Reader, receipt: Receipt, begin: int | None, checked: Checked) -> Iterator[Finding]:
    one = receipt.range
    if begin is None:
        yield Finding(str(one), "the topic has no such partition any more", is_wrong=False)
        return
    if begin >= one.stop:
        yield Finding(str(one), "is not in the log any more: nothing to compare with", is_wrong=False)
        return
    if begin > one.start:
        yield Finding(str(one), f"only offsets from {begin} on are left in the log", is_wrong=False)
        return
    try:
        logged = reader.fingerprint(one)
    except OffsetsLost as error:
        yield Finding(str(one), f"cannot be read any more: {error.reason}", is_wrong=False)
        return
    checked.ranges += 1
    checked.records += logged.count
    if logged != receipt.fingerprint:
        yield Finding(str(one), f"the log has {logged}, the archive has {receipt.fingerprint}")


def _entry(lake: Lake, entry: Entry, checked: Checked, *, deep: bool) -> Iterator[Finding]:
    of_range: dict[OffsetRange, list[LakeFile]] = {}
    for file in entry.files:
        of_range.setdefault(file.range, []).append(file)
    for receipt in entry.receipts:
        files = sorted(of_range.pop(receipt.range, []), key=lambda file: file.first_offset)
        checked.ranges += 1
        is_readable = True
        for file in files:
            for fault in _file(lake, file, checked):
                is_readable &= not fault.what.startswith(_UNREADABLE)
                yield fault
        rows = sum(file.rows for file in files)
        if rows != receipt.count:
            yield Finding(str(receipt.range), f"its files have {rows} records, its receipt {receipt.count}")
        elif deep and is_readable:
            yield from _content(lake, receipt, files, checked)
    for one in of_range:
        yield Finding(f"entry {entry.number}", f"has files of {one} and no receipt for it")


def _file(lake: Lake, file: LakeFile, checked: Checked) -> Iterator[Finding]:
    checked.files += 1
    try:
        path = lake.locate(file)
        size = os.stat(path).st_size
        footer = pq.read_metadata(path)
    except FileNotFoundError:
        yield Finding(file.path, _UNREADABLE[0])
        return
    except LakeDamaged as error:
        yield Finding(file.path, f"{_UNREADABLE[1]}: {error.reason}")
        return
    except (OSError, pa.ArrowException) as error:
        yield Finding(file.path, f"{_UNREADABLE[1]}: {error}")
        return
    if size != file.size_bytes:
        yield Finding(file.path, f"has {size} bytes, the ledger says {file.size_bytes}")
    if footer.num_rows != file.rows:
        yield Finding(file.path, f"has {footer.num_rows} records, the ledger says {file.rows}")
    offsets = _offsets(footer)
    if offsets is not None and offsets != (file.first_offset, file.last_offset):
        yield Finding(
            file.path, f"has offsets {offsets[0]} to {offsets[1]}, the ledger {file.first_offset} to {file.last_offset}"
        )


def _offsets(footer: Any) -> tuple[int, int] | None:
    """The smallest and the largest offset, from the statistics of the row groups."""
    at = footer.schema.to_arrow_schema().get_field_index("offset")
    found = [footer.row_group(number).column(at).statistics for number in range(footer.num_row_groups)]
    if not found or any(one is None or not one.has_min_max for one in found):
        return None
    return min(one.min for one in found), max(one.max for one in found)


def _content(lake: Lake, receipt: Receipt, files: list[LakeFile], checked: Checked) -> Iterator[Finding]:
    total = Fingerprint()
    offsets: list[pa.Array] = []
    columns = ["key", "value", "headers", "offset"]
    for file in files:
        try:
            with pq.ParquetFile(lake.locate(file)) as opened:
                for records in opened.iter_batches(_ROWS, columns=columns):
                    total += fingerprint(records)
                    offsets.append(records.column("offset"))
        except (OSError, pa.ArrowException) as error:
            yield Finding(file.path, f"cannot be read: {error}")
            return
    checked.records += total.count
    if total != receipt.fingerprint:
        names = ", ".join(file.path for file in files)
        yield Finding(str(receipt.range), f"{names} have {total}, the receipt {receipt.fingerprint}")
    seen = pa.chunked_array(offsets, pa.int64())
    if len(seen.unique()) != len(seen):
        yield Finding(str(receipt.range), f"{len(seen) - len(seen.unique())} offsets are there twice")


def _data_files(lake: Lake) -> set[str]:
    found: set[str] = set()
    for folder, folders, names in os.walk(lake.path):
        folders[:] = [name for name in folders if not name.startswith(("_", "."))]
        inside = os.path.relpath(folder, lake.path)
        found |= {os.path.normpath(os.path.join(inside, name)) for name in names if name.endswith(layout.SUFFIX)}
    return found


def _delta(lake: Lake, known: set[str]) -> Iterator[Finding]:
    from ottla.lake import delta

    live = delta.live_files(lake.path)
    for path in sorted(known - live):
        yield Finding(path, "is in the ledger and not in the Delta table")
    for path in sorted(live - known):
        yield Finding(path, "is in the Delta table and not in the ledger")
