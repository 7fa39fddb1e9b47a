"""Real Apache Kafka brokers (and a Redis) on this machine, started from pinned jars.

`LocalCluster` is all that other rooms need: for development, tests, benchmarks and the demo. Nothing here is for
production: users, passwords and ports are made for 127.0.0.1.
"""

from __future__ import annotations

from ottla.cluster.local import Data, LocalCluster
from ottla.cluster.status import BrokerStatus, ClusterStatus, Condition, RedisStatus
from ottla.cluster.topics import TopicSpec

__all__ = ["BrokerStatus", "ClusterStatus", "Condition", "Data", "LocalCluster", "RedisStatus", "TopicSpec"]
