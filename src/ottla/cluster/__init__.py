"""Real Apache Kafka brokers (and a Redis) on this machine, started from pinned jars.

`LocalCluster` is all that other rooms need, for development, tests, benchmarks and the demo. Not for production: users,
passwords and ports are made for 127.0.0.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla._lazy import lazy

if TYPE_CHECKING:
    from ottla.cluster.local import Data, LocalCluster
    from ottla.cluster.status import BrokerStatus, ClusterStatus, Condition, RedisStatus
    from ottla.cluster.topics import TopicSpec

_HOMES = {
    "BrokerStatus": "ottla.cluster.status",
    "ClusterStatus": "ottla.cluster.status",
    "Condition": "ottla.cluster.status",
    "Data": "ottla.cluster.local",
    "LocalCluster": "ottla.cluster.local",
    "RedisStatus": "ottla.cluster.status",
    "TopicSpec": "ottla.cluster.topics",
}

__all__ = ["BrokerStatus", "ClusterStatus", "Condition", "Data", "LocalCluster", "RedisStatus", "TopicSpec"]

if not TYPE_CHECKING:  # Otherwise a type checker would accept every misspelled name.
    __getattr__, __dir__ = lazy(__name__, _HOMES)
