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
    from ottla.errors import BrokerError, OttlaError
    from ottla.model import Fingerprint, Isolation, OffsetRange, TopicPartition
    from ottla.net.cluster import Cluster

__version__ = "0.1.0"

_HOMES = {
    "Admin": "ottla.admin",
    "BrokerError": "ottla.errors",
    "Cluster": "ottla.net.cluster",
    "Fingerprint": "ottla.model",
    "Isolation": "ottla.model",
    "NewTopic": "ottla.admin",
    "OAuthBearer": "ottla.config",
    "OffsetRange": "ottla.model",
    "OffsetSpec": "ottla.admin",
    "OttlaError": "ottla.errors",
    "Plain": "ottla.config",
    "Retry": "ottla.config",
    "Scram": "ottla.config",
    "Security": "ottla.config",
    "Timeouts": "ottla.config",
    "Tls": "ottla.config",
    "TopicDescription": "ottla.admin",
    "TopicPartition": "ottla.model",
}

__all__ = [
    "Admin",
    "BrokerError",
    "Cluster",
    "Fingerprint",
    "Isolation",
    "NewTopic",
    "OAuthBearer",
    "OffsetRange",
    "OffsetSpec",
    "OttlaError",
    "Plain",
    "Retry",
    "Scram",
    "Security",
    "Timeouts",
    "Tls",
    "TopicDescription",
    "TopicPartition",
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
