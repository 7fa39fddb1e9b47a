"""Our mirror, in one process."""

from __future__ import annotations

from bench.peers.mirror import Job
from ottla.jobs.mirror_link import Link
from ottla.jobs.mirrors import mirror


def link_of(job: Job) -> Link:
    """The link of a job; each run has a name of its own, and so a journal of its own."""
    rename = f"{job.prefix}.{{topic}}"
    return Link(source=job.source, target=job.target, topics=job.topic, name=job.prefix, rename=rename, replicas=1)


def run(job: Job) -> None:
    """Copy everything that is there."""
    mirror(link_of(job))
