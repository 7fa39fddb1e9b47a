"""Topics to create when a cluster starts, written as `name:partitions:replicas:policy`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ottla.admin import Admin, NewTopic
from ottla.admin.topics import is_topic_name
from ottla.config import Security
from ottla.errors import ConfigError

_POLICIES = ("delete", "compact", "compact,delete")


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic to create. The default for `replicas` is one on each broker, at most three."""

    name: str
    partitions: int = 1
    replicas: int | None = None
    policy: str = "delete"

    def __post_init__(self) -> None:
        if not is_topic_name(self.name):
            raise ConfigError(f"invalid topic name {self.name!r}: use 1 to 249 letters, digits, '.', '_' and '-'")
        if self.partitions < 1:
            raise ConfigError(f"topic {self.name}: {self.partitions} partitions; use at least 1")
        if self.replicas is not None and self.replicas < 1:
            raise ConfigError(f"topic {self.name}: {self.replicas} replicas; use at least 1")
        if self.policy not in _POLICIES:
            raise ConfigError(f"topic {self.name}: policy {self.policy!r} is not one of {' | '.join(_POLICIES)}")

    @classmethod
    def parse(cls, text: str) -> TopicSpec:
        """Parse `clicks`, `clicks:6`, `clicks:6:3` or `clicks:6:3:compact`; an empty part means its default.

        Raises `ConfigError` if the text is invalid.
        """
        name, *rest = text.strip().split(":")
        if len(rest) > 3:
            raise ConfigError(f"topic {text!r} is not NAME[:PARTITIONS[:REPLICAS[:POLICY]]]")
        partitions, replicas, policy = (*rest, "", "", "")[:3]
        return cls(
            name,
            _number(partitions, text, "partitions") or 1,
            _number(replicas, text, "replicas"),
            "compact,delete" if policy == "delete,compact" else policy or "delete",
        )


def create_topics(bootstrap: str, topics: Iterable[TopicSpec], *, security: Security, timeout: float) -> None:
    """Create the topics that do not exist, and return when they can be written to."""
    specs = list(topics)
    if not specs:
        return
    with Admin(bootstrap, security=security) as admin:
        existing = set(admin.topic_names(timeout=timeout))
        missing = [_new(topic) for topic in specs if topic.name not in existing]
        if missing:
            admin.create_topics(missing, timeout=timeout)


def _new(spec: TopicSpec) -> NewTopic:
    topic = NewTopic(name=spec.name, partitions=spec.partitions, settings={"cleanup.policy": spec.policy})
    return topic if spec.replicas is None else replace(topic, replicas=spec.replicas)


def _number(text: str, spec: str, field: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ConfigError(f"topic {spec!r}: {field} {text!r} is not an integer of at least 1")
    return int(text)
