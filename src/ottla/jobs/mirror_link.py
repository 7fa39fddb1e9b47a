"""`Link`: what is mirrored from where to where, and by which rules, as a value that travels with the job.

Plain settings come in and are checked; the value never connects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ottla.errors import ConfigError
from ottla.fetch.bounds import Bound
from ottla.jobs.brokers import Brokers
from ottla.jobs.mirror_audit import LinkAudit
from ottla.mirror.journal import TOPIC
from ottla.mirror.rules import Policy
from ottla.mirror.throttle import Throttle
from ottla.mirror.topics import Rename, check_link_name, is_pattern, matches

_CLIENT = "ottla-mirror"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One direction of a mirror: topics of one cluster that are copied to another.

    `topics` has names and patterns with `*` and `?`. `rename` says what a topic is called at the target: `"{topic}"`
    or `"{source}.{topic}"`, where `{source}` is the link's name. `start` is where a topic begins that was never
    mirrored: `"earliest"`, `"latest"`, a time or an offset. `rate` limits the bytes per second of the link, `rates`
    those of single target topics; topics with a higher number in `priorities` go first. `rules` says what happens if
    something is wrong. `journal` is the topic on the target that keeps the positions. `groups` has the consumer groups,
    by name or pattern, whose offsets are translated. Raises `ConfigError` if a setting is invalid.
    """

    source: Brokers | str
    target: Brokers | str
    topics: tuple[str, ...] | str
    name: str = "mirror"
    rename: str = "{topic}"
    start: Bound = "earliest"
    rules: Policy = field(default_factory=Policy)
    rate: float | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    replicas: int = -1
    """The replication factor of topics that are created; -1 for the broker's default."""
    follow_settings: bool = True
    """Whether retention, cleanup and size limits of the target topics follow those of the source."""
    journal: str = TOPIC
    groups: tuple[str, ...] | str = ()
    isolated: tuple[str, ...] | str = ()
    """Source topics that get threads, memory and connections of their own, so that no other topic can delay them."""
    exclude: tuple[str, ...] | str = ()
    """Source topics that are not mirrored, by name or pattern, though a pattern of `topics` matches them."""
    audit: LinkAudit | None = None
    """Count the target topics for the audit, while the mirror runs and at its end. The audit topic is not mirrored."""

    def __post_init__(self) -> None:
        check_link_name(self.name)
        Rename(self.rename)
        self._check_types()
        Throttle(self.rate, self.rates)
        for name in ("topics", "groups", "isolated", "exclude"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        if not self.topics:
            raise ConfigError(f"link {self.name} names no topic")
        for name in ("source", "target"):
            value = getattr(self, name)
            if isinstance(value, str):
                object.__setattr__(self, name, Brokers(bootstrap=value, client_id=_CLIENT))
        both = [topic for topic in self.topics if not is_pattern(topic) and matches(topic, self.exclude)]
        if both:
            raise ConfigError(f"link {self.name} names topic {both[0]} and excludes it: leave out one of them")
        if self.audit is not None and self.audit.topic in self.topics:
            raise ConfigError(f"link {self.name} mirrors {self.audit.topic}, its own audit topic: leave it out")

    def _check_types(self) -> None:
        """Raise `ConfigError` for what would fail later, far from here: on a thread, or in a task of an engine."""
        for name in ("source", "target"):
            self._require(name, isinstance(getattr(self, name), Brokers | str), "Brokers(...) or HOST:PORT,...")
        for name in ("topics", "groups", "isolated", "exclude"):
            value: object = getattr(self, name)
            is_list = isinstance(value, Iterable) and all(isinstance(item, str) for item in value)
            self._require(name, is_list, "a text or several")
        self._require("rules", isinstance(self.rules, Policy), "Policy(...)")
        self._require("rate", isinstance(self.rate, float | int | None), "bytes per second")
        replicas: object = self.replicas
        is_number = isinstance(replicas, int) and (replicas > 0 or replicas == -1)
        self._require("replicas", is_number, "a number above 0, or -1")
        self._require("journal", isinstance(self.journal, str), "a topic")

    def _require(self, name: str, is_right: bool, what: str) -> None:
        if not is_right:
            raise ConfigError(f"Link({name}=...) must be {what}, got {type(getattr(self, name)).__name__}")

    @property
    def source_brokers(self) -> Brokers:
        """How to reach the source."""
        assert isinstance(self.source, Brokers)
        return self.source

    @property
    def target_brokers(self) -> Brokers:
        """How to reach the target."""
        assert isinstance(self.target, Brokers)
        return self.target
