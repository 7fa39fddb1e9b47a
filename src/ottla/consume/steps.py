"""The steps that a state machine of group membership asks for, and the interface of these machines.

Steps go out; responses, failures and metadata come in, always with the time. Pure values: the driver (`membership.py`)
decides on which thread and connection a step runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

from ottla.errors import BrokerError, ErrorCode, OttlaError
from ottla.net import Refresh, Topic
from ottla.net.attempts import worth_repeating

Waits = Callable[[int], float]
"""Returns the seconds to wait after a number of consecutive failures."""
PATIENCE = 5.0
"""Seconds added to the time that a broker may take for a response by its own rules."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Send this request to the group's coordinator; the response must arrive within `seconds`."""

    api: int
    what: str
    fields: Mapping[str, Any]
    seconds: float
    lowest: int = 0
    """The oldest API version that is sufficient."""
    patient: bool = False
    """Whether the coordinator holds the response back until other members act."""


@dataclass(frozen=True, slots=True)
class Look:
    """Look up the metadata of these topics."""

    topics: frozenset[str]
    refresh: Refresh


@dataclass(frozen=True, slots=True)
class Rest:
    """Do nothing before `until`, unless the program does something."""

    until: float = inf


Step = Ask | Look | Rest


class Machine(Protocol):
    """One protocol of membership. Methods raise the error that ends the membership."""

    member_id: str
    notes: list[str]
    """What happened, for the log; the driver empties it."""

    @property
    def generation(self) -> int:
        """The generation or member epoch; -1 while not a member."""

    def step(self, now: float, *, topics: frozenset[str], polled: float) -> Step:
        """Return the next step; `polled` is when the program last asked for records."""

    def answered(self, ask: Ask, response: Any, now: float) -> None:
        """Process a response of the coordinator."""

    def learned(self, topics: Collection[Topic], now: float) -> None:
        """Process the metadata that a `Look` asked for."""

    def failed(self, step: Ask | Look, error: OttlaError, now: float) -> None:
        """Process the failure of a step; it is unknown whether the coordinator received the request."""

    def farewell(self) -> Ask | None:
        """Return the request that leaves, if there is a membership to leave."""


class Pace:
    """Counts consecutive failures, paces retries, and tracks the last response of the coordinator."""

    def __init__(self, waits: Waits, *, session_timeout: float) -> None:
        self._waits = waits
        self._session_timeout = session_timeout
        self._failures = 0
        self._heard = -inf
        self.not_before = -inf

    @property
    def session_over(self) -> float:
        """When the group must be assumed to have dropped this member."""
        return self._heard + self._session_timeout

    def succeeded(self, now: float) -> None:
        """Note a successful response."""
        self._failures = 0
        self._heard = now
        self.not_before = -inf

    def stumbled(self, now: float) -> None:
        """Note a failure: retry after a pause."""
        self._failures += 1
        self.not_before = now + self._waits(self._failures)

    def failed(self, error: OttlaError, now: float) -> None:
        """Note a failure. Raises the error if a retry would only repeat it."""
        if not worth_repeating(error):
            raise error
        self.stumbled(now)


def poll_missed(limit: float) -> str:
    """Return the note of a member that leaves because its program did not poll within `limit` seconds."""
    return f"no poll within {limit:g} s (max_poll_interval): leaving the group until the next poll"


def refusal(ask: Ask, response: Any) -> BrokerError | None:
    """Return the error of a response, if any. DescribeGroups has it in its only group."""
    result = response if hasattr(response, "error_code") else response.groups[0]
    if result.error_code is ErrorCode.none:
        return None
    return BrokerError(result.error_code, ask.what, getattr(result, "error_message", None))
