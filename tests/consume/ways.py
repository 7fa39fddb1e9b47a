"""The protocols of a group member with short timeouts, which the broker `hasty` allows."""

from __future__ import annotations

from typing import Any

from ottla.consume.options import Protocol

EAGER: dict[str, Any] = {"protocol": Protocol.CLASSIC, "heartbeat_interval": 0.1, "session_timeout": 4.0}
COOPERATIVE: dict[str, Any] = EAGER | {"assignors": ("cooperative-sticky",)}
MODERN: dict[str, Any] = {"protocol": Protocol.CONSUMER, "session_timeout": 4.0, "heartbeat_interval": 0.1}
WAYS = {"eager": EAGER, "cooperative": COOPERATIVE, "modern": MODERN}
