"""Creating, growing, deleting and describing topics: the requests and what the responses mean.

Comes in: topics as values, and responses. Goes out: requests; the error of a topic becomes a `BrokerError` that names
it and has the broker's message. Pure: `Admin` sends and waits.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any

from ottla.errors import BrokerError, ErrorCode, InputError
from ottla.net.connection import VersionOf
from ottla.net.metadata import Metadata, Partition, Topic
from ottla.wire import messages

Judge = Callable[[Metadata, Collection[str]], BrokerError | None]
"""Returns what is still wrong with the named topics from one broker's view, or None."""

CREATE_TOPICS = 19
DELETE_TOPICS = 20
CREATE_PARTITIONS = 37
BROKER_DEFAULT = -1
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
# Kafka's types: partitions are int32, the replication factor is int16.
_MOST = {"partitions": (1 << 31) - 1, "replicas": (1 << 15) - 1}


def is_topic_name(name: object) -> bool:
    """Whether a topic can have this name."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None and name not in (".", "..")


def _is_count(value: object, most: int) -> bool:
    return isinstance(value, int) and (1 <= value <= most or value == BROKER_DEFAULT)


class Apply(Enum):
    """Whether to make a change, or to let the broker only validate it."""

    NOW = "now"
    CHECK = "check"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create. -1 for partitions or replicas means the broker's default.

    `assignments` has the brokers of each partition, leader first, and determines partitions and replicas. Raises
    `InputError` for an invalid name or count.
    """

    name: str
    partitions: int = 1
    replicas: int = BROKER_DEFAULT
    settings: Mapping[str, str] = field(default_factory=dict)
    """Topic settings by Kafka's names, such as retention.ms."""
    assignments: Sequence[Sequence[int]] | None = None

    def __post_init__(self) -> None:
        if not is_topic_name(self.name):
            # The broker would reject it too, but closes the connection without a response if it is very long.
            shown = f"{self.name!r:.100}"
            raise InputError(f"topic name {shown}: 1 to 249 letters, digits, '.', '_' and '-' are accepted")
        for name, value in (("partitions", self.partitions), ("replicas", self.replicas)):
            if not _is_count(value, _MOST[name]):
                accepted = f"1 to {_MOST[name]}, or -1 for the broker's default, is accepted"
                raise InputError(f"topic {self.name}: {name} {value!r}; {accepted}")
        if self.assignments is not None and not (self.assignments and all(self.assignments)):
            raise InputError(f"topic {self.name}: assignments need at least one broker for at least one partition")


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as the cluster describes it."""

    name: str
    id: uuid.UUID | None
    """None for brokers before 2.8."""
    internal: bool
    """Whether it is one of Kafka's own, such as __consumer_offsets."""
    partitions: tuple[Partition, ...]

    @property
    def replicas(self) -> int:
        """The replication factor; the largest, while partitions differ."""
        return max((len(partition.replicas) for partition in self.partitions), default=0)


def build_create(
    version_of: VersionOf, topics: Collection[NewTopic], *, seconds: float, apply: Apply = Apply.NOW
) -> messages.Message:
    """Build a CreateTopics request. The broker may take `seconds` for it."""
    fields = {
        "topics": [_new_topic(topic) for topic in topics],
        "timeout": timedelta(seconds=seconds),
        "validate_only": apply is Apply.CHECK,
    }
    message: messages.Message = messages.compose(
        messages.request_type(CREATE_TOPICS, version_of(CREATE_TOPICS)), fields
    )
    return message


def _new_topic(topic: NewTopic) -> dict[str, Any]:
    """Return the fields of a topic. With assignments, Kafka requires -1 for both counts."""
    assigned = topic.assignments is not None
    return {
        "name": topic.name,
        "num_partitions": -1 if assigned else topic.partitions,
        "replication_factor": -1 if assigned else topic.replicas,
        "assignments": [
            {"partition_index": index, "broker_ids": tuple(brokers)}
            for index, brokers in enumerate(topic.assignments or ())
        ],
        "configs": [{"name": name, "value": str(value)} for name, value in topic.settings.items()],
    }


def succeeded(answers: Iterable[Any]) -> set[str]:
    """Return the names of the topics that were created or deleted, from a response that may also have errors."""
    return {topic.name for topic in answers if topic.error_code is ErrorCode.none}


