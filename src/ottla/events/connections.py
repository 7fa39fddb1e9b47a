"""Events of connections. See `event.py`."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from ottla.events.event import Event


@dataclass(frozen=True, slots=True)
class ConnectionUp(Event):
    """A connection is ready for requests. `seconds` is the time to connect.

    `broker_id` is None, here and below, if only the address is known, as for a bootstrap server.
    """

    sets = MappingProxyType({"broker.up": 1.0, "still_down.seconds": 0.0})

    broker_id: int | None
    address: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ConnectionDown(Event):
    """A connection ended or failed, for the first time since the broker was up."""

    sets = MappingProxyType({"broker.up": 0.0})

    broker_id: int | None
    address: str
    reason: str


@dataclass(frozen=True, slots=True)
class StillDown(Event):
    """A broker has been down for `seconds`. Repeated while that lasts."""

    gauges = frozenset({"seconds"})
    sets = MappingProxyType({"broker.up": 0.0})

    broker_id: int | None
    address: str
    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class TimeDown(Event):
    """A broker is up again. It was down for `seconds`."""

    sets = MappingProxyType({"still_down.seconds": 0.0})

    broker_id: int | None
    address: str
    seconds: float
