"""The content of a ledger as plain values with a JSON form: files, entries, gaps.

This module reads and writes no file. JSON from a ledger may have been changed by others, so types, paths and names are
checked: `from_json` raises ValueError (or msgspec's ValidationError, which is one) if something is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict

import msgspec

from ottla.lake.paths import data_path, staged_path, topic_name
from ottla.model import Fingerprint, OffsetRange, Receipt, TopicPartition


class _Span(TypedDict):
    topic: str
    partition: int
    start: int
    stop: int


class _File(_Span):
    path: str
    staged: str
    rows: int
    size_bytes: int
    values: dict[str, str | None]
    first_offset: int
    last_offset: int
    first_time: float
    last_time: float
    sha256: NotRequired[str]
    footer_sha256: NotRequired[str]


class _Receipt(_Span):
    fingerprint: str
    size_bytes: int
    first_time: float | None
    last_time: float | None
    host: str
    started: float
    seconds: float


class _Archived(TypedDict):
    receipt: _Receipt
    files: list[_File]
    untimed: int
    stored: NotRequired[str | None]


class _Gap(_Span):
    reason: str


class _Stored(_Span):
    fingerprint: str


class _WrittenBy(TypedDict):
    engine: str
    host: str
    query: str
    batch: int


class _Entry(TypedDict):
    number: int
    written: float
    written_by: _WrittenBy
    receipts: list[_Receipt]
    files: list[_File]
    gaps: list[_Gap]
    untimed: int
    topics: dict[str, str]
    positions: dict[str, dict[str, int]]
    stored: NotRequired[list[_Stored]]


ENTRY_KEYS = frozenset(_Entry.__annotations__)
"""The keys of an entry in JSON."""


def _range(row: Mapping[str, Any]) -> OffsetRange:
    if row["partition"] < 0:
        raise ValueError(f"there is no partition {row['partition']}")
    return OffsetRange(topic_name(row["topic"]), row["partition"], row["start"], row["stop"])


def _checked_receipt(row: Mapping[str, Any]) -> Receipt:
    _range(row)
    return Receipt.from_json(row)


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFile:
    """A file of the archive: records of one range, in offset order."""

    path: str
    """Relative to the archive."""
    staged: str
    """Where it was written first, relative to the archive."""
    range: OffsetRange
    rows: int
    size_bytes: int
    values: Mapping[str, str | None]
    """The values of its folders by name; None for no value."""
    first_offset: int
    last_offset: int
    first_time: float
    """The oldest timestamp in it, in seconds since 1970."""
    last_time: float
    sha256: str = ""
    """The digest of the whole file, in hexadecimal; empty in entries of earlier versions."""
    footer_sha256: str = ""
    """The digest of the Parquet footer alone."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "path": self.path,
            "staged": self.staged,
            "topic": self.range.topic,
            "partition": self.range.partition,
            "start": self.range.start,
            "stop": self.range.stop,
            "rows": self.rows,
            "size_bytes": self.size_bytes,
            "values": dict(self.values),
            "first_offset": self.first_offset,
            "last_offset": self.last_offset,
            "first_time": self.first_time,
            "last_time": self.last_time,
            "sha256": self.sha256,
            "footer_sha256": self.footer_sha256,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> LakeFile:
        """Return the value from what `to_json` returned. Raises ValueError if a field is wrong."""
        row = msgspec.convert(row, _File)
        return cls(
            path=data_path(row["path"]),
            staged=staged_path(row["staged"]),
            range=_range(row),
            rows=row["rows"],
            size_bytes=row["size_bytes"],
            values=row["values"],
            first_offset=row["first_offset"],
            last_offset=row["last_offset"],
            first_time=row["first_time"],
            last_time=row["last_time"],
            sha256=row.get("sha256", ""),
            footer_sha256=row.get("footer_sha256", ""),
        )


