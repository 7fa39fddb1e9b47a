"""How the archive job travels to the nodes of a fleet: as plain values, without credentials.

A node builds the job from the values in the store and from its own configuration: brokers, credentials, the archive.
Others can write to a store, so a node checks the values: the archive must exist, in a folder where this node may work,
and the brokers must belong to the same cluster. The driver checks results in the same way.
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


class _JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """A job as plain values. The field names are those in the store."""

    path: str
    run: str
    cluster: str | None
    isolation: int
    seconds: float
    """How long brokers may be away."""
    options: FileOptions


class ArchiveKind:
    """The kind of job that archives a range, with this node's brokers."""

    name = "archive"

    def __init__(self, brokers: Brokers, *, folders: Iterable[Path] = ()) -> None:
        """Restrict this node to archives in `folders`. Without any, it works on every archive."""
        self._brokers = brokers
        self._folders = tuple(folder.resolve() for folder in folders)
        self._cluster_id: str | None = None

    def job_row(self, job: ArchiveRange, /) -> Row:
        """Return a job as plain values."""
        return {
            "path": job.path,
            "run": job.run,
            "cluster": self._cluster(),
            "isolation": int(job.brokers.isolation),
            "seconds": job.brokers.timeouts.total,
            "options": asdict(job.options),
        }

    def job(self, row: Row, /) -> ArchiveRange:
        """Return the job with this node's brokers.

        Raises `InputError` if this node must not run it, and `LakeError` if its archive cannot be opened.
        """
        values = msgspec.convert(row, _JobRow)
        if not _RUN.fullmatch(values.run):
            raise InputError(f"the run {values.run!r} of a job is not the id of a run")
        path = self._allowed(values.path)
        lake = Lake.open(path)
        cluster = self._cluster()
        if None not in (cluster, values.cluster) and cluster != values.cluster:
            raise InputError(f"the job is about cluster {values.cluster}, and this node works with cluster {cluster}")
        brokers = replace(self._brokers, timeouts=Timeouts(total=values.seconds), isolation=Isolation(values.isolation))
        return ArchiveRange(
            brokers=brokers, path=str(lake.path), settings=lake.settings, options=values.options, run=values.run
        )

    def result_row(self, result: Archived, /) -> Row:
        """Return a result as plain values."""
        return result.to_json()

    def result(self, row: Row, /) -> Archived:
        """Return the result from plain values. Raises `InputError` if it names files that no job can have written."""
        try:
            archived = Archived.from_json(row)
        except ValueError as error:  # for example a path that leads out of the archive
            raise InputError(f"a result names files that no job can have written: {error}") from error
        for file in archived.files:
            _check(file)
        return archived

    def _allowed(self, text: str) -> Path:
        path = Path(text)
        if not path.is_absolute():
            raise InputError(f"the archive {text!r} of a job is not an absolute path")
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
