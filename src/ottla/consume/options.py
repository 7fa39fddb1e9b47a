"""How a consumer takes part in its group, as a frozen value that is checked when it is made.

What a program wrote comes in, a complete and consistent `GroupOptions` goes out, or an error that names what is
accepted. Nothing here connects or keeps state.
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
    """The way in which the members of a group agree on who reads what."""

    AUTO = "auto"
    """That of KIP-848 where the brokers have it (4.0), the classic one with older brokers and in a classic group that
    has live members."""
    CONSUMER = "consumer"
    """KIP-848: the broker assigns, and only those partitions stop that move."""
    CLASSIC = "classic"
    """One of the members assigns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """Seconds are floats. What a broker decides itself under KIP-848 (session, heartbeats) is not taken from here.

    `assignors` are for the classic protocol, and offered in this order. With "range" among them, whatever the group
    then chooses, a member gives up all its partitions whenever the group changes, since range may hand any to anybody.
    `("cooperative-sticky",)` alone keeps reading what stays, but then every member must offer it.
    """

    protocol: Protocol = Protocol.AUTO
    assignors: tuple[str, ...] = _CLASSIC_ASSIGNORS
    server_assignor: str | None = None
    """For KIP-848: "uniform", "range", or one that the brokers were given; None for the brokers' first."""
    session_timeout: float = 45.0
    """A member of which nothing was heard for this long is out. Also how long this member believes that it is in."""
    heartbeat_interval: float = 3.0
    max_poll_interval: float = 300.0
    """A program that asks for no records for this long leaves the group until it does; also the time that the others
    wait for this member when the group changes."""
    instance_id: str | None = None
    """Makes a static member (KIP-345): it may restart within the session timeout without anything moving."""
    rack: str | None = None

    def __post_init__(self) -> None:
        protocol: object = self.protocol
        if not isinstance(protocol, Protocol):
            accepted = ", ".join(f"Protocol.{one.name}" for one in Protocol)
            raise ConfigError(f"GroupOptions(protocol=...) must be one of {accepted}, got {protocol!r}")
        self._check_assignors()
        for name in ("session_timeout", "heartbeat_interval", "max_poll_interval"):
            _seconds(name, getattr(self, name))
        if self.heartbeat_interval >= self.session_timeout:
            wrong = f"got {self.heartbeat_interval:g} and {self.session_timeout:g} s"
            advice = "a third of it is usual"
            raise ConfigError(f"heartbeat_interval must be shorter than session_timeout ({advice}), {wrong}")
        for name in ("server_assignor", "instance_id", "rack"):
            _text(name, getattr(self, name))

    @property
    def keeps_while_joining(self) -> bool:
        """Whether partitions are kept while the group changes: only safe if nothing but cooperation can be chosen."""
        return self.assignors == (COOPERATIVE_STICKY,)

    def _check_assignors(self) -> None:
        given: object = self.assignors
        accepted = [*permutations(_CLASSIC_ASSIGNORS), *((name,) for name in _CLASSIC_ASSIGNORS)]
        if given not in accepted:
            names = " and ".join(repr(name) for name in _CLASSIC_ASSIGNORS)
            raise ConfigError(f"GroupOptions(assignors=...) must be a tuple with {names} or one of them, got {given!r}")


def _seconds(name: str, value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0.001 <= value <= LONGEST:
        raise ConfigError(f"GroupOptions({name}=...) must be seconds from 0.001 to {LONGEST:,.0f}, got {value!r}")


def _text(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, str) or not value):
        raise ConfigError(f"GroupOptions({name}=...) must be a text that is not empty, or None, got {value!r}")
