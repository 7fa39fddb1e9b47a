"""How the mirror job travels to the nodes of a fleet: by the name of its link, without addresses or credentials.

Every node has its own links, with its own way to reach both clusters. A node takes a job if it has a link of that name
between the same clusters with the same topics' names. Others can write to a store, so nothing else is taken from it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ottla.engines.fleet.job_notes import Row
from ottla.errors import InputError
from ottla.jobs.mirror_guards import cluster_id
from ottla.jobs.mirror_link import Link
from ottla.jobs.mirror_report import Mirrored
from ottla.jobs.mirrors import MirrorRange


class _JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """A job as plain values. The field names are those in the store."""

    link: str
    rename: str
    journal: str
    source: str | None
    target: str | None


class MirrorKind:
    """The kind of job that mirrors a range, with this node's links."""

    name = "mirror"

    def __init__(self, links: Iterable[Link]) -> None:
        self._links = {link.name: link for link in links}
        self._clusters: dict[str, tuple[str | None, str | None]] = {}

    def job_row(self, job: MirrorRange, /) -> Row:
        """Return a job as plain values."""
        source, target = self._ids(job.link)
        return {
            "link": job.link.name,
            "rename": job.link.rename,
            "journal": job.link.journal,
            "source": source,
            "target": target,
        }

    def job(self, row: Row, /) -> MirrorRange:
        """Return the job with this node's link. Raises `InputError` if this node has no such link."""
        values = msgspec.convert(row, _JobRow)
        link = self._links.get(values.link)
        if link is None:
            raise InputError(f"this node has no link {values.link!r:.120}")
        own = (link.rename, link.journal, *self._ids(link))
        if own != (values.rename, values.journal, values.source, values.target):
            raise InputError(f"this node's link {link.name} has other clusters, names or another journal than the job")
        return MirrorRange(link)

    def result_row(self, result: Mirrored, /) -> Row:
        """Return a result as plain values."""
        return result.to_json()

    def result(self, row: Row, /) -> Mirrored:
        """Return the result from plain values. Raises `ValueError`, `TypeError` or `KeyError` if they are none."""
        return Mirrored.from_json(row)

    def _ids(self, link: Link) -> tuple[str | None, str | None]:
        if link.name not in self._clusters:
            with link.source_brokers.cluster() as source, link.target_brokers.cluster() as target:
                self._clusters[link.name] = cluster_id(source), cluster_id(target)
        return self._clusters[link.name]
