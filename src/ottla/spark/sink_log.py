"""The commit log of a streaming write: which transactions make up a batch, and what the last batches contained.

A list of task shares comes in and is completely on disk when the call returns. From then on the batch counts as
written, and the next driver to read the log ends its transactions. Each query has a folder; two drivers cannot record
different lists for one batch. The log also stores the target, so that it cannot serve two writes, and count and
fingerprint of the last batches, so that a repeated batch can be compared. File names and fields are persisted: do not
rename them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ottla.errors import OttlaError
from ottla.files import create_whole, sync
from ottla.model import Fingerprint
from ottla.spark.two_phase import Fate, TaskShare

_RECORD = re.compile(r"batch-(\d{20})\.(\d+)")
_DONE = re.compile(r"done-(\d{20})")
_TARGET = "target"
_FORMAT = 1
_REMEMBERED = 100
"""Batches whose fingerprint is kept: as many as a checkpoint keeps (spark.sql.streaming.minBatchesToRetain)."""


class CommitLogFailed(OttlaError):
    """The commit log cannot be read or written. The text says where and why."""


class AlreadyRecorded(CommitLogFailed):
    """Another driver recorded this batch in the meantime."""


class WrongCommitLog(CommitLogFailed):
    """The log belongs to another write, or has other records for the batch."""


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """The recorded task shares of a batch. `round` counts how often the record was replaced."""

    query: str
    batch: int
    shares: tuple[TaskShare, ...]
    cluster: str
    """Id of the Kafka cluster that has the transactions."""
    round: int = 0

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of all its records."""
        return sum((share.fingerprint for share in self.shares), Fingerprint())

    @property
    def lost(self) -> dict[int, TaskShare]:
        """The shares that must be written again, by task."""
        return {share.task: share for share in self.shares if share.fate is Fate.LOST}

    @property
    def is_settled(self) -> bool:
        """Whether every transaction is known to be committed or lost."""
        return all(share.fate is not Fate.PREPARED for share in self.shares)


@dataclass(frozen=True, slots=True)
class LogState:
    """What the log of a query says."""

    done: int
    """The last batch that is completely written, -1 if none is."""
    record: BatchRecord | None
    """A batch whose transactions are not all committed."""
    round: int = 0
    """The round of the batch's next record. A file name is never reused, so that a driver that was believed dead can
    neither replace nor remove what another driver has recorded since."""
    written: Mapping[int, Fingerprint] = field(default_factory=dict)
    """Fingerprints of the last written batches."""
    target: str | None = None
    """What the log is for; None if nothing was recorded yet."""


