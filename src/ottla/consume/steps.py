"""What a state machine of group membership wants done next, and the interface that the driver knows of it.

Steps go out, answers, failures and metadata come in, always with the time. Pure values; who carries a step out, and on
which connection, is the driver's affair.
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
"""Seconds to wait after so many failures in a row."""
PATIENCE = 5.0
"""Seconds beyond the time that a broker may take for an answer by its own rules."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Send this to the coordinator of the group; the answer must be there within `seconds`."""

    api: int
    what: str
    fields: Mapping[str, Any]
    seconds: float
    lowest: int = 0
    """The oldest version of the API that will do."""
    patient: bool = False
    """The coordinator answers when other members have done something."""


@dataclass(frozen=True, slots=True)
class Look:
    """Find out about these topics."""

    topics: frozenset[str]
    refresh: Refresh


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing to do before `until`, unless the program does something."""

    until: float = inf


Step = Ask | Look | Rest


class Machine(Protocol):
    """One way of being a member. Methods raise the error that ends the membership."""

    member_id: str
    notes: list[str]
    """What happened, for the log; the driver empties it."""

    @property
    def generation(self) -> int:
        """Generation or member epoch; -1 while it is no member."""

    def step(self, now: float, *, topics: frozenset[str], polled: float) -> Step:
        """What to do next; `polled` is when the program last asked for records."""

    def answered(self, ask: Ask, response: Any, now: float) -> None:
        """The coordinator answered."""

    def learned(self, topics: Collection[Topic], now: float) -> None:
        """What a `Look` found."""

    def failed(self, step: Ask | Look, error: OttlaError, now: float) -> None:
        """A step could not be carried out; whether the coordinator got the request is not known."""

    def farewell(self) -> Ask | None:
        """How to leave, if there is anything to leave."""


class Pace:
    """Failures in a row, the pause that they demand, and when the coordinator was last heard."""

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
        """The coordinator answered as a member hopes."""
        self._failures = 0
        self._heard = now
        self.not_before = -inf

    def stumbled(self, now: float) -> None:
        """Try again, but not at once."""
        self._failures += 1
        self.not_before = now + self._waits(self._failures)

    def failed(self, error: OttlaError, now: float) -> None:
        """Raises the error if another attempt would only repeat it."""
        if not worth_repeating(error):
            raise error
        self.stumbled(now)


def refusal(ask: Ask, response: Any) -> BrokerError | None:
    """The error in an answer; DescribeGroups has it in its only group."""
    judged = response if hasattr(response, "error_code") else response.groups[0]
    if judged.error_code is ErrorCode.none:
        return None
    return BrokerError(judged.error_code, ask.what, getattr(judged, "error_message", None))
