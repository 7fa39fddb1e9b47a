"""What the leader of a classic group does for the others: it reads what they want and says who gets what.

The members of a generation, as JoinGroup lists them, and metadata of their topics come in; everybody's share goes out
as bytes for SyncGroup, and whether the topics have changed since. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from ottla.consume import assignors
from ottla.consume.classic_messages import MemberSubscription, read_subscription, write_assignment
from ottla.errors import WireError
from ottla.net import Topic


class ClassicLeader:
    """One generation's leader. `notes` says what it could not understand."""

    def __init__(self, protocol: str, members: Iterable[Any]) -> None:
        self.notes: list[str] = []
        self._protocol = protocol
        self._members = {member.member_id: self._read(member) for member in members}
        self._counts: dict[str, int] | None = None

    @property
    def topics(self) -> frozenset[str]:
        """All that somebody in the group wants to read."""
        return frozenset(topic for subscription in self._members.values() for topic in subscription.topics)

    def shares(self, topics: Collection[Topic]) -> dict[str, bytes]:
        """The assignment of each member."""
        self._counts = _counts(topics)
        shares = assignors.assign(self._protocol, self._members, self._counts)
        return {member: write_assignment(share) for member, share in shares.items()}

    def differs(self, topics: Collection[Topic]) -> bool:
        """Whether there are other partitions than when this was asked, or shares were made, for the first time."""
        if self._counts is None:
            self._counts = _counts(topics)
        return self._counts != _counts(topics)

    def _read(self, member: Any) -> MemberSubscription:
        try:
            return read_subscription(bytes(member.metadata))
        except WireError as error:
            self.notes.append(f"member {member.member_id} gets no partitions, what it says cannot be read: {error}")
            return MemberSubscription(frozenset())


def _counts(topics: Collection[Topic]) -> dict[str, int]:
    return {topic.name: len(topic.partitions) for topic in topics if topic.partitions}
