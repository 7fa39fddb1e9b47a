"""Faults on demand: rules that say which requests fail and how, and the matching of requests against them.

A request comes in; the rule that applies to it goes out, counted once. `dispatch` carries faults out; nothing here
waits, sends or locks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ottla.errors import ConfigError, ErrorCode
from ottla.model import TopicPartition
from ottla.testing.fake.messages import api_key
from ottla.wire.messages import api_name


class When(Enum):
    """Whether a fault strikes before or after the request is handled."""

    BEFORE_HANDLING = "the request is lost"
    AFTER_HANDLING = "the request is handled, its response is affected"


class Kind(Enum):
    """The kind of a fault."""

    FAIL = "an error code"
    DELAY = "a late response"
    CUT = "a closed connection"
    HALF = "half a response, then a closed connection"
    SILENCE = "no response, and an open connection"


@dataclass(frozen=True, slots=True)
class RequestSeen:
    """One request that reached a broker, and what it names. `at` is in seconds on the monotonic clock."""

    broker: int
    api: str
    api_key: int
    version: int
    client_id: str | None
    topics: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]
    at: float


@dataclass(slots=True, kw_only=True)
class Fault:
    """One rule. `hits` counts the requests it met; `remaining` is how many more it will meet (None: all)."""

    kind: Kind
    api_key: int | None
    broker: int | None = None
    topic: str | None = None
    partition: int | None = None
    remaining: int | None = 1
    hits: int = 0
    error: ErrorCode = ErrorCode.none
    seconds: float = 0.0
    keep_bytes: int | None = None
    when: When = When.AFTER_HANDLING

    def applies_to(self, seen: RequestSeen) -> bool:
        """Return whether the request `seen` matches this rule, and the rule is not used up."""
        return (
            self.remaining != 0
            and self.api_key in (None, seen.api_key)
            and self.broker in (None, seen.broker)
            and (self.topic is None or self.topic in seen.topics)
            and (self.partition is None or TopicPartition(self.topic or "", self.partition) in seen.partitions)
        )

    def covers(self, topic: str | None, partition: int | None) -> bool:
        """Return whether it covers this topic and partition of a request; None stands for the whole request."""
        return self.topic in (None, topic) and (partition is None or self.partition in (None, partition))


@dataclass(slots=True)
class FaultTable:
    """The active rules, in the order of their creation."""

    rules: list[Fault] = field(default_factory=list)

    def take(self, kind: Kind, seen: RequestSeen, when: When | None = None) -> Fault | None:
        """Return the first rule of this kind for the request, and count it; None if there is none."""
        for rule in self.rules:
            if rule.kind is kind and when in (None, rule.when) and rule.applies_to(seen):
                rule.hits += 1
                rule.remaining = None if rule.remaining is None else rule.remaining - 1
                return rule
        return None


def new_fault(
    kind: Kind,
    api: str | int | None,
    *,
    times: int | None,
    broker: int | None,
    topic: str | None = None,
    partition: int | None = None,
) -> Fault:
    """Return a checked rule; the caller sets what its kind needs. Raises `ConfigError` for invalid arguments."""
    if times is not None and times < 1:
        raise ConfigError(f"times={times}: a fault happens at least once; use None for until clear_faults()")
    if partition is not None and topic is None:
        raise ConfigError(f"partition={partition} needs a topic")
    key = None if api is None else api_key(api)
    return Fault(kind=kind, api_key=key, broker=broker, topic=topic, partition=partition, remaining=times)


def describe(seen: RequestSeen) -> str:
    """Return one line for error texts: what was requested from which broker."""
    where = f" {', '.join(seen.topics)}" if seen.topics else ""
    return f"broker {seen.broker}: {api_name(seen.api_key)} v{seen.version}{where} from {seen.client_id}"
