"""A state machine of the classic protocol on a test stand, and the responses of a coordinator."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ottla.consume.classic import Classic
from ottla.consume.classic_messages import JOIN, SYNC, write_assignment
from ottla.consume.options import GroupOptions, Protocol
from ottla.consume.ownership import OwnedPartitions, Partitions
from ottla.consume.steps import Ask
from ottla.errors import ErrorCode
from ottla.net import Topic
from ottla.net.metadata import Partition

from .stands import Stand

COOPERATIVE = ("cooperative-sticky",)


def options(**overrides: Any) -> GroupOptions:
    basics: dict[str, Any] = {"protocol": Protocol.CLASSIC, "session_timeout": 10.0, "max_poll_interval": 30.0}
    return GroupOptions(**(basics | overrides))


def topic(count: int, name: str = "t") -> Topic:
    return Topic(name, partitions=tuple(Partition(index, 0) for index in range(count)))


class ClassicStand(Stand[Classic]):
    """A stand, with the responses of a coordinator of the classic protocol."""

    def __init__(self, **overrides: Any) -> None:
        ownership = OwnedPartitions()
        machine = Classic(
            "g", options=options(**overrides), ownership=ownership, waits=lambda _: 1.0, seconds=5.0, metadata_age=6.0
        )
        super().__init__(machine, ownership)

    def answer(self, ask: Ask, code: ErrorCode = ErrorCode.none, **fields: Any) -> None:
        self.machine.answered(ask, SimpleNamespace(error_code=code, **fields), self.now)

    def become(
        self, partitions: Partitions, *, generation: int = 1, leader: str = "another", protocol: str = "range"
    ) -> None:
        """Join, get an assignment and take it over."""
        ask = self.ask()
        assert ask.api == JOIN
        self.answer(ask, member_id="me", generation_id=generation, protocol_name=protocol, leader=leader, members=())
        ask = self.ask()
        assert ask.api == SYNC
        self.answer(ask, assignment=write_assignment(partitions))
        self.act()
