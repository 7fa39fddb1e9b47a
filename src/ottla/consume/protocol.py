"""The protocol that a member speaks: the one its program names, or the one that suits the group and its brokers.

A machine that first asks what the group is, and from then on is the machine of the protocol that was chosen: the
classic one for a classic group with live members and for brokers before 4.0, else that of KIP-848. Pure.
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
"""The version of ConsumerGroupHeartbeat with which KIP-848 became part of Kafka (4.0); 3.x had previews."""
_LIVE = {"Stable", "PreparingRebalance", "CompletingRebalance"}
_NOT_HERE = {ErrorCode.unsupported_version, ErrorCode.group_id_not_found}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """What every machine needs. `seconds` is for a request that waits for nobody."""

    options: GroupOptions
    holdings: OwnedPartitions
    member_id: str
    waits: Waits
    seconds: float
    metadata_age: float


class ChosenProtocol:
    """Behaves like the machine of the protocol in use."""

    def __init__(self, group: str, setting: MemberSettings) -> None:
        self.notes: list[str] = []
        self._group = group
        self._setting = setting
        self._machine = self._first()

    @property
    def protocol(self) -> Protocol | None:
        """The one in use, None while that is open."""
        match self._machine:
            case Modern():
                return Protocol.CONSUMER
            case Classic():
                return Protocol.CLASSIC
        return None

    @property
    def member_id(self) -> str:
        """Empty while it has none."""
        return self._machine.member_id

    @property
    def generation(self) -> int:
        """-1 while it is no member."""
        return self._machine.generation

    def step(self, now: float, *, topics: frozenset[str], polled: float) -> Step:
        """What to do next."""
        try:
            return self._machine.step(now, topics=topics, polled=polled)
        finally:
            self._take_notes()

    def answered(self, ask: Ask, response: Any, now: float) -> None:
        """The coordinator answered."""
        self._or_classic(lambda: self._machine.answered(ask, response, now))
        if isinstance(self._machine, _Question) and self._machine.answer is not None:
            self._machine = self._modern() if self._machine.answer is Protocol.CONSUMER else self._classic()

    def learned(self, topics: Collection[Topic], now: float) -> None:
        """What a `Look` found."""
        self._machine.learned(topics, now)

    def failed(self, step: Ask | Look, error: OttlaError, now: float) -> None:
        """A step could not be carried out."""
        self._or_classic(lambda: self._machine.failed(step, error, now))

    def farewell(self) -> Ask | None:
        """How to leave."""
        return self._machine.farewell()

    def _first(self) -> Machine:
        match self._setting.options.protocol:
            case Protocol.CONSUMER:
                return self._modern()
            case Protocol.CLASSIC:
                return self._classic()
        return _Question(self._group, self._setting)

    def _or_classic(self, act: Callable[[], None]) -> None:
        """Where the program leaves the protocol open, some errors at the door of one lead to the other."""
        try:
            act()
        except OttlaError as error:
            is_open = self._setting.options.protocol is Protocol.AUTO and self.generation < 0
            if not is_open or isinstance(self._machine, Classic) or not _not_to_be_had(error):
                raise
            self._machine = self._classic()
        finally:
            self._take_notes()

    def _take_notes(self) -> None:
        self.notes += self._machine.notes
        self._machine.notes.clear()

    def _modern(self) -> Modern:
        setting = self._setting
        return Modern(
            self._group,
            options=setting.options,
            holdings=setting.holdings,
            member_id=setting.member_id,
            waits=setting.waits,
            seconds=setting.seconds,
            lowest=_FIRST_STABLE if setting.options.protocol is Protocol.AUTO else 0,
        )

    def _classic(self) -> Classic:
        setting = self._setting
        return Classic(
            self._group,
            options=setting.options,
            holdings=setting.holdings,
            waits=setting.waits,
            seconds=setting.seconds,
            metadata_age=setting.metadata_age,
        )


class _Question:
    """Asks what the group is; `answer` is None until that is known."""

    def __init__(self, group: str, setting: MemberSettings) -> None:
        self.member_id = ""
        self.generation = -1
        self.notes: list[str] = []
        self.answer: Protocol | None = None
        self._group = group
        self._seconds = setting.seconds
        self._pace = Pace(setting.waits, session_timeout=setting.options.session_timeout)

    def step(self, now: float, *, topics: frozenset[str], polled: float) -> Step:
        """Asks, once there is something to join for."""
        if not topics:
            return Rest()
        if now < self._pace.not_before:
            return Rest(self._pace.not_before)
        fields = {"groups": [self._group], "include_authorized_operations": False}
        return Ask(DESCRIBE_GROUPS, f"looking at group {self._group}", fields, self._seconds)

    def answered(self, ask: Ask, response: Any, now: float) -> None:
        """A group that is not there, or of another kind, is not found (KIP-1043), or dead to older versions."""
        error = refusal(ask, response)
        if error is not None and error.code is not ErrorCode.group_id_not_found:
            self.failed(ask, error, now)
            return
        is_classic = error is None and response.groups[0].group_state in _LIVE
        self.answer = Protocol.CLASSIC if is_classic else Protocol.CONSUMER

    def learned(self, topics: Collection[Topic], now: float) -> None:
        """It asked for none."""

    def failed(self, step: Ask | Look, error: OttlaError, now: float) -> None:
        """Tries again later."""
        self._pace.failed(error, now)

    def farewell(self) -> Ask | None:
        """There is nothing to leave."""
        return None


def _not_to_be_had(error: OttlaError) -> bool:
    return isinstance(error, UnsupportedFormat) or (isinstance(error, BrokerError) and error.code in _NOT_HERE)
