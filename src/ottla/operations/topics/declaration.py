"""Declared topics as values, and the rules for their names.

`reading.py` makes them from a file. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ottla.admin.topics import is_topic_name
from ottla.errors import ConfigError

_FIELDS = frozenset({"{site}", "{topic}"})


@dataclass(frozen=True, slots=True)
class DeclaredTopic:
    """A topic as it should be. None leaves a number to the brokers, and as it is if the topic exists."""

    name: str
    partitions: int | None = None
    replicas: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    """Topic settings by Kafka's names, in Kafka's units."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a file declares, with the id of the cluster that it is for."""

    cluster_id: str
    topics: tuple[DeclaredTopic, ...] = ()


@dataclass(frozen=True, slots=True)
class Naming:
    """How topics are named: the pattern of those that each site has, and what every name must match."""

    pattern: str = "{site}.{topic}"
    sites: tuple[str, ...] = ()
    allowed: str | None = None
    """A regular expression for whole names; None for any."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a pattern without {site} and {topic}, and an expression that is none."""
        if {*re.findall(r"\{[^{}]*\}", self.pattern)} != _FIELDS:
            raise ConfigError(f"the pattern {self.pattern!r} must have {{site}} and {{topic}}, and no other field")
        try:
            re.compile(self.allowed or "")
        except re.error as error:
            raise ConfigError(f"{self.allowed!r} is not a regular expression: {error}") from error

    def at(self, site: str, topic: str) -> str:
        """Return the name of a topic at a site. Raises `ConfigError` for a site that is not declared."""
        if site not in self.sites:
            raise ConfigError(f"{site!r} is not a site: there are {', '.join(self.sites) or 'none'}")
        return self.pattern.replace("{site}", site).replace("{topic}", topic)

    def check(self, name: str) -> str:
        """Return the name. Raises `ConfigError` if no topic can have it, or if it breaks the rules."""
        if not is_topic_name(name):
            raise ConfigError(
                f"{name!r:.100} cannot be the name of a topic: 1 to 249 of letters, digits, '.', '_', '-'"
            )
        if self.allowed is not None and not re.fullmatch(self.allowed, name):
            raise ConfigError(f"the name {name!r} breaks the rule {self.allowed!r}")
        return name
