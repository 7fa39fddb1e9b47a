"""Keeps links out of each other's way: no copy into itself, no circles, no two links into one topic, no second process.

A link's plans and both clusters come in; one clear error goes out before anything is written. What is exact about a
mirror does not depend on this: a second mirror that slips through shuts out the first.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Iterable

from ottla.errors import InputError, MirrorError, OttlaError
from ottla.jobs.mirror_link import Link
from ottla.mirror import journal
from ottla.mirror.journal import Journal
from ottla.mirror.topics import TopicPlan
from ottla.net.cluster import Cluster

_NOTE = "holder"
_RENEW_SECONDS = 10.0
_STALE_SECONDS = 30.0


def cluster_id(cluster: Cluster) -> str | None:
    """Return the id of a cluster; None if its brokers have none."""
    return cluster.metadata().cluster_id


def refuse_conflicts(link: Link, plans: Iterable[TopicPlan], *, source: Cluster, target: Cluster) -> None:
    """Raise `InputError` if a topic would be copied into itself, in a circle, or where another link copies to."""
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
        for writer in there:
            is_way_back = (writer.target_topic, writer.source_topic) == (planned.source, planned.target)
            if is_way_back and writer.source_cluster in (None, target_id):
                raise InputError(
                    f"link {link.name} would mirror in a circle: topic {planned.source} is itself the copy of"
                    f" {planned.target}, made by link {writer.link}"
                )


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
