"""How the job that archives a range travels to the nodes of a fleet: as plain values, without any credentials.

A node makes the job from what it was told and what it has of its own: brokers and how to log in there, and the archive
itself. What it was told is checked, since others can write to a store: the archive must be there, and lie where this
node may work; the brokers must be of the same cluster. Results are checked where they come back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

import msgspec

from ottla.config import Timeouts
from ottla.engines.fleet.job_notes import Row
from ottla.errors import InputError
from ottla.jobs.archive_range import Archived, ArchiveRange, Brokers
from ottla.lake.lake import Lake
from ottla.lake.layout import STAGING
from ottla.lake.values import LakeFile
from ottla.lake.writer import FileOptions
from ottla.model import Isolation

_RUN = re.compile(r"[0-9a-f]{32}")
_STAGED = re.compile(rf"{STAGING}/[0-9a-f]{{32}}-[0-9a-f]{{32}}/")


class _Told(msgspec.Struct, frozen=True, kw_only=True):
    """What a node is told of a job."""

    path: str
    run: str
    cluster: str | None
    isolation: int
    seconds: float
    """For which brokers may be away."""
    options: FileOptions


class ArchiveKind:
    """Jobs that archive, on this node's brokers."""

    name = "archive"

    def __init__(self, brokers: Brokers, *, folders: Iterable[Path] = ()) -> None:
        """Only archives in these folders are written to; without any, all that there are."""
        self._brokers = brokers
        self._folders = tuple(folder.resolve() for folder in folders)
        self._cluster_id: str | None = None

    def job_row(self, job: ArchiveRange, /) -> Row:
        """What a node needs to know of a job."""
        return {
            "path": job.path,
            "run": job.run,
            "cluster": self._cluster(),
            "isolation": int(job.brokers.isolation),
            "seconds": job.brokers.timeouts.total,
            "options": asdict(job.options),
        }

    def job(self, row: Row, /) -> ArchiveRange:
        """The job with this node's brokers; `InputError` if this node must not do it."""
        told = msgspec.convert(row, _Told)
        if not _RUN.fullmatch(told.run):
            raise InputError(f"the run {told.run!r} of a job is not the number of one")
        path = self._allowed(told.path)
        lake = Lake.open(path)
        here = self._cluster()
        if None not in (here, told.cluster) and here != told.cluster:
            raise InputError(f"the job is about cluster {told.cluster}, and this node works with cluster {here}")
        brokers = replace(self._brokers, timeouts=Timeouts(total=told.seconds), isolation=Isolation(told.isolation))
        return ArchiveRange(
            brokers=brokers, path=str(lake.path), settings=lake.settings, options=told.options, run=told.run
        )

    def result_row(self, result: Archived, /) -> Row:
        """What came of a range."""
        return result.to_json()

    def result(self, row: Row, /) -> Archived:
        """What `result_row` made plain; `InputError` if it names files that no such job has written."""
        try:
            found = Archived.from_json(row)
        except ValueError as error:  # such as a path that leads out of the archive
            raise InputError(f"a result names files that no job can have written: {error}") from error
        for file in found.files:
            _check(file)
        return found

    def _allowed(self, text: str) -> Path:
        path = Path(text)
        if not path.is_absolute():
            raise InputError(f"the archive {text!r} of a job is not named from the root on")
        real = path.resolve()
        if self._folders and not any(real.is_relative_to(folder) for folder in self._folders):
            raise InputError(f"the archive {text!r} is in none of the folders in which this node works")
        return path

    def _cluster(self) -> str | None:
        if self._cluster_id is None:
            with self._brokers.cluster() as cluster:
                self._cluster_id = cluster.metadata().cluster_id
        return self._cluster_id


def _check(file: LakeFile) -> None:
    if not _STAGED.match(file.staged):
        raise InputError(f"a result names files that no job can have written: {file.staged!r}")
