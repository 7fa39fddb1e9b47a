"""What a streaming write remembers on disk: which transactions make up a batch, and what was in the last ones.

A list of shares comes in and is on disk, whole, when the call returns; from then on the batch counts as written and
whoever reads the log ends the list. One folder for each query; no two drivers can record different lists for one batch.
It knows where the query writes to, so that it cannot serve two writes; and number and fingerprint of the records of
its last batches, so that a batch with a number that was done before is known by what is in it.
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
"""Batches whose content is known: a checkpoint keeps as many (spark.sql.streaming.minBatchesToRetain)."""


class CommitLogFailed(OttlaError):
    """The log of a streaming write cannot be read or written; the text says where and why."""


class AlreadyRecorded(CommitLogFailed):
    """Another driver has recorded this batch in the meantime."""


class AnotherUse(CommitLogFailed):
    """The log is that of another write, or of a batch with other records."""


@dataclass(frozen=True, slots=True)
class Record:
    """The list of a batch; `round` counts how often it was replaced."""

    query: str
    batch: int
    shares: tuple[TaskShare, ...]
    cluster: str
    """The id of the Kafka cluster that has the transactions."""
    round: int = 0

    @property
    def fingerprint(self) -> Fingerprint:
        """Of all its records."""
        return sum((share.fingerprint for share in self.shares), Fingerprint())

    @property
    def lost(self) -> dict[int, TaskShare]:
        """By task, what must be written again."""
        return {share.task: share for share in self.shares if share.fate is Fate.LOST}

    @property
    def is_settled(self) -> bool:
        """Whether every transaction is known to be over, one way or the other."""
        return all(share.fate is not Fate.PREPARED for share in self.shares)


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a query's writing is."""

    done: int
    """The last batch that is completely written, -1 for none."""
    record: Record | None
    """A list that is not completely ended."""
    round: int = 0
    """Under which the next list of the batch is recorded: the name of an earlier one is never used again, so that a
    driver that was believed dead can neither replace nor remove what another has recorded since."""
    written: Mapping[int, Fingerprint] = field(default_factory=dict)
    """What was in the last batches that are done."""
    target: str | None = None
    """What the log was made for; None as long as nothing was recorded."""


class CommitLog:
    """The log of one query."""

    def __init__(self, folder: Path, query: str) -> None:
        self.folder = folder / query
        self.query = query

    @staticmethod
    def queries(folder: Path) -> list[str]:
        """Every query that has a log in this folder."""
        return sorted(one.name for one in folder.iterdir() if one.is_dir()) if folder.is_dir() else []

    def standing(self) -> Standing:
        """As it is now."""
        done = max(self._done(), default=-1)
        found = Standing(done, None, 0, self._written(done), self._target())
        records = sorted((batch, number) for batch, number in self._records() if batch > done)
        if not records:
            return found
        record = self._read(*records[-1])
        return replace(found, record=record) if record.shares else replace(found, round=record.round + 1)

    def claim(self, target: str) -> None:
        """The log is for this target from now on; AnotherUse when it is for another one."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._put(_TARGET, target)
        except FileExistsError:
            check_target(self.folder, self._target(), target)
        except OSError as exc:
            raise CommitLogFailed(f"{self.folder} cannot be written to: {exc}") from exc

    def record(self, record: Record) -> None:
        """Puts the list on disk; AlreadyRecorded when there is one of the same batch and round."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            text = {
                "format": _FORMAT,
                "query": record.query,
                "batch": record.batch,
                "cluster": record.cluster,
                "shares": [share.to_json() for share in record.shares],
            }
            self._put(_record_name(record.batch, record.round), json.dumps(text))
        except FileExistsError as exc:
            raise AlreadyRecorded(
                f"batch {record.batch} of query {record.query} was recorded by another driver in the meantime: two run"
                f" on the same checkpoint ({self.folder}). Stop one of them; the other may be restarted"
            ) from exc
        except OSError as exc:
            raise CommitLogFailed(f"batch {record.batch} cannot be recorded in {self.folder}: {exc}") from exc

    def replace(self, record: Record, shares: Sequence[TaskShare]) -> Record:
        """The same batch with what is known of its shares now."""
        newer = replace(record, shares=tuple(shares), round=record.round + 1)
        self.record(newer)
        return newer

    def forget(self, record: Record) -> Standing:
        """Nothing of this batch was written: it will be, from the start. An empty list says so."""
        self.replace(record, ())
        return self.standing()

    def finish(self, record: Record) -> None:
        """The batch is completely written. Older marks and lists are of no use any more."""
        batch = record.batch
        written = {**self._written(max(self._done(), default=-1)), batch: record.fingerprint}
        kept = sorted(written.items())[-_REMEMBERED:]
        text = {"format": _FORMAT, "written": {str(number): str(content) for number, content in kept}}
        try:
            self._put(_done_name(batch), json.dumps(text))
        except FileExistsError:
            pass
        except OSError as exc:
            raise CommitLogFailed(f"batch {batch} cannot be marked as written in {self.folder}: {exc}") from exc
        old = [_record_name(*one) for one in self._records() if one[0] <= batch]
        self._remove([*old, *(_done_name(one) for one in self._done() if one < batch)])

    def path(self, record: Record) -> Path:
        """The file that a list is in."""
        return self.folder / _record_name(record.batch, record.round)

    def _read(self, batch: int, number: int) -> Record:
        path = self.folder / _record_name(batch, number)
        try:
            found = json.loads(path.read_bytes())
            if found["format"] != _FORMAT:
                raise CommitLogFailed(f"{path} has format {found['format']}: it was written by a newer Ottla")
            shares = tuple(TaskShare.from_json(row) for row in found["shares"])
            return Record(self.query, batch, shares, found["cluster"], number)
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise CommitLogFailed(f"{path}, the list of transactions of batch {batch}, cannot be read: {exc}") from exc

    def _written(self, done: int) -> dict[int, Fingerprint]:
        path = self.folder / _done_name(done)
        try:
            found = json.loads(path.read_bytes())
            return {int(number): Fingerprint.parse(content) for number, content in found["written"].items()}
        except FileNotFoundError:
            return {}  # nothing is done yet, or another driver has just put a later mark
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
            raise CommitLogFailed(f"{path}, the mark of batch {done}, cannot be read: {exc}") from exc

    def _target(self) -> str | None:
        try:
            return (self.folder / _TARGET).read_text()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as exc:
            raise CommitLogFailed(f"{self.folder / _TARGET} cannot be read: {exc}") from exc

    def _put(self, name: str, text: str) -> None:
        """A new file, whole and on disk; FileExistsError when there is one."""
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
        return [(int(one[1]), int(one[2])) for name in self._names() if (one := _RECORD.fullmatch(name))]

    def _done(self) -> list[int]:
        return [int(one[1]) for name in self._names() if (one := _DONE.fullmatch(name))]


def check_target(folder: Path, known: str | None, wanted: str) -> None:
    """AnotherUse when a log is for something else than what is to be written."""
    if known is not None and known != wanted:
        raise AnotherUse(
            f"{folder} is the commit log of a write to {known}, and cannot be that of one to {wanted} as well: the"
            " second would take the batches of the first for its own. Give every write of a query a commitLog of its"
            " own; a query that shall write elsewhere from now on needs a new one, too"
        )


def _record_name(batch: int, number: int) -> str:
    return f"batch-{batch:020d}.{number}"


def _done_name(batch: int) -> str:
    return f"done-{batch:020d}"
