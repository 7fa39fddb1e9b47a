"""The assignors that the leader of a classic group runs: range and cooperative-sticky.

The subscriptions of the members and the partition count of each topic come in. The partitions of each member go out;
the same input always gives the same output. Pure: no I/O, no state, no logging.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ottla.consume.classic_messages import MemberSubscription
from ottla.consume.options import COOPERATIVE_STICKY, RANGE
from ottla.errors import UnsupportedFormat
from ottla.model import TopicPartition

Members = Mapping[str, MemberSubscription]
Counts = Mapping[str, int]
"""Partition counts by topic. A missing topic has no partitions."""
Shares = dict[str, set[TopicPartition]]


def assign(assignor: str, members: Members, counts: Counts) -> Shares:
    """Return the partitions of each member, computed by the assignor that the group chose.

    Raises `UnsupportedFormat` for an assignor that this client does not implement.
    """
    match assignor:
        case "range":
            return by_range(members, counts)
        case "cooperative-sticky":
            return cooperatively(members, counts)
    known = f"{COOPERATIVE_STICKY} and {RANGE}"
    raise UnsupportedFormat(f"the group chose the assignor {assignor!r}, but this member offered {known}")


def by_range(members: Members, counts: Counts) -> Shares:
    """Give each subscriber a run of adjacent partitions of each topic; the first ones may get one more."""
    shares: Shares = {member: set() for member in members}
    for topic in _topics(members):
        subscribers = sorted(member for member, subscription in members.items() if topic in subscription.topics)
        each, more = divmod(counts.get(topic, 0), len(subscribers))
        start = 0
        for position, member in enumerate(subscribers):
            stop = start + each + (position < more)
            shares[member].update(TopicPartition(topic, index) for index in range(start, stop))
            start = stop
    return shares


def cooperatively(members: Members, counts: Counts) -> Shares:
    """Like `stickily`, but withhold a partition that another member still owns (KIP-429).

    The current owner sees that it lost the partition, releases it and rejoins; then the new owner gets it.
    """
    shares = stickily(members, counts)
    holders: dict[TopicPartition, set[str]] = defaultdict(set)
    for member, subscription in members.items():
        for partition in subscription.owned:
            holders[partition].add(member)
    for member, share in shares.items():
        owned = members[member].owned
        # A member keeps its own partition even if a member of an older generation claims it too: nothing moves.
        share -= {p for p in share if holders[p] - {member} and (p not in owned or _is_disputed(p, member, members))}
    return shares


def stickily(members: Members, counts: Counts) -> Shares:
    """Assign as evenly as the subscriptions allow, with as few changes of owner as possible."""
    shares = _kept(members, counts)
    balance = _Balance(members, shares)
    taken = {partition for share in shares.values() for partition in share}
    for topic in _topics(members):
        for index in range(counts.get(topic, 0)):
            if TopicPartition(topic, index) not in taken:
                balance.give(TopicPartition(topic, index))
    balance.even_out()
    return shares


def _topics(members: Members) -> list[str]:
    return sorted({topic for subscription in members.values() for topic in subscription.topics})


def _kept(members: Members, counts: Counts) -> Shares:
    """Return what each member owns and may keep. If several claim a partition, the newest generation wins (KIP-792)."""
    shares: Shares = {member: set() for member in sorted(members)}
    for member in shares:
        subscription = members[member]
        shares[member] = {
            p
            for p in subscription.owned
            if p.topic in subscription.topics
            and 0 <= p.partition < counts.get(p.topic, 0)
            and not _is_disputed(p, member, members)
        }
    return shares


def _is_disputed(partition: TopicPartition, member: str, members: Members) -> bool:
    """Return whether another member claims it from the same or a newer generation."""
    generation = members[member].generation
    return any(
        other != member and partition in subscription.owned and subscription.generation >= generation
        for other, subscription in members.items()
    )


@dataclass(frozen=True, slots=True)
class _Move:
    source: str
    topic: str
    target: str


class _Balance:
    """Moves partitions along chains of members until no chain leads to a member that has at least two fewer.

    This is an optimal semi-matching: no assignment is more even.
    """

    def __init__(self, members: Members, shares: Shares) -> None:
        self._members = members
        self._shares = shares
        self._subscribers = {
            topic: [member for member in shares if topic in members[member].topics] for topic in _topics(members)
        }
        self._by_topic: dict[str, dict[str, set[TopicPartition]]] = {member: {} for member in shares}
        for member, share in shares.items():
            for partition in share:
                self._by_topic[member].setdefault(partition.topic, set()).add(partition)

    def give(self, partition: TopicPartition) -> None:
        """Give an unowned partition to the subscriber with the fewest partitions."""
        self._add(min(self._subscribers[partition.topic], key=lambda m: len(self._shares[m])), partition)

    def even_out(self) -> None:
        """Move partitions until the assignment is even."""
        settled: set[str] = set()
        while rest := [member for member in self._shares if member not in settled]:
            fullest = max(rest, key=lambda m: len(self._shares[m]))
            chain = self._chain_from(fullest)
            if chain is None:
                settled.add(fullest)  # It never gets more either: no member with two more partitions reaches it.
            else:
                for move in chain:
                    self._carry_out(move)

    def _chain_from(self, fullest: str) -> list[_Move] | None:
        """Return the shortest chain of moves to the emptiest reachable member, last move first; None if useless."""
        came_by: dict[str, _Move | None] = {fullest: None}
        queue = [fullest]
        passed: set[str] = set()  # topics whose subscribers are all in the queue
        for member in queue:
            available = self._by_topic[member].items()
            for topic in sorted(topic for topic, partitions in available if partitions and topic not in passed):
                passed.add(topic)
                reached = [other for other in self._subscribers[topic] if other not in came_by]
                came_by.update((other, _Move(member, topic, other)) for other in reached)
                queue += reached
        emptiest = min(queue, key=lambda m: len(self._shares[m]))
        if len(self._shares[emptiest]) + 2 > len(self._shares[fullest]):
            return None
        return list(_path_to(emptiest, came_by))

    def _carry_out(self, move: _Move) -> None:
        movable = self._by_topic[move.source][move.topic]
        owned_here, owned_there = self._members[move.source].owned, self._members[move.target].owned
        # Prefer a partition that the target owned, then one that the source did not own, then the highest.
        partition = max(movable, key=lambda p: (p in owned_there, p not in owned_here, p))
        movable.discard(partition)
        self._shares[move.source].discard(partition)
        self._add(move.target, partition)

    def _add(self, member: str, partition: TopicPartition) -> None:
        self._shares[member].add(partition)
        self._by_topic[member].setdefault(partition.topic, set()).add(partition)


def _path_to(member: str, came_by: Mapping[str, _Move | None]) -> Iterator[_Move]:
    """Yield the moves of the path, last move first."""
    move = came_by[member]
    while move is not None:
        yield move
        move = came_by[move.source]
