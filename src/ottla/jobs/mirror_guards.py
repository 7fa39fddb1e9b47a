"""Keeps links out of each other's way: no copy into itself, no circles, no two links into one topic, no second process.

A link's plans and both clusters come in; one clear error goes out before anything is written. What is exact about a
mirror does not depend on this: a second mirror that slips through shuts out the first.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Iterable, Mapping

from ottla.errors import InputError, MirrorError, OttlaError
from ottla.jobs.mirror_link import Link
from ottla.mirror import journal
from ottla.mirror.journal import Journal, Origin, Writer
from ottla.mirror.rules import Action
from ottla.mirror.topics import TopicPlan
from ottla.net.cluster import Cluster

_NOTE = "holder"
_RENEW_SECONDS = 10.0
_STALE_SECONDS = 30.0
Origins = Mapping[str, frozenset[Origin]]
"""From where the records of topics came, by target topic."""


def cluster_id(cluster: Cluster) -> str | None:
    """Return the id of a cluster; None if its brokers have none."""
    return cluster.metadata().cluster_id


def refuse_conflicts(link: Link, plans: Iterable[TopicPlan], *, source: Cluster, target: Cluster) -> Origins:
    """Raise `InputError` if a topic would be copied into itself, in a circle, or where another link copies to.

    Also raises it if the link has copied these topics from another cluster, unless its rules accept lost records.
    Returns from where the records of each source topic came, by target topic: as far as the source's journal says.
    """
    origins: dict[str, frozenset[Origin]] = {}
    source_id, target_id = cluster_id(source), cluster_id(target)
    here = journal.writers(target, topic=link.journal)
    there = here if source_id == target_id else journal.writers(source, topic=link.journal)
    for planned in plans:
        if source_id is not None and source_id == target_id and planned.source == planned.target:
            raise InputError(
                f"link {link.name} would copy topic {planned.source} into itself: source and target are the same"
                " cluster; rename the topics, for example with '{source}.{topic}'"
            )
        for writer in here:
            if writer.target_topic == planned.target and writer.link != link.name:
                raise InputError(
                    f"link {link.name} would write to topic {planned.target}, which is the copy of link {writer.link}:"
                    " give its topics other names, for example with '{source}.{topic}'"
                )
        _refuse_another_source(link, planned, here, source_id)
        origins[planned.target] = journal.origins_of(planned.source, source_id, there)
        for writer in there:
            is_way_back = (writer.target_topic, writer.source_topic) == (planned.source, planned.target)
            if is_way_back and writer.source_cluster in (None, target_id):
                raise InputError(
                    f"link {link.name} would mirror in a circle: topic {planned.source} is itself the copy of"
                    f" {planned.target}, made by link {writer.link}"
                )
        if target_id is not None and Origin(target_id, planned.target) in origins[planned.target]:
            raise InputError(
                f"link {link.name} would mirror in a circle: records of topic {planned.source} come from"
                f" {planned.target} at the target, by other links"
            )
    return {topic: found for topic, found in origins.items() if found}


def _refuse_another_source(link: Link, planned: TopicPlan, here: Iterable[Writer], source_id: str | None) -> None:
    """Raise `InputError` if the link has copied this topic, and from another cluster only."""
    known = {
        writer.source_cluster
        for writer in here
        if writer.link == link.name and writer.target_topic == planned.target and writer.source_cluster is not None
    }
    if source_id is None or not known or source_id in known or link.rules.on_lost is Action.CONTINUE:
        return
    raise InputError(
        f"link {link.name} mirrors topic {planned.target} from cluster {', '.join(sorted(known))}, and the source is"
        f" another cluster, {source_id}: choose another name for the link, or, if that cluster was replaced, have the"
        " new one mirrored behind it with on_lost='continue'"
    )


def remember_origins(notes: Journal, origins: Origins) -> None:
    """Keep in the journal from where records came, for links that copy them further. A failure is harmless."""
    rows = {topic: sorted(map(list, found), key=str) for topic, found in sorted(origins.items())}
    try:
        known = notes.note(journal.ORIGINS)
        if rows != (known or {}).get("topics", {}):
            notes.write_note(journal.ORIGINS, {"topics": rows})
    except OttlaError:
        pass  # the next look tries again


class Holder:
    """The process that mirrors a link in a run of its own, as others see it."""

    def __init__(self, notes: Journal) -> None:
        self._journal = notes
        self._id = uuid.uuid4().hex
        self._renew_at = 0.0

    def claim(self, *, take_over: bool) -> None:
        """Announce this process. Raises `MirrorError` if another one seems to be at work, unless `take_over` is set."""
        note = self._journal.note(_NOTE)
        if note and not take_over and _is_alive(note):
            raise MirrorError(
                f"link {self._journal.link} is being mirrored by process {note.get('pid')} on {note.get('host')}: stop"
                " it first, or take over from it",
                fault="two_mirrors",
            )
        self.renew(time.monotonic())

    def renew(self, now: float) -> None:
        """Say from time to time that this process is alive. A failure is harmless."""
        if now < self._renew_at:
            return
        self._renew_at = now + _RENEW_SECONDS
        self._write({"pid": os.getpid(), "host": socket.gethostname(), "id": self._id, "time": time.time()})

    def leave(self) -> None:
        """Say that this process has ended, unless another one has taken over."""
        try:
            note = self._journal.note(_NOTE)
        except OttlaError:
            return  # the note becomes stale by itself
        if note and note.get("id") == self._id:
            self._write({})

    def _write(self, note: dict[str, object]) -> None:
        try:
            self._journal.write_note(_NOTE, note)
        except OttlaError:
            pass  # brokers may be away; the mirror goes on as soon as they are back


def _is_alive(note: object) -> bool:
    """Whether the process of a note may be at work: its note is fresh, and on this host it exists."""
    assert isinstance(note, dict)
    try:
        age = time.time() - float(note["time"])
        pid, host = int(note["pid"]), str(note["host"])
    except (KeyError, TypeError, ValueError):
        return False
    if not abs(age) <= _STALE_SECONDS:  # NaN, too
        return False
    return host != socket.gethostname() or _exists(pid)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    except OverflowError:
        return False
    return True
