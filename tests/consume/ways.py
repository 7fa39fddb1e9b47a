"""The protocols of a group member with short timeouts, and the settings of a broker that allows them."""

from __future__ import annotations

from typing import Any

from ottla.consume.options import Protocol

SETTINGS = {
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": "2000",
    "group.consumer.min.heartbeat.interval.ms": "50",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.assignment.interval.ms": "0",
}
EAGER: dict[str, Any] = {"protocol": Protocol.CLASSIC, "heartbeat_interval": 0.1, "session_timeout": 2.0}
COOPERATIVE: dict[str, Any] = EAGER | {"assignors": ("cooperative-sticky",)}
MODERN: dict[str, Any] = {"protocol": Protocol.CONSUMER, "session_timeout": 2.0, "heartbeat_interval": 0.1}
WAYS = {"eager": EAGER, "cooperative": COOPERATIVE, "modern": MODERN}
