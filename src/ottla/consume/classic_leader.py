"""The work of a classic group's leader: reads the members' subscriptions and assigns partitions.

The members of a generation, as JoinGroup lists them, and the metadata of their topics come in. The assignment of each
member goes out as bytes for SyncGroup; later, whether the topics changed since. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from ottla.consume import assignors
from ottla.consume.classic_messages import MemberSubscription, read_subscription, write_assignment
from ottla.errors import WireError
from ottla.net import Topic


class ClassicLeader:
    """The leader in one generation. `notes` lists what it could not read."""

    def __init__(self, protocol: str, members: Iterable[Any]) -> None:
        self.notes: list[str] = []
        self._protocol = protocol
        self._members = {member.member_id: self._read(member) for member in members}
        self._counts: dict[str, int] | None = None

    @property
    def topics(self) -> frozenset[str]:
        """Every topic that a member subscribes to."""
        return frozenset(topic for subscription in self._members.values() for topic in subscription.topics)

    def assignments(self, topics: Collection[Topic]) -> dict[str, bytes]:
        """Return the assignment of each member. Raises `UnsupportedFormat` for an unknown assignor."""
        self._counts = _counts(topics)
        assignments = assignors.assign(self._protocol, self._members, self._counts)
        return {member: write_assignment(partitions) for member, partitions in assignments.items()}

    def differs(self, topics: Collection[Topic]) -> bool:
        """Return whether partition counts differ from those of the first call of this method or of `assignments`."""
        if self._counts is None:
            self._counts = _counts(topics)
        return self._counts != _counts(topics)

    def _read(self, member: Any) -> MemberSubscription:
        try:
            return read_subscription(bytes(member.metadata))
        except WireError as error:
            self.notes.append(f"member {member.member_id} gets no partitions: its subscription is unreadable: {error}")
            return MemberSubscription(frozenset())


def _counts(topics: Collection[Topic]) -> dict[str, int]:
    return {topic.name: len(topic.partitions) for topic in topics if topic.partitions}
