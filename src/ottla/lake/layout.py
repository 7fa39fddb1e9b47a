"""Where everything lies in an archive: names of folders and files, and what `_ottla/lake.json` says of the whole.

Values come in and names go out, and the settings as JSON and back. No file is touched here.

    PATH/_ottla/lake.json                            what kind of archive this is; written once
    PATH/_ottla/ledger/00000000000000000001.json     what was archived, entry by entry: the one truth
    PATH/_ottla/published/00000000000000000001       up to this entry, all was moved to where readers look
    PATH/_ottla/staging/ATTEMPT/...                  files that nobody has recorded yet
    PATH/_ottla/set-aside/...                        what 'ottla lake repair' has taken out of the archive
    PATH/_ottla/checkpoints/...                      where queries of Spark keep their offsets
    PATH/_ottla/replays/...                          how far replays were
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
"""Readers pass over names that begin with an underscore."""
SETTINGS = f"{OWN}/lake.json"
LEDGER = f"{OWN}/ledger"
PUBLISHED = f"{OWN}/published"
STAGING = f"{OWN}/staging"
ASIDE = f"{OWN}/set-aside"
CHECKPOINTS = f"{OWN}/checkpoints"
REPLAYS = f"{OWN}/replays"
DELTA_LOG = "_delta_log"
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""The folder of records that have no value there. pandas cannot read an archive with both this and dates."""
NO_DATE, NO_HOUR = "1970-01-01", "00"
"""Where records without a readable time are: a date that every reader takes, and that no record has."""
SUFFIX = ".parquet"
STAGED = ".staged"
"""After the name of a staged file: DuckDB and Polars take every `**/*.parquet`, whatever the folder is called."""

SETTINGS_KEYS = frozenset({"version", "format", "partition_by", "event_time", "id"})
"""Of `lake.json` before it had a checksum."""
FOLDERS = {"topic": pa.string(), "partition": pa.int32(), "date": pa.date32(), "hour": pa.int32()}
"""By what an archive may be divided, and the type that the folder's name stands for."""
_LONGEST_NAME = 120
"""Of a topic within a file's name: file systems end at 255 bytes, topics at 249."""


class Format(Enum):
    """How readers find the files."""

    PARQUET = "parquet"
    """A folder of Parquet files: every file that is there belongs to it."""
    DELTA = "delta"
    """The same, and a Delta table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeSettings:
    """What an archive is, for as long as it exists."""

    format: Format = Format.PARQUET
    partition_by: tuple[str, ...] = ("topic", "date")
    event_time: str = "record"
    """Which time `date` and `hour` are of: see `ottla.jobs.event_time`."""
    no_date: str | None = NO_DATE
    """The date of records without a readable time; None in archives of earlier versions, which have none there."""

    def __post_init__(self) -> None:
        if self.no_date not in (None, NO_DATE):
            raise ConfigError(f"records without a time have the date {NO_DATE}, not {self.no_date}")
        unknown = [name for name in self.partition_by if name not in FOLDERS]
        if unknown:
            raise ConfigError(
                f"an archive cannot be divided by {', '.join(unknown)}; accepted are {', '.join(FOLDERS)}"
            )
        if len(set(self.partition_by)) < len(self.partition_by):
            raise ConfigError(f"partition_by names something twice: {', '.join(self.partition_by)}")

    @property
    def needs_time(self) -> bool:
        """Whether a record's place depends on its time."""
        return "date" in self.partition_by or "hour" in self.partition_by

    @property
    def file_schema(self) -> pa.Schema:
        """The columns inside the files. Those that are folders are not: readers disagree about which of two wins."""
        from ottla.wire.decode import SCHEMA  # brings the kernels along, which planning does not need

        return pa.schema([field for field in SCHEMA if field.name not in self.partition_by])

    @property
    def table_schema(self) -> pa.Schema:
        """The columns that readers see: those of the files, then the folders."""
        folders = [pa.field(name, FOLDERS[name]) for name in self.partition_by]
        return pa.schema([*self.file_schema, *folders])

    def to_json(self) -> dict[str, Any]:
        """As plain values that `from_json` takes back."""
        return {
            "version": VERSION,
            "format": self.format.value,
            "partition_by": list(self.partition_by),
            "event_time": self.event_time,
            "no_date": self.no_date,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> LakeSettings:
        """What `to_json` made of one."""
        return cls(
            format=Format(row["format"]),
            partition_by=tuple(row["partition_by"]),
            event_time=str(row["event_time"]),
            no_date=row.get("no_date"),
        )


def parse_format(text: Format | str) -> Format:
    """`"parquet"`, `"delta"`, or the value itself."""
    try:
        return Format(text)
    except ValueError:
        raise ConfigError(f"format is {text!r}; accepted are parquet and delta") from None


def parse_partition_by(text: str) -> tuple[str, ...]:
    """`topic,date,hour`, or `none`."""
    if text.strip() == "none":
        return ()
    return tuple(part.strip() for part in text.split(","))


def folder(values: Mapping[str, str | None]) -> str:
    """`topic=clicks/date=2026-01-31`, relative to the archive; empty when it is not divided."""
    return "/".join(f"{name}={NO_VALUE if value is None else value}" for name, value in values.items())


def file_name(one: OffsetRange, part: int, *, with_topic: bool) -> str:
    """The same for the same range, whoever writes it: a file is named by what it holds, never by an attempt."""
    topic = f"-{short(one.topic)}" if with_topic else ""
    return f"part-{one.partition:05d}-{one.start:020d}-{one.stop:020d}-{part:03d}{topic}{SUFFIX}"


@dataclass(frozen=True, slots=True)
class Named:
    """What the path of a file says of its content."""

    topic: str
    """As it is in the path: shortened where `short` would shorten it and no folder has it."""
    partition: int
    stop: int


_NAME = re.compile(r"part-(\d{5,})-(\d{20})-(\d{20})-\d{3,}(?:-(.+))?" + re.escape(SUFFIX), re.ASCII)
_TOPIC_FOLDER = re.compile(r"(?:^|/)topic=([^/]+)/")


def named(path: str) -> Named | None:
    """What the path says, if it is one that `folder` and `file_name` make; None for files of others."""
    match = _NAME.fullmatch(path.rpartition("/")[2])
    if match is None:
        return None
    inside = _TOPIC_FOLDER.search(path)
    topic = match[4] if inside is None else inside[1]
    return None if topic is None else Named(topic, int(match[1]), int(match[3]))


def short(topic: str) -> str:
    """The topic as it is in names of files."""
    if len(topic) <= _LONGEST_NAME:
        return topic
    return f"{topic[:_LONGEST_NAME]}~{zlib.crc32(topic.encode()):08x}"


def shown(value: Format | tuple[str, ...] | str) -> str:
    """A setting as it is written on a command line."""
    if isinstance(value, Format):
        return value.value
    return value if isinstance(value, str) else ",".join(value) or "none"