class CommitLog:
    """The log of one query. Every method raises `CommitLogFailed` if the folder cannot be read or written."""

    def __init__(self, folder: Path, query: str) -> None:
        self.folder = folder / query
        self.query = query

    @staticmethod
    def queries(folder: Path) -> list[str]:
        """The queries that have a log in this folder."""
        return sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []

    def state(self) -> LogState:
        """Read the log."""
        done = max(self._done(), default=-1)
        state = LogState(done, None, 0, self._written(done), self._target())
        records = sorted((batch, round_) for batch, round_ in self._records() if batch > done)
        if not records:
            return state
        record = self._read(*records[-1])
        # A record without shares means that nothing of the batch was written (`forget`).
        return replace(state, record=record) if record.shares else replace(state, round=record.round + 1)

    def claim(self, target: str) -> None:
        """Reserve the log for a target. Raises `WrongCommitLog` if it is for another one."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._create(_TARGET, target)
        except FileExistsError:
            check_target(self.folder, self._target(), target)
        except OSError as exc:
            raise CommitLogFailed(f"{self.folder} cannot be written to: {exc}") from exc

    def record(self, record: BatchRecord) -> None:
        """Write a record to disk. Raises `AlreadyRecorded` if the batch and round have one."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            content = {
                "format": _FORMAT,
                "query": record.query,
                "batch": record.batch,
                "cluster": record.cluster,
                "shares": [share.to_json() for share in record.shares],
            }
            self._create(_record_name(record.batch, record.round), json.dumps(content))
        except FileExistsError as exc:
            raise AlreadyRecorded(
                f"batch {record.batch} of query {record.query} was recorded by another driver in the meantime: two"
                f" drivers run on the same checkpoint ({self.folder}). Stop one of them; the other can be restarted"
            ) from exc
        except OSError as exc:
            raise CommitLogFailed(f"batch {record.batch} cannot be recorded in {self.folder}: {exc}") from exc

    def replace(self, record: BatchRecord, shares: Sequence[TaskShare]) -> BatchRecord:
        """Record the batch again with the current shares. Raises `AlreadyRecorded` if another driver did."""
        newer = replace(record, shares=tuple(shares), round=record.round + 1)
        self.record(newer)
        return newer

    def forget(self, record: BatchRecord) -> LogState:
        """Record that nothing of this batch was written, as an empty list; it will be written from the start."""
        self.replace(record, ())
        return self.state()

    def finish(self, record: BatchRecord) -> None:
        """Mark the batch as completely written, and remove older marks and records."""
        batch = record.batch
        written = {**self._written(max(self._done(), default=-1)), batch: record.fingerprint}
        kept = sorted(written.items())[-_REMEMBERED:]
        content = {"format": _FORMAT, "written": {str(number): str(fingerprint) for number, fingerprint in kept}}
        try:
            self._create(_done_name(batch), json.dumps(content))
        except FileExistsError:
            pass  # another driver finished it
        except OSError as exc:
            raise CommitLogFailed(f"batch {batch} cannot be marked as written in {self.folder}: {exc}") from exc
        records = [_record_name(number, round_) for number, round_ in self._records() if number <= batch]
        marks = [_done_name(number) for number in self._done() if number < batch]
        self._remove([*records, *marks])

    def path(self, record: BatchRecord) -> Path:
        """The file of a record."""
        return self.folder / _record_name(record.batch, record.round)

    def _read(self, batch: int, round_: int) -> BatchRecord:
        path = self.folder / _record_name(batch, round_)
        try:
            content = json.loads(path.read_bytes())
            if content["format"] != _FORMAT:
                raise CommitLogFailed(f"{path} has format {content['format']}: it was written by a newer Ottla")
            shares = tuple(TaskShare.from_json(row) for row in content["shares"])
            return BatchRecord(self.query, batch, shares, content["cluster"], round_)
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise CommitLogFailed(f"{path}, the list of transactions of batch {batch}, cannot be read: {exc}") from exc

    def _written(self, done: int) -> dict[int, Fingerprint]:
        path = self.folder / _done_name(done)
        try:
            content = json.loads(path.read_bytes())
            return {int(number): Fingerprint.parse(text) for number, text in content["written"].items()}
        except FileNotFoundError:
            return {}  # nothing is done yet, or another driver has just replaced the mark by a later one
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
            raise CommitLogFailed(f"{path}, the mark of batch {done}, cannot be read: {exc}") from exc

    def _target(self) -> str | None:
        try:
            return (self.folder / _TARGET).read_text()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as exc:
            raise CommitLogFailed(f"{self.folder / _TARGET} cannot be read: {exc}") from exc

    def _create(self, name: str, text: str) -> None:
        """Create a file, complete and on disk. Raises `FileExistsError` if it exists."""
        create_whole(self.folder / name, text.encode())

    def _remove(self, names: Sequence[str]) -> None:
        try:
            for name in names:
                (self.folder / name).unlink(missing_ok=True)
            sync(self.folder)
        except OSError as exc:
            raise CommitLogFailed(f"old files in {self.folder} cannot be removed: {exc}") from exc

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.folder)
        except FileNotFoundError:
            return []
        except OSError as exc:
            raise CommitLogFailed(f"{self.folder} cannot be read: {exc}") from exc

    def _records(self) -> list[tuple[int, int]]:
        """Batch and round of every record."""
        return [(int(match[1]), int(match[2])) for name in self._names() if (match := _RECORD.fullmatch(name))]

    def _done(self) -> list[int]:
        """The batches that are marked as written."""
        return [int(match[1]) for name in self._names() if (match := _DONE.fullmatch(name))]


def check_target(folder: Path, known: str | None, target: str) -> None:
    """Raise `WrongCommitLog` if the log is for another target."""
    if known is not None and known != target:
        raise WrongCommitLog(
            f"{folder} is the commit log of a write to {known} and cannot also serve a write to {target}: the second"
            " would take the batches of the first for its own. Give every write of a query its own commitLog; a query"
            " that changes its target needs a new one, too"
        )


def _record_name(batch: int, round_: int) -> str:
    return f"batch-{batch:020d}.{round_}"


def _done_name(batch: int) -> str:
    return f"done-{batch:020d}"
