"""The layout of an archive: names of folders and files, and the settings in `_ottla/lake.json`.

Values come in and names go out, and settings as JSON and back. This module touches no file.

    PATH/_ottla/lake.json                            the settings of the archive; written once
    PATH/_ottla/ledger/00000000000000000001.json     what was archived, entry by entry: the source of truth
    PATH/_ottla/published/00000000000000000001       mark: all files up to this entry are where readers look
    PATH/_ottla/staging/ATTEMPT/...                  files that no entry has recorded yet
    PATH/_ottla/set-aside/...                        what a repair has taken out of the archive
    PATH/_ottla/checkpoints/...                      offsets of Spark queries
    PATH/_ottla/replays/...                          notes of replays
    PATH/topic=clicks/date=2026-01-31/part-....parquet
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pyarrow as pa

from ottla.errors import ConfigError
from ottla.model import OffsetRange

VERSION = 1
OWN = "_ottla"
"""Readers skip names that begin with an underscore."""
SETTINGS = f"{OWN}/lake.json"
LEDGER = f"{OWN}/ledger"
PUBLISHED = f"{OWN}/published"
STAGING = f"{OWN}/staging"
ASIDE = f"{OWN}/set-aside"
CHECKPOINTS = f"{OWN}/checkpoints"
REPLAYS = f"{OWN}/replays"
DELTA_LOG = "_delta_log"
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""The folder of records without a value. pandas cannot read an archive that has both this and dates."""
NO_DATE, NO_HOUR = "1970-01-01", "00"
"""The folder of records without a readable time: a date that every reader accepts and that records do not have."""
SUFFIX = ".parquet"
STAGED = ".staged"
"""The suffix of staged files: DuckDB and Polars read every `**/*.parquet`, whatever the folder is called."""

SETTINGS_KEYS = frozenset({"version", "format", "partition_by", "event_time", "id"})
"""The keys of `lake.json` before it had a checksum."""
FOLDERS = {"topic": pa.string(), "partition": pa.int32(), "date": pa.date32(), "hour": pa.int32()}
"""What an archive can be partitioned by, with the type of the folder's value."""
_LONGEST_NAME = 120
"""The most characters of a topic in a file name: topics have up to 249, file names up to 255 with all else in them."""


class Format(Enum):
    """How readers find the files."""

    PARQUET = "parquet"
    """A folder of Parquet files; every file in it belongs to the archive."""
    DELTA = "delta"
    """The same files, listed by a Delta table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeSettings:
    """The settings of an archive. They never change.

    Raises `ConfigError` if `partition_by` has an unknown name or a name twice.
    """

    format: Format = Format.PARQUET
    partition_by: tuple[str, ...] = ("topic", "date")
    event_time: str = "record"
    """The time that `date` and `hour` are taken from: see `ottla.jobs.event_time`."""
    no_date: str | None = NO_DATE
    """The date of records without a readable time. Archives of earlier versions have None: a null in that column."""

    def __post_init__(self) -> None:
        if self.no_date not in (None, NO_DATE):
            raise ConfigError(f"records without a time have the date {NO_DATE}, not {self.no_date}")
        unknown = [name for name in self.partition_by if name not in FOLDERS]
        if unknown:
            raise ConfigError(
                f"an archive cannot be partitioned by {', '.join(unknown)}; accepted are {', '.join(FOLDERS)}"
            )
        if len(set(self.partition_by)) < len(self.partition_by):
            raise ConfigError(f"partition_by names something twice: {', '.join(self.partition_by)}")

    @property
    def needs_time(self) -> bool:
        """Whether a record's folder depends on its time."""
        return "date" in self.partition_by or "hour" in self.partition_by

    @property
    def file_schema(self) -> pa.Schema:
        """The columns in the files, without those that are folders: readers disagree about which of the two wins."""
        from ottla.wire.decode import SCHEMA  # imported here: it loads the kernels, which planning does not need

        return pa.schema([field for field in SCHEMA if field.name not in self.partition_by])

    @property
    def table_schema(self) -> pa.Schema:
        """The columns that readers see: those in the files, then the folders."""
        folders = [pa.field(name, FOLDERS[name]) for name in self.partition_by]
        return pa.schema([*self.file_schema, *folders])

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "version": VERSION,
            "format": self.format.value,
            "partition_by": list(self.partition_by),
            "event_time": self.event_time,
            "no_date": self.no_date,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> LakeSettings:
        """Return the value from what `to_json` returned."""
        return cls(
            format=Format(row["format"]),
            partition_by=tuple(row["partition_by"]),
            event_time=str(row["event_time"]),
            no_date=row.get("no_date"),
        )


def parse_format(text: Format | str) -> Format:
    """Parse `"parquet"` or `"delta"`. Raises `ConfigError` for anything else."""
    try:
        return Format(text)
    except ValueError:
        raise ConfigError(f"format is {text!r}; accepted are parquet and delta") from None


def parse_partition_by(text: str) -> tuple[str, ...]:
    """Parse `topic,date,hour`, or `none` for no folders."""
    if text.strip() == "none":
        return ()
    return tuple(part.strip() for part in text.split(","))


def folder(values: Mapping[str, str | None]) -> str:
    """Return `topic=clicks/date=2026-01-31`, relative to the archive; empty without values."""
    return "/".join(f"{name}={NO_VALUE if value is None else value}" for name, value in values.items())


def file_name(span: OffsetRange, part: int, *, with_topic: bool) -> str:
    """Return the name of a file. It depends on the range only, so that every attempt produces the same name."""
    topic = f"-{short(span.topic)}" if with_topic else ""
    return f"part-{span.partition:05d}-{span.start:020d}-{span.stop:020d}-{part:03d}{topic}{SUFFIX}"


@dataclass(frozen=True, slots=True)
class Named:
    """The content of a file according to its path."""

    topic: str
    """As in the path: shortened by `short`, unless a folder has the whole name."""
    partition: int
    stop: int


_NAME = re.compile(r"part-(\d{5,})-(\d{20})-(\d{20})-\d{3,}(?:-(.+))?" + re.escape(SUFFIX), re.ASCII)
_TOPIC_FOLDER = re.compile(r"(?:^|/)topic=([^/]+)/")


def named(path: str) -> Named | None:
    """Parse a path that `folder` and `file_name` produce. Return None for files of other tools."""
    match = _NAME.fullmatch(path.rpartition("/")[2])
    if match is None:
        return None
    topic_folder = _TOPIC_FOLDER.search(path)
    topic = match[4] if topic_folder is None else topic_folder[1]
    return None if topic is None else Named(topic, int(match[1]), int(match[3]))


def short(topic: str) -> str:
    """Return the topic as it appears in file names: shortened, with a checksum, if it is long."""
    if len(topic) <= _LONGEST_NAME:
        return topic
    return f"{topic[:_LONGEST_NAME]}~{zlib.crc32(topic.encode()):08x}"


def shown(value: Format | tuple[str, ...] | str) -> str:
    """Return a setting as text."""
    if isinstance(value, Format):
        return value.value
    return value if isinstance(value, str) else ",".join(value) or "none"
