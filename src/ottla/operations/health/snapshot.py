"""What was seen of a cluster at one moment, as one value that checks judge.

`looking.py` fills it; what could not be seen is None or absent, with the reason in `unseen`. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.admin.disks import LogDirs
from ottla.admin.groups import ListedGroup
from ottla.admin.movement import Reassignment
from ottla.admin.nodes import BrokerVersions, RegisteredBroker
from ottla.admin.quorum import Quorum
from ottla.admin.transactions import OngoingTransaction
from ottla.model import TopicPartition
from ottla.net.metadata import Broker, Partition, Topic

PROBE_TOPIC = "ottla-probe"
"""The topic of the end-to-end probe. Each of its partitions is meant to have a single replica."""


class Growth(NamedTuple):
    """How the replicas of a partition grow."""

    rate: float
    """Bytes per second."""
    most_bytes: float = math.inf
    """What they may still grow by before retention takes as much away."""


@dataclass(frozen=True, slots=True)
class Limits:
    """From where on a number is a warning, or critical."""

    disk_warning: float = 0.80
    """The share of a disk that is in use."""
    disk_critical: float = 0.90
    days_warning: float = 7.0
    """Days until a disk is full."""
    days_critical: float = 1.0
    quorum_seconds: float = 15.0
    """How long a node may not have caught up with the metadata log."""
    transaction_seconds: float = 300.0
    """How long a transaction may be open."""
    rebalance_seconds: float = 60.0
    """How long a group may rebalance."""
    skew: float = 1.5
    """A broker with this many times its fair share of leaders, replicas or bytes is named."""
    skew_least: int = 50
    """Partitions in the cluster below which shares say nothing."""
    skew_bytes: int = 10 << 30
    """Bytes on the fullest broker below which its share does not matter."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A cluster at one moment."""

    taken_at: float
    """Seconds since 1970."""
    error: str | None = None
    """Why the cluster could not be reached at all; then nothing else is known."""
    cluster_id: str | None = None
    brokers: Mapping[int, Broker] = field(default_factory=dict)
    """Those that the metadata names: they are up."""
    registered: Mapping[int, RegisteredBroker] | None = None
    """Those that the controller knows, fenced ones as well."""
    silent: Mapping[int, str] = field(default_factory=dict)
    """Brokers that are up by the metadata and do not answer, and why."""
    versions: Mapping[int, BrokerVersions] = field(default_factory=dict)
    topics: Mapping[str, Topic] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """A few settings of each topic: min.insync.replicas, throttled replicas."""
    own_settings: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """The throttle rates of each broker."""
    quorum: Quorum | None = None
    quorum_error: str | None = None
    """Why no controller answered."""
    log_dirs: LogDirs = field(default_factory=LogDirs)
    growth: Mapping[TopicPartition, Growth] = field(default_factory=dict)
    """How partitions grew in the last hour, where retention did not take as much away."""
    reassignments: tuple[Reassignment, ...] | None = None
    transactions: tuple[OngoingTransaction, ...] = ()
    groups: tuple[ListedGroup, ...] = ()
    unseen: tuple[str, ...] = ()

    def partitions(self) -> Iterator[tuple[Topic, Partition]]:
        """Yield all partitions but those of the probe, which has a check of its own."""
        for topic in self.topics.values():
            if topic.name != PROBE_TOPIC:
                for partition in topic.partitions:
                    yield topic, partition

    def min_insync(self, topic: Topic) -> int:
        """Return how many replicas must be in sync for a write with acks=all; 1 if unknown."""
        value = self.settings.get(topic.name, {}).get("min.insync.replicas", "1")
        return int(value) if value.isdigit() else 1

    @property
    def partition_count(self) -> int:
        """The number of partitions in the cluster."""
        return sum(len(topic.partitions) for topic in self.topics.values())