@dataclass(frozen=True, slots=True)
class Archived:
    """The result of a task: the receipt of its range, and the files that it staged."""

    receipt: Receipt
    files: tuple[LakeFile, ...]
    untimed: int = 0
    """The number of records without a readable event time."""
    stored: Fingerprint | None = None
    """The fingerprint of the records in the files, if it differs from the log's: header names are text in Parquet, and
    bytes that are not UTF-8 are replaced."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "receipt": self.receipt.to_json(),
            "files": [file.to_json() for file in self.files],
            "untimed": self.untimed,
            "stored": None if self.stored is None else str(self.stored),
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Archived:
        """Return the value from what `to_json` returned. Raises ValueError if a field is wrong."""
        row = msgspec.convert(row, _Archived)
        files = tuple(LakeFile.from_json(file) for file in row["files"])
        text = row.get("stored")
        stored = None if text is None else Fingerprint.parse(text)
        return cls(_checked_receipt(row["receipt"]), files, row["untimed"], stored)


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets that are not in the archive and never will be, with the reason."""

    range: OffsetRange
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "topic": self.range.topic,
            "partition": self.range.partition,
            "start": self.range.start,
            "stop": self.range.stop,
            "reason": self.reason,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Gap:
        """Return the value from what `to_json` returned. Raises ValueError if a field is wrong."""
        return cls(_range(row), row["reason"])


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenBy:
    """Who recorded an entry: for people who read it, and for a Spark query that looks for its last batch."""

    engine: str
    host: str
    query: str = ""
    batch: int = -1

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"engine": self.engine, "host": self.host, "query": self.query, "batch": self.batch}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> WrittenBy:
        """Return the value from what `to_json` returned. Raises ValueError if a field is wrong."""
        return cls(engine=row["engine"], host=row["host"], query=row["query"], batch=row["batch"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One step of the archive: ranges that were added together."""

    number: int
    """From 1, without holes."""
    written: float
    """Seconds since 1970."""
    written_by: WrittenBy
    receipts: tuple[Receipt, ...]
    files: tuple[LakeFile, ...]
    gaps: tuple[Gap, ...] = ()
    untimed: int = 0
    topics: Mapping[str, str] = field(default_factory=dict)
    """Topic ids by topic. A topic that was deleted and created again has another id."""
    positions: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The next offset of every partition after this entry. Every entry has all of them, so the last entry alone says
    how far the archive is."""
    stored: Mapping[OffsetRange, Fingerprint] = field(default_factory=dict)
    """Fingerprints of ranges in the files, where they differ from the receipt's."""

    def fingerprint(self, receipt: Receipt) -> Fingerprint:
        """Return the fingerprint that the files of a range should have."""
        return self.stored.get(receipt.range, receipt.fingerprint)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        positions: dict[str, dict[str, int]] = {}
        for (topic, partition), offset in sorted(self.positions.items()):
            positions.setdefault(topic, {})[str(partition)] = offset
        return {
            "number": self.number,
            "written": self.written,
            "written_by": self.written_by.to_json(),
            "receipts": [receipt.to_json() for receipt in self.receipts],
            "files": [file.to_json() for file in self.files],
            "gaps": [gap.to_json() for gap in self.gaps],
            "untimed": self.untimed,
            "topics": dict(self.topics),
            "positions": positions,
            "stored": [
                {"topic": span.topic, "partition": span.partition, "start": span.start, "stop": span.stop}
                | {"fingerprint": str(fingerprint)}
                for span, fingerprint in self.stored.items()
            ],
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Entry:
        """Return the value from what `to_json` returned. Raises ValueError if a field is wrong."""
        row = msgspec.convert(row, _Entry)
        positions = {
            TopicPartition(topic_name(topic), int(partition)): offset
            for topic, offsets in row["positions"].items()
            for partition, offset in offsets.items()
        }
        return cls(
            number=row["number"],
            written=row["written"],
            written_by=WrittenBy.from_json(row["written_by"]),
            receipts=tuple(_checked_receipt(receipt) for receipt in row["receipts"]),
            files=tuple(LakeFile.from_json(file) for file in row["files"]),
            gaps=tuple(Gap.from_json(gap) for gap in row["gaps"]),
            untimed=row["untimed"],
            topics=row["topics"],
            positions=positions,
            stored={_range(stored): Fingerprint.parse(stored["fingerprint"]) for stored in row.get("stored", ())},
        )
