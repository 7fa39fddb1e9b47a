"""Writes the topics of a cluster as a file that declares exactly them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from ottla.admin.movement import THROTTLED
from ottla.admin.settings import SettingSource
from ottla.operations.topics.comparing import LiveTopic
from ottla.text import CONTROL

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def export(cluster_id: str, topics: Iterable[LiveTopic]) -> str:
    """Return the file of the cluster `cluster_id`: partitions, replicas and own settings of each topic.

    Comparing it with the cluster finds nothing. A setting whose value brokers hide is a comment. Throttles are left
    out: they belong to moves of replicas, not to topics.
    """
    lines = [
        "# Topics as they should be: 'ottla topics diff FILE' compares, 'ottla topics apply FILE' changes the cluster.",
        f"cluster = {_text(cluster_id)}",
    ]
    for topic in sorted(topics, key=lambda each: each.name):
        lines += [
            "",
            f"[topics.{_key(topic.name)}]",
            f"partitions = {topic.partitions}",
            f"replicas = {topic.replicas}",
        ]
        own = [*_settings(topic)]
        if own:
            lines += [f"[topics.{_key(topic.name)}.settings]", *own]
    return "\n".join(lines) + "\n"


def _settings(topic: LiveTopic) -> Iterator[str]:
    for name, setting in sorted(topic.settings.items()):
        if setting.source is not SettingSource.TOPIC or name in THROTTLED:
            continue
        if setting.value is None:
            yield f"# {_text(name)} is set to a value that brokers do not show"
        elif re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", setting.value):
            yield f"{_text(name)} = {setting.value}"
        else:
            yield f"{_text(name)} = {_text(setting.value)}"


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _text(text: str) -> str:
    """Return a TOML basic string, in which nothing controls a terminal."""
    return CONTROL.sub(lambda match: f"\\U{ord(match[0]):08x}", json.dumps(text, ensure_ascii=False))
