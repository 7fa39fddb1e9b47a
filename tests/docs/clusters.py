"""The clusters that pages start, kept from page to page where the next one would start the same.

A page's own `ottla cluster up` starts them: where the brokers run already, it only makes the topics. Between two pages
topics and groups are deleted, and brokers that the next page does not ask for are taken down.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ottla import Admin, Timeouts
from ottla.cluster import LocalCluster
from ottla.errors import OttlaError

# After these a cluster is not what its start makes of it.
_CHANGING = re.compile(
    r"\bottla (cluster (kill|stop|restart|freeze|thaw|add|down)|reassign|throttles|leaders|brokers)\b"
)


class Clusters:
    """The clusters of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: Mapping[str, tuple[str, ...]] = {}

    def prepare(self, wanted: Mapping[str, tuple[str, ...]], *, is_shown: bool) -> None:
        """Leave those of the wanted clusters that run, without topics, and no others.

        A start that is shown has to happen: then none is left.
        """
        for status in LocalCluster.all(self._folder):
            cluster = LocalCluster(status.name, dir=self._folder)
            is_wanted = status.name in wanted and self._kept.get(status.name) == wanted[status.name]
            if is_shown or not is_wanted or not status.up or not _is_cleared(cluster):
                cluster.down()
        self._kept = {}

    def keep(self, started: Mapping[str, tuple[str, ...]], text: str) -> None:
        """Note what a page that worked has started."""
        if not _CHANGING.search(text):
            self._kept = started

    def down(self) -> None:
        """Take all of them down."""
        for status in LocalCluster.all(self._folder):
            LocalCluster(status.name, dir=self._folder).down()


def _is_cleared(cluster: LocalCluster) -> bool:
    """Whether it could be made empty; members of groups that have just died are in the way for a while, for example."""
    try:
        with Admin(cluster.bootstrap, timeouts=Timeouts(total=20)) as admin:
            for group in admin.groups.list_groups():
                admin.groups.delete(group.name)
            if names := admin.topic_names():
                admin.delete_topics(names)
    except OttlaError:
        return False
    return True
