"""A consumer group under the classic protocol: one state machine, and the offsets the group committed.

Pure: time comes in as seconds, waiting is the caller's affair. A call either changes the group, or raises
`Refused` with the code a real coordinator answers; `tick` does what became due since, so that no timer thread
is needed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from ottla.errors import ErrorCode
from ottla.model import TopicPartition
from ottla.testing.fake.log import Refused


class Phase(Enum):
    """Where a group stands between two generations."""

    EMPTY = "no member"
    PREPARING = "waiting for the members to join"
    COMPLETING = "waiting for the leader's assignment"
    STABLE = "every member can have its assignment"


@dataclass(frozen=True, slots=True)
class Committed:
    """An offset that a group committed."""

    offset: int
    leader_epoch: int
    metadata: str | None


@dataclass(frozen=True, slots=True)
class Joining:
    """What a consumer says of itself when it joins. Times are seconds."""

    client_id: str
    member_id: str
    instance_id: str | None
    session_timeout: float
    rebalance_timeout: float
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(slots=True)
class Member:
    """A consumer of the group."""

    id: str
    joining: Joining
    seen: float
    joined: bool = False
    """It has joined the generation that is being prepared."""
    syncing: bool = False
    """It waits for its assignment."""
    assignment: bytes = b""

    def metadata(self, protocol: str) -> bytes:
        """What it said under the protocol that was chosen."""
        return dict(self.joining.protocols).get(protocol, b"")


@dataclass(slots=True)
class Group:
    """Members, generation and phase of one group; and its offsets, which also groups without members have."""

    id: str
    phase: Phase = Phase.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    offsets: dict[TopicPartition, Committed] = field(default_factory=dict)
    _promised: set[str] = field(default_factory=set)
    _deadline: float = 0.0
    _ids_made: int = 0

    # -- joining

    def promise_id(self, client_id: str) -> str:
        """A member id for a consumer that will come back with it (KIP-394)."""
        member_id = self._new_id(client_id)
        self._promised.add(member_id)
        return member_id

    def join(self, joining: Joining, now: float) -> Member:
        """Take the consumer in, or back in; the caller then waits until `has_generation` of the member."""
        self._check_protocols(joining)
        member = self._find(joining)
        if member is not None and self._may_keep_generation(member, joining):
            member.seen = now
            return member
        if member is None:
            member_id = joining.member_id or self._new_id(joining.client_id)
            self._promised.discard(member_id)
            member = self.members[member_id] = Member(member_id, joining, now)
        member.joining, member.seen = joining, now
        if self.phase is not Phase.PREPARING:
            self._prepare(now)
        member.joined = True
        self.protocol_type = joining.protocol_type
        self.tick(now)
        return member

    def has_generation(self, member: Member) -> bool:
        """Whether the join of this member can be answered."""
        return self.phase in (Phase.COMPLETING, Phase.STABLE) or member.id not in self.members

    def _find(self, joining: Joining) -> Member | None:
        if joining.instance_id is not None:
            holder = next((m for m in self.members.values() if m.joining.instance_id == joining.instance_id), None)
            if holder is not None and not joining.member_id:
                return self._rename(holder, joining)
            if holder is not None and holder.id != joining.member_id:
                raise Refused(ErrorCode.fenced_instance_id)
        known = self.members.get(joining.member_id)
        if joining.member_id and known is None and joining.member_id not in self._promised:
            raise Refused(ErrorCode.unknown_member_id)
        return known

    def _rename(self, holder: Member, joining: Joining) -> Member:
        # A static member came back without its id (KIP-345): a new id under the same instance, the old one is
        # fenced.
        del self.members[holder.id]
        self.leader = None if self.leader == holder.id else self.leader
        holder.id = self._new_id(joining.client_id)
        holder.joining = joining
        self.members[holder.id] = holder
        return holder

    def _may_keep_generation(self, member: Member, joining: Joining) -> bool:
        same = member.joining.protocols == joining.protocols
        if self.phase is Phase.STABLE:  # the leader joins again when it wants a new assignment
            return same and member.id != self.leader and self.leader is not None
        return self.phase is Phase.COMPLETING and same and self.leader is not None

    def _check_protocols(self, joining: Joining) -> None:
        names = {name for name, _ in joining.protocols}
        others = [m for m in self.members.values() if m.id != joining.member_id]
        shared = all(names & {name for name, _ in m.joining.protocols} for m in others)
        if not names or not shared or (others and joining.protocol_type != self.protocol_type):
            raise Refused(ErrorCode.inconsistent_group_protocol)

    def _new_id(self, client_id: str) -> str:
        self._ids_made += 1
        return f"{client_id}-{self.id}-{self._ids_made:06d}"

    def _prepare(self, now: float) -> None:
        self.phase = Phase.PREPARING
        self._deadline = now + max(m.joining.rebalance_timeout for m in self.members.values())
        for member in self.members.values():
            member.joined = member.syncing = False

    # -- what time does

    def tick(self, now: float) -> None:
        """Drop members that were silent for too long, and finish a preparation that is complete or overdue."""
        for member in [m for m in self.members.values() if self._is_silent(m, now)]:
            self._remove(member, now)
        if self.phase is not Phase.PREPARING:
            return
        if now >= self._deadline:
            self.members = {m.id: m for m in self.members.values() if m.joined}
        if all(member.joined for member in self.members.values()):
            self._complete(now)

    def next_due(self, now: float) -> float:
        """Seconds until `tick` may have something to do."""
        due = [m.seen + m.joining.session_timeout for m in self.members.values() if not self._is_waiting(m)]
        if self.phase is Phase.PREPARING:
            due.append(self._deadline)
        return max(0.0, min(due, default=now + 60.0) - now)

    def _is_waiting(self, member: Member) -> bool:
        return (self.phase is Phase.PREPARING and member.joined) or member.syncing

    def _is_silent(self, member: Member, now: float) -> bool:
        return not self._is_waiting(member) and now >= member.seen + member.joining.session_timeout

    def _complete(self, now: float) -> None:
        self.generation += 1
        if not self.members:
            self.phase, self.leader, self.protocol = Phase.EMPTY, None, None
            return
        self.phase = Phase.COMPLETING
        self.leader = self.leader if self.leader in self.members else next(iter(self.members))
        self.protocol = self._vote()
        for member in self.members.values():
            member.seen, member.assignment = now, b""

    def _vote(self) -> str:
        offers = [[name for name, _ in m.joining.protocols] for m in self.members.values()]
        shared = set(offers[0]).intersection(*offers)
        votes = Counter(next(name for name in offer if name in shared) for offer in offers)
        return votes.most_common(1)[0][0]

    # -- after joining

    def sync(self, member: Member, assignments: dict[str, bytes], now: float) -> None:
        """The leader brings everybody's assignment, the others wait for theirs until `has_assignment`."""
        if self.phase is Phase.PREPARING:
            raise Refused(ErrorCode.rebalance_in_progress)
        if self.phase is Phase.STABLE:
            return
        member.syncing = True
        if member.id == self.leader:
            self.phase = Phase.STABLE
            for other in self.members.values():
                # From now on each has to be heard of, also one that died while it waited.
                other.syncing, other.seen = False, now
                other.assignment = assignments.get(other.id, b"")

    def synced(self, member: Member, generation: int, now: float) -> bytes | None:
        """The member's assignment, None while the leader has not brought it."""
        if member.id not in self.members:
            raise Refused(ErrorCode.unknown_member_id)
        if self.phase is Phase.PREPARING or self.generation != generation:
            raise Refused(ErrorCode.rebalance_in_progress)
        if self.phase is not Phase.STABLE:
            return None
        member.syncing, member.seen = False, now
        return member.assignment

    def heartbeat(self, member: Member, now: float) -> None:
        """The member is alive; it is told when it must join again."""
        member.seen = now
        if self.phase is Phase.PREPARING:
            raise Refused(ErrorCode.rebalance_in_progress)

    def member(self, member_id: str, generation: int, *, instance_id: str | None = None) -> Member:
        """The member of this id, if it is of the present generation."""
        holder = next((m for m in self.members.values() if instance_id and m.joining.instance_id == instance_id), None)
        if holder is not None and holder.id != member_id:
            raise Refused(ErrorCode.fenced_instance_id)
        if member_id not in self.members:
            raise Refused(ErrorCode.unknown_member_id)
        if generation != self.generation:
            raise Refused(ErrorCode.illegal_generation)
        return self.members[member_id]

    def leave(self, member_id: str, instance_id: str | None, now: float) -> None:
        """The member goes; those who stay must join again."""
        for member in self.members.values():
            if member.id == member_id or (not member_id and instance_id and member.joining.instance_id == instance_id):
                self._remove(member, now)
                self.tick(now)
                return
        if member_id not in self._promised:
            raise Refused(ErrorCode.unknown_member_id)
        self._promised.discard(member_id)

    def _remove(self, member: Member, now: float) -> None:
        del self.members[member.id]
        if not self.members:
            self._complete(now)
        elif self.phase is not Phase.PREPARING:
            self._prepare(now)

    # -- offsets

    def check_commit(self, member_id: str, generation: int, now: float) -> None:
        """Refuse a commit from outside while the group has members, or from an older generation."""
        if generation < 0 and not self.members:
            return
        if generation < 0:
            raise Refused(ErrorCode.unknown_member_id)
        if not self.generation and not self.offsets:  # nobody ever used this group
            raise Refused(ErrorCode.illegal_generation)
        member = self.member(member_id, generation)
        member.seen = now
        if self.phase is Phase.COMPLETING:
            raise Refused(ErrorCode.rebalance_in_progress)