def check_create(response: Any, *, accept: ErrorCode = ErrorCode.none) -> None:
    """Raise the first error. `accept` is an error that counts as success."""
    for topic in response.topics:
        if topic.error_code not in (ErrorCode.none, accept):
            raise BrokerError(topic.error_code, f"creating topic {topic.name}", topic.error_message)


def build_add_partitions(
    version_of: VersionOf, topic: str, total: int, *, seconds: float, apply: Apply
) -> messages.Message:
    """Build a CreatePartitions request that raises the partitions of the topic to `total`."""
    if not _is_count(total, _MOST["partitions"]) or total < 1:
        raise InputError(f"topic {topic}: {total!r} partitions; 1 to {_MOST['partitions']} is accepted")
    fields = {
        "topics": [{"name": topic, "count": total, "assignments": None}],
        "timeout": timedelta(seconds=seconds),
        "validate_only": apply is Apply.CHECK,
    }
    message: messages.Message = messages.compose(
        messages.request_type(CREATE_PARTITIONS, version_of(CREATE_PARTITIONS)), fields
    )
    return message


def check_add_partitions(response: Any, *, accept: ErrorCode = ErrorCode.none) -> None:
    """Raise the topic's error. `accept` is an error that counts as success."""
    for topic in response.results:
        if topic.error_code not in (ErrorCode.none, accept):
            raise BrokerError(topic.error_code, f"adding partitions to topic {topic.name}", topic.error_message)


def build_delete(version_of: VersionOf, names: Collection[str], *, seconds: float) -> messages.Message:
    """Build a DeleteTopics request. The broker may take `seconds` for it."""
    fields = {
        "topics": [{"name": name, "topic_id": None} for name in names],
        "topic_names": tuple(names),
        "timeout": timedelta(seconds=seconds),
    }
    message: messages.Message = messages.compose(
        messages.request_type(DELETE_TOPICS, version_of(DELETE_TOPICS)), fields
    )
    return message


def check_delete(response: Any) -> list[str]:
    """Return the names that do not exist: brokers call this error retriable, but it is not here. Raises others."""
    unknown = ErrorCode.unknown_topic_or_partition
    for topic in response.responses:
        if topic.error_code not in (ErrorCode.none, unknown):
            message = getattr(topic, "error_message", None)
            raise BrokerError(topic.error_code, f"deleting topic {topic.name}", message)
    return [topic.name for topic in response.responses if topic.error_code is unknown]


def describe(metadata: Metadata) -> list[TopicDescription]:
    """Return the topics in `metadata`, sorted by name. Raises `BrokerError` for a topic with an error."""
    return [_description(metadata.topics[name]) for name in sorted(metadata.topics)]


def _description(topic: Topic) -> TopicDescription:
    if topic.error is not ErrorCode.none:
        raise BrokerError(topic.error, f"describing topic {topic.name}")
    return TopicDescription(topic.name, topic.id, topic.internal, topic.partitions)


def unready(metadata: Metadata, names: Collection[str]) -> BrokerError | None:
    """Return why the named topics cannot be written according to `metadata`, or None if they can."""
    for name in names:
        topic = metadata.topics.get(name)
        if topic is None or topic.error is not ErrorCode.none:
            return BrokerError(ErrorCode.leader_not_available, f"topic {name} is not known to every broker yet")
        for partition in topic.partitions:
            if partition.leader not in metadata.brokers:
                return BrokerError(ErrorCode.leader_not_available, f"partition {name}-{partition.index}")
    return None


def fewer_than(metadata: Metadata, name: str, total: int) -> BrokerError | None:
    """Return an error if a broker knows fewer than `total` partitions of the topic, else None."""
    if name in metadata.topics and len(metadata.topics[name].partitions) < total:
        return BrokerError(ErrorCode.leader_not_available, f"new partitions of topic {name} are not known everywhere")
    return unready(metadata, [name])


def still_there(metadata: Metadata, names: Collection[str]) -> BrokerError | None:
    """Return an error for a topic that a broker still knows, or None if all are gone."""
    for name in names:
        topic = metadata.topics.get(name)
        if topic is not None and topic.error is ErrorCode.none:
            return BrokerError(ErrorCode.request_timed_out, f"topic {name} is deleted, but not yet on every broker")
    return None
