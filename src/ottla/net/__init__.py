"""Connections to brokers (TLS, SASL, pipelined requests) and the cluster client (metadata, leaders, retries)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla._lazy import lazy

if TYPE_CHECKING:
    from ottla.net.attempts import Attempts
    from ottla.net.cluster import Cluster, Refresh
    from ottla.net.connection import Connection, Pending, Reply, VersionOf
    from ottla.net.deadline import Deadline
    from ottla.net.discovery import OnUnknownTopic
    from ottla.net.metadata import Broker, Metadata, Partition, Topic
    from ottla.net.targets import AnyBroker, Controller, CoordinatorKind, CoordinatorOf, LeaderOf, Node, Target

_HOMES = {
    "AnyBroker": "ottla.net.targets",
    "Broker": "ottla.net.metadata",
    "Cluster": "ottla.net.cluster",
    "Connection": "ottla.net.connection",
    "Controller": "ottla.net.targets",
    "CoordinatorKind": "ottla.net.targets",
    "CoordinatorOf": "ottla.net.targets",
    "Deadline": "ottla.net.deadline",
    "Attempts": "ottla.net.attempts",
    "LeaderOf": "ottla.net.targets",
    "Metadata": "ottla.net.metadata",
    "Node": "ottla.net.targets",
    "OnUnknownTopic": "ottla.net.discovery",
    "Partition": "ottla.net.metadata",
    "Pending": "ottla.net.connection",
    "Refresh": "ottla.net.cluster",
    "Reply": "ottla.net.connection",
    "Target": "ottla.net.targets",
    "Topic": "ottla.net.metadata",
    "VersionOf": "ottla.net.connection",
}

__all__ = [
    "AnyBroker",
    "Attempts",
    "Broker",
    "Cluster",
    "Connection",
    "Controller",
    "CoordinatorKind",
    "CoordinatorOf",
    "Deadline",
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

if not TYPE_CHECKING:  # a type checker that sees __getattr__ accepts every misspelled name
    __getattr__, __dir__ = lazy(__name__, _HOMES)
