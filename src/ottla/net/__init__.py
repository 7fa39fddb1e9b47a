"""Connections to brokers, TLS and SASL, and the cluster: metadata, leaders, coordinators, retries."""

from __future__ import annotations

from ottla.net.cluster import Cluster, Refresh
from ottla.net.connection import Connection, Pending, Reply, VersionOf
from ottla.net.deadline import Deadline
from ottla.net.discovery import OnUnknownTopic
from ottla.net.effort import Effort
from ottla.net.metadata import Broker, Metadata, Partition, Topic
from ottla.net.targets import AnyBroker, Controller, CoordinatorKind, CoordinatorOf, LeaderOf, Node, Target

__all__ = [
    "AnyBroker",
    "Broker",
    "Cluster",
    "Connection",
    "Controller",
    "CoordinatorKind",
    "CoordinatorOf",
    "Deadline",
    "Effort",
    "LeaderOf",
    "Metadata",
    "Node",
    "OnUnknownTopic",
    "Partition",
    "Pending",
    "Refresh",
    "Reply",
    "Target",
    "Topic",
    "VersionOf",
]
