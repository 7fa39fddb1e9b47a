"""Who reads what in a classic group, decided by its leader: range and cooperative-sticky.

The members' subscriptions and the number of partitions of each topic come in, the partitions of each member go out;
the same input gives the same output. Pure: nothing is asked, remembered or logged.
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
"""Partitions by topic; a topic that is not in it has none."""
Shares = dict[str, set[TopicPartition]]


def assign(assignor: str, members: Members, counts: Counts) -> Shares:
    """The partitions of each member by the assignor that the group has chosen."""
    match assignor:
        case "range":
            return by_range(members, counts)
        case "cooperative-sticky":
            return cooperatively(members, counts)
    known = f"{COOPERATIVE_STICKY} and {RANGE}"
    raise UnsupportedFormat(f"the group has chosen the assignor {assignor!r}, but this member offered {known}")


def by_range(members: Members, counts: Counts) -> Shares:
    """Of each topic a run of neighbouring partitions for each subscriber, the first ones one more if need be."""
    shares: Shares = {member: set() for member in members}
    for topic in _topics(members):
        subscribers = sorted(member for member, wants in members.items() if topic in wants.topics)
        each, more = divmod(counts.get(topic, 0), len(subscribers))
        start = 0
        for position, member in enumerate(subscribers):
            stop = start + each + (position < more)
            shares[member].update(TopicPartition(topic, index) for index in range(start, stop))
            start = stop
    return shares


def cooperatively(members: Members, counts: Counts) -> Shares:
    """Like `stickily`, but what somebody else still holds goes to nobody yet (KIP-429).

    Whoever holds it sees that it is not his any more, lets go of it and joins again; then it goes to its new owner.
    """
    shares = stickily(members, counts)
    holders: dict[TopicPartition, set[str]] = defaultdict(set)
    for member, subscription in members.items():
        for partition in subscription.owned:
            holders[partition].add(member)
    for member, share in shares.items():
        owned = members[member].owned
        # Its own claim is kept even if somebody of an older generation claims it, too: it stays where it is.
        share -= {p for p in share if holders[p] - {member} and (p not in owned or _is_disputed(p, member, members))}
    return shares


def stickily(members: Members, counts: Counts) -> Shares:
    """As even as the subscriptions allow, and with as few changes of owner as that takes."""
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
    """What everybody holds and may keep; of several who claim the same, the one of the newest generation (KIP-792)."""
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
    """Whether another one claims it from the same generation or a newer one."""
    generation = members[member].generation
    return any(
        other != member and partition in wants.owned and wants.generation >= generation
        for other, wants in members.items()
    )


@dataclass(frozen=True, slots=True)
class _Move:
    source: str
    topic: str
    target: str


class _Balance:
    """Moves partitions along chains of members until no chain leads from one to another with two fewer (an optimal
    semi-matching: no assignment is more even)."""

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
        """A partition that nobody has, to the subscriber with the fewest."""
        self._add(min(self._subscribers[partition.topic], key=lambda m: len(self._shares[m])), partition)

    def even_out(self) -> None:
        """Moves what must be moved."""
        settled: set[str] = set()
        while rest := [member for member in self._shares if member not in settled]:
            fullest = max(rest, key=lambda m: len(self._shares[m]))
            chain = self._chain_from(fullest)
            if chain is None:
                settled.add(fullest)  # nor will it ever get more: nobody reaches it who has two more than it
            else:
                for move in chain:
                    self._carry_out(move)

    def _chain_from(self, fullest: str) -> list[_Move] | None:
        """The shortest chain of moves to the emptiest member that can be reached, last move first, if that helps."""
        came_by: dict[str, _Move | None] = {fullest: None}
        queue = [fullest]
        passed: set[str] = set()  # topics whose subscribers are all in the queue
        for member in queue:
            for topic in sorted(topic for topic, has in self._by_topic[member].items() if has and topic not in passed):
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
        # Rather back to its owner, rather something that its holder does not have yet, rather the last ones.
        partition = max(movable, key=lambda p: (p in owned_there, p not in owned_here, p))
        movable.discard(partition)
        self._shares[move.source].discard(partition)
        self._add(move.target, partition)

    def _add(self, member: str, partition: TopicPartition) -> None:
        self._shares[member].add(partition)
        self._by_topic[member].setdefault(partition.topic, set()).add(partition)


def _path_to(member: str, came_by: Mapping[str, _Move | None]) -> Iterator[_Move]:
    """From its end backwards."""
    move = came_by[member]
    while move is not None:
        yield move
        move = came_by[move.source]
