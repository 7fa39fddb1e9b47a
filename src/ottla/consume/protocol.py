"""Chooses the protocol of a group member: the one that the program names, or the one that fits group and brokers.

A state machine that first asks for the type of the group and then becomes the machine of the chosen protocol: classic
for a classic group with live members and for brokers before 4.0, otherwise KIP-848. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from ottla.consume.classic import Classic
from ottla.consume.modern import Modern
from ottla.consume.options import GroupOptions, Protocol
from ottla.consume.ownership import OwnedPartitions
from ottla.consume.steps import Ask, Look, Machine, Pace, Rest, Step, Waits, refusal
from ottla.errors import BrokerError, ErrorCode, OttlaError, UnsupportedFormat
from ottla.net import Topic

DESCRIBE_GROUPS = 15
_FIRST_STABLE = 1
"""The version of ConsumerGroupHeartbeat with which KIP-848 became stable (Kafka 4.0); 3.x had previews."""
_LIVE_STATES = {"Stable", "PreparingRebalance", "CompletingRebalance"}
_UNAVAILABLE = {ErrorCode.unsupported_version, ErrorCode.group_id_not_found}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """What every machine needs. `seconds` is the time limit of a request that does not wait for other members."""

    options: GroupOptions
    ownership: OwnedPartitions
    member_id: str
    waits: Waits
    seconds: float
    metadata_age: float


class ChosenProtocol:
    """Behaves like the machine of the protocol in use. Implements `steps.Machine`."""

    def __init__(self, group: str, settings: MemberSettings) -> None:
        self.notes: list[str] = []
        self._group = group
        self._settings = settings
        self._machine = self._first()

    @property
    def protocol(self) -> Protocol | None:
        """The protocol in use, None until it is decided."""
        match self._machine:
            case Modern():
                return Protocol.CONSUMER
            case Classic():
                return Protocol.CLASSIC
        return None

    @property
    def member_id(self) -> str:
        """The member id, empty until it has one."""
        return self._machine.member_id

    @property
    def generation(self) -> int:
        """The generation or member epoch, -1 while not a member."""
        return self._machine.generation

    def step(self, now: float, *, topics: frozenset[str], polled: float) -> Step:
        """Return the next step."""
        try:
            return self._machine.step(now, topics=topics, polled=polled)
        finally:
            self._take_notes()

    def answered(self, ask: Ask, response: Any, now: float) -> None:
        """Process a response of the coordinator."""
        self._fall_back_to_classic(lambda: self._machine.answered(ask, response, now))
        if isinstance(self._machine, _GroupTypeQuery) and self._machine.answer is not None:
            self._machine = self._modern() if self._machine.answer is Protocol.CONSUMER else self._classic()

    def learned(self, topics: Collection[Topic], now: float) -> None:
        """Process the metadata that a `Look` asked for."""
        self._machine.learned(topics, now)

    def failed(self, step: Ask | Look, error: OttlaError, now: float) -> None:
        """Process the failure of a step."""
        self._fall_back_to_classic(lambda: self._machine.failed(step, error, now))

    def farewell(self) -> Ask | None:
        """Return the request that leaves, if any."""
        return self._machine.farewell()

    def _first(self) -> Machine:
        match self._settings.options.protocol:
            case Protocol.CONSUMER:
                return self._modern()
            case Protocol.CLASSIC:
                return self._classic()
        return _GroupTypeQuery(self._group, self._settings)

    def _fall_back_to_classic(self, call: Callable[[], None]) -> None:
        """If the program left the protocol open, switch to classic when joining shows that KIP-848 is unavailable."""
        try:
            call()
        except OttlaError as error:
            is_open = self._settings.options.protocol is Protocol.AUTO and self.generation < 0
            if not is_open or isinstance(self._machine, Classic) or not _is_unavailable(error):
                raise
            self._machine = self._classic()
        finally:
            self._take_notes()

    def _take_notes(self) -> None:
        self.notes += self._machine.notes
        self._machine.notes.clear()

    def _modern(self) -> Modern:
        settings = self._settings
        return Modern(
            self._group,
            options=settings.options,
            ownership=settings.ownership,
            member_id=settings.member_id,
            waits=settings.waits,
            seconds=settings.seconds,
            lowest=_FIRST_STABLE if settings.options.protocol is Protocol.AUTO else 0,
        )

    def _classic(self) -> Classic:
        settings = self._settings
        return Classic(
            self._group,
            options=settings.options,
            ownership=settings.ownership,
            waits=settings.waits,
            seconds=settings.seconds,
            metadata_age=settings.metadata_age,
        )


class _GroupTypeQuery:
    """Asks for the type of the group; `answer` is None until it is known."""

    def __init__(self, group: str, settings: MemberSettings) -> None:
        self.member_id = ""
        self.generation = -1
        self.notes: list[str] = []
        self.answer: Protocol | None = None
        self._group = group
        self._seconds = settings.seconds
        self._pace = Pace(settings.waits, session_timeout=settings.options.session_timeout)

    def step(self, now: float, *, topics: frozenset[str], polled: float) -> Step:
        """Ask as soon as there are topics to join for."""
        if not topics:
            return Rest()
        if now < self._pace.not_before:
            return Rest(self._pace.not_before)
        fields = {"groups": [self._group], "include_authorized_operations": False}
        return Ask(DESCRIBE_GROUPS, f"looking at group {self._group}", fields, self._seconds)

    def answered(self, ask: Ask, response: Any, now: float) -> None:
        """Process the answer. A missing group, or one of another type, is not found (KIP-1043) or dead."""
        error = refusal(ask, response)
        if error is not None and error.code is not ErrorCode.group_id_not_found:
            self.failed(ask, error, now)
            return
        is_classic = error is None and response.groups[0].group_state in _LIVE_STATES
        self.answer = Protocol.CLASSIC if is_classic else Protocol.CONSUMER

    def learned(self, topics: Collection[Topic], now: float) -> None:
        """Do nothing: this machine never looks up topics."""

    def failed(self, step: Ask | Look, error: OttlaError, now: float) -> None:
        """Retry later. Raises the error if a retry would only repeat it."""
        self._pace.failed(error, now)

    def farewell(self) -> Ask | None:
        """Return None: there is no membership to leave."""
        return None


def _is_unavailable(error: OttlaError) -> bool:
    return isinstance(error, UnsupportedFormat) or (isinstance(error, BrokerError) and error.code in _UNAVAILABLE)
