"""The links that have a journal at the target: which there are, and whether a cluster is the source of one.

The target, a journal topic and names come in. A wrong name or a wrong cluster is one error that says which are right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cli.errors import CommandFailed
from ottla.text import printable

if TYPE_CHECKING:
    from ottla.net import Cluster


def links_at(target: Cluster, journal: str) -> list[str]:
    """Return the names of the links. Raises `CommandFailed` if there is none, or the user may not see the journal."""
    from ottla.errors import ErrorCode
    from ottla.mirror.journal import link_names

    described = target.metadata([journal]).topics.get(journal)
    if described is not None and described.error is ErrorCode.topic_authorization_failed:
        raise CommandFailed(f"the user is not authorized for the journal, topic {journal}: ask for an ACL")
    names = sorted(link_names(target, topic=journal))
    if not names:
        raise CommandFailed(f"no link has mirrored to this cluster: topic {journal} has none")
    return names


def require_link(target: Cluster, journal: str, link: str) -> None:
    """Raise `CommandFailed` if there is no such link."""
    names = links_at(target, journal)
    if link not in names:
        known = ", ".join(map(printable, names))
        raise CommandFailed(f"no link {link} has mirrored to this cluster: there is {known}; choose with --name")


def require_source(source: Cluster, target: Cluster, journal: str, link: str) -> None:
    """Raise `CommandFailed` if the link mirrors from another cluster: its offsets and groups mean nothing there."""
    from ottla.jobs.mirror_guards import cluster_id
    from ottla.mirror.journal import writers

    known = {writer.source_cluster for writer in writers(target, topic=journal) if writer.link == link} - {None}
    mine = cluster_id(source)
    if mine is not None and known and mine not in known:
        theirs = ", ".join(sorted(filter(None, known)))
        raise CommandFailed(f"--from is not the source of link {link}: it is cluster {mine}, the source is {theirs}")
