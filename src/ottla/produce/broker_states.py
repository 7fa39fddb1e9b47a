"""What the core of a producer knows of the brokers' connections: up or away, and how many requests are in flight.

Changes come in; whether a broker takes another request goes out. Pure: the links themselves are in `net/links.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.errors import OttlaError

MOST_REQUESTS = 5
"""Requests in flight to one broker. A broker works on one at a time; the others wait in its socket."""


class BrokerState:
    """What is known of one broker's connection."""

    __slots__ = ("away_since", "error", "is_up", "requests")

    def __init__(self) -> None:
        self.is_up = False
        self.away_since: float | None = None
        self.requests = 0
        self.error: OttlaError | None = None

    @property
    def has_room(self) -> bool:
        """Whether another request may be sent."""
        return self.is_up and self.requests < MOST_REQUESTS


class BrokerStates:
    """The states of all brokers that metadata has named or a link has reported."""

    __slots__ = ("_states", "now")

    def __init__(self) -> None:
        self._states: dict[int, BrokerState] = {}
        self.now = 0.0
        """The time of the core's last decision, for texts that say how long a broker has been away."""

    def __getitem__(self, broker: int) -> BrokerState:
        return self._states[broker]

    def find(self, broker: int, named: Mapping[int, str]) -> BrokerState | None:
        """Return the state of a broker, if a link has reported it or metadata names it (`named`)."""
        state = self._states.get(broker)
        if state is None and broker in named:
            state = self._states[broker] = BrokerState()
        return state

    def changed(self, broker: int, *, is_up: bool, away_since: float | None, error: OttlaError | None) -> None:
        """Record that a connection came up or went down."""
        state = self._states.setdefault(broker, BrokerState())
        state.is_up, state.away_since, state.error = is_up, away_since, error

    def describe(self, broker: int, state: BrokerState, named: Mapping[int, str]) -> str:
        """Return the broker's name, and for how long it has been away and why."""
        name = named.get(broker, f"broker {broker}")
        if state.away_since is None:
            return name
        return f"{name}, away for {self.now - state.away_since:.1f} s: {state.error}"
