"""Ottla: move Kafka data at wire speed from Python, and prove that none was lost.

The names below are the public surface of this package; each is imported when it is first used, so that `import ottla`
stays cheap. Rooms with a surface of their own: `ottla.cluster` (local brokers), `ottla.testing` (a fake broker).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.admin import Admin, NewTopic, OffsetSpec, TopicDescription
    from ottla.config import OAuthBearer, Plain, Retry, Scram, Security, Timeouts, Tls
    from ottla.errors import BrokerError, BufferFull, Fenced, KeptInSpool, NotDelivered, OttlaError, TransactionFailed
    from ottla.events import Events
    from ottla.model import Fingerprint, Isolation, OffsetRange, TopicPartition
    from ottla.net.cluster import Cluster
    from ottla.net.discovery import OnUnknownTopic
    from ottla.produce.coordinator import GroupMember, PreparedTransaction
    from ottla.produce.delivery import BulkDelivery, Delivery
    from ottla.produce.options import Batching, Buffering, Spool, TopicOptions, WhenFull
    from ottla.produce.partition import PartitionProducer
    from ottla.produce.producer import Producer
    from ottla.produce.route import ByColumn, Random, RoundRobin, Sticky
    from ottla.produce.transaction import end_transaction


__version__ = "0.1.0"

_HOMES = {
    "Admin": "ottla.admin",
    "Batching": "ottla.produce.options",
    "BrokerError": "ottla.errors",
    "BufferFull": "ottla.errors",
    "Buffering": "ottla.produce.options",
    "BulkDelivery": "ottla.produce.delivery",
    "ByColumn": "ottla.produce.route",
    "Cluster": "ottla.net.cluster",
    "Delivery": "ottla.produce.delivery",
    "Events": "ottla.events",
    "Fenced": "ottla.errors",
    "Fingerprint": "ottla.model",
    "GroupMember": "ottla.produce.coordinator",
    "Isolation": "ottla.model",
    "KeptInSpool": "ottla.errors",
    "NewTopic": "ottla.admin",
    "NotDelivered": "ottla.errors",
    "OAuthBearer": "ottla.config",
    "OffsetRange": "ottla.model",
    "OffsetSpec": "ottla.admin",
    "OnUnknownTopic": "ottla.net.discovery",
    "OttlaError": "ottla.errors",
    "PartitionProducer": "ottla.produce.partition",
    "Plain": "ottla.config",
    "PreparedTransaction": "ottla.produce.coordinator",
    "Producer": "ottla.produce.producer",
    "Random": "ottla.produce.route",
    "Retry": "ottla.config",
    "RoundRobin": "ottla.produce.route",
    "Scram": "ottla.config",
    "Security": "ottla.config",
    "Spool": "ottla.produce.options",
    "Sticky": "ottla.produce.route",
    "Timeouts": "ottla.config",
    "Tls": "ottla.config",
    "TopicDescription": "ottla.admin",
    "TopicOptions": "ottla.produce.options",
    "TopicPartition": "ottla.model",
    "TransactionFailed": "ottla.errors",
    "WhenFull": "ottla.produce.options",
    "end_transaction": "ottla.produce.transaction",
}

__all__ = [
    "Admin",
    "Batching",
    "BrokerError",
    "BufferFull",
    "Buffering",
    "BulkDelivery",
    "ByColumn",
    "Cluster",
    "Delivery",
    "Events",
    "Fenced",
    "Fingerprint",
    "GroupMember",
    "Isolation",
    "KeptInSpool",
    "NewTopic",
    "NotDelivered",
    "OAuthBearer",
    "OffsetRange",
    "OffsetSpec",
    "OnUnknownTopic",
    "OttlaError",
    "PartitionProducer",
    "Plain",
    "PreparedTransaction",
    "Producer",
    "Random",
    "Retry",
    "RoundRobin",
    "Scram",
    "Security",
    "Spool",
    "Sticky",
    "Timeouts",
    "Tls",
    "TopicDescription",
    "TopicOptions",
    "TopicPartition",
    "TransactionFailed",
    "WhenFull",
    "end_transaction",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ottla' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
