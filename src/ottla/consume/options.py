"""How a consumer takes part in its group, as frozen values that are checked on creation.

What the program passes comes in; a complete and consistent `GroupOptions` goes out, or a `ConfigError` that names the
accepted values. Nothing here connects or keeps state.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import permutations

from ottla.config import LONGEST
from ottla.errors import ConfigError

COOPERATIVE_STICKY, RANGE = "cooperative-sticky", "range"
_CLASSIC_ASSIGNORS = (COOPERATIVE_STICKY, RANGE)


class Protocol(Enum):
    """How the members of a group agree on their partitions."""

    AUTO = "auto"
    """KIP-848 if the brokers support it (4.0); the classic protocol with older brokers, and in a classic group that has
    live members."""
    CONSUMER = "consumer"
    """KIP-848: the broker assigns, and only partitions that move stop."""
    CLASSIC = "classic"
    """One of the members assigns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """Settings of a group member. Durations are in seconds.

    Under KIP-848 the broker decides about sessions and heartbeats, whatever is set here.
    `assignors` are for the classic protocol, in order of preference. If they include "range", a member releases all its
    partitions at every rebalance, whichever assignor the group chooses, because range may move any partition.
    `("cooperative-sticky",)` alone keeps reading what stays, but every member must offer it. Raises `ConfigError` for
    invalid values.
    """

    protocol: Protocol = Protocol.AUTO
    """The classic one, that of KIP-848, or that of KIP-848 if the brokers support it."""
    assignors: tuple[str, ...] = _CLASSIC_ASSIGNORS
    server_assignor: str | None = None
    """For KIP-848: "uniform", "range", or an assignor installed on the brokers; None for the brokers' default."""
    session_timeout: float = 45.0
    """The group drops a member without a heartbeat for this long. The member itself gives up at the same time."""
    heartbeat_interval: float = 3.0
    """How often the member says that it is alive."""
    max_poll_interval: float = 300.0
    """A program that does not poll for this long leaves the group until it polls again. It is also how long the group
    waits for this member during a rebalance."""
    instance_id: str | None = None
    """Makes this a static member (KIP-345): it may restart within the session timeout without a rebalance."""
    rack: str | None = None
    """Where the member runs, for assignors of the brokers that take racks into account."""

    def __post_init__(self) -> None:
        protocol: object = self.protocol
        if not isinstance(protocol, Protocol):
            accepted = ", ".join(f"Protocol.{member.name}" for member in Protocol)
            raise ConfigError(f"GroupOptions(protocol=...) must be one of {accepted}, got {protocol!r}")
        self._check_assignors()
        for name in ("session_timeout", "heartbeat_interval", "max_poll_interval"):
            _seconds(name, getattr(self, name))
        if self.heartbeat_interval >= self.session_timeout:
            actual = f"got {self.heartbeat_interval:g} and {self.session_timeout:g} s"
            advice = "a third of it is usual"
            raise ConfigError(f"heartbeat_interval must be shorter than session_timeout ({advice}), {actual}")
        for name in ("server_assignor", "instance_id", "rack"):
            _text(name, getattr(self, name))

    @property
    def keeps_while_joining(self) -> bool:
        """Whether the member keeps its partitions during a rebalance. Only safe if the group must cooperate."""
        return self.assignors == (COOPERATIVE_STICKY,)

    def _check_assignors(self) -> None:
        assignors: object = self.assignors
        accepted = [*permutations(_CLASSIC_ASSIGNORS), *((name,) for name in _CLASSIC_ASSIGNORS)]
        if assignors not in accepted:
            names = " and ".join(repr(name) for name in _CLASSIC_ASSIGNORS)
            raise ConfigError(
                f"GroupOptions(assignors=...) must be a tuple with {names} or one of them, got {assignors!r}"
            )


def _seconds(name: str, value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0.001 <= value <= LONGEST:
        raise ConfigError(f"GroupOptions({name}=...) must be seconds from 0.001 to {LONGEST:,.0f}, got {value!r}")


def _text(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, str) or not value):
        raise ConfigError(f"GroupOptions({name}=...) must be a non-empty string or None, got {value!r}")
