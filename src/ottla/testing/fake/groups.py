"""A consumer group under the classic protocol: a state machine, and the committed offsets of the group.

Pure: the time comes in as seconds, and callers do the waiting. A call either changes the group or raises `Refused` with
the error code of a real coordinator. `tick` does everything that became due, so that no timer thread is needed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from ottla.errors import ErrorCode
from ottla.model import TopicPartition
from ottla.testing.fake.log import Refused


class Phase(Enum):
    """The state of a group between two generations."""

    EMPTY = "no member"
    PREPARING = "waiting for the members to join"
    COMPLETING = "waiting for the leader's assignment"
    STABLE = "every member can get its assignment"


@dataclass(frozen=True, slots=True)
class Committed:
    """An offset that a group committed."""

    offset: int
    leader_epoch: int
    metadata: str | None


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """What a consumer sends when it joins. Times are in seconds."""

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
    request: JoinRequest
    seen: float
    joined: bool = False
    """Whether it has joined the generation that is being prepared."""
    syncing: bool = False
    """Whether it waits for its assignment."""
    assignment: bytes = b""

    def metadata(self, protocol: str) -> bytes:
        """Return its metadata for the chosen protocol."""
        return dict(self.request.protocols).get(protocol, b"")


@dataclass(slots=True)
class Group:
    """Members, generation and phase of a group, and its offsets, which a group without members also has."""

    id: str
    phase: Phase = Phase.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    offsets: dict[TopicPartition, Committed] = field(default_factory=dict)
    _reserved_ids: set[str] = field(default_factory=set)
    _deadline: float = 0.0
    _id_count: int = 0

    # -- joining

    def reserve_id(self, client_id: str) -> str:
        """Return a member id for a consumer that will join with it (KIP-394)."""
        member_id = self._new_id(client_id)
        self._reserved_ids.add(member_id)
        return member_id

    def join(self, request: JoinRequest, now: float) -> Member:
        """Add the consumer, or let it rejoin; the caller then waits until `has_generation` of the member.

        Raises `Refused` for inconsistent protocols, an unknown member id or a fenced instance id.
        """
        self._check_protocols(request)
        member = self._find(request)
        if member is not None and self._may_keep_generation(member, request):
            member.seen = now
            return member
        if member is None:
            member_id = request.member_id or self._new_id(request.client_id)
            self._reserved_ids.discard(member_id)
            member = self.members[member_id] = Member(member_id, request, now)
        member.request, member.seen = request, now
        if self.phase is not Phase.PREPARING:
            self._prepare(now)
        member.joined = True
        self.protocol_type = request.protocol_type
        self.tick(now)
        return member

    def has_generation(self, member: Member) -> bool:
        """Return whether the join of this member can be answered."""
        return self.phase in (Phase.COMPLETING, Phase.STABLE) or member.id not in self.members

    def _find(self, request: JoinRequest) -> Member | None:
        if request.instance_id is not None:
            holder = next((m for m in self.members.values() if m.request.instance_id == request.instance_id), None)
            if holder is not None and not request.member_id:
                return self._rename(holder, request)
            if holder is not None and holder.id != request.member_id:
                raise Refused(ErrorCode.fenced_instance_id)
        member = self.members.get(request.member_id)
        if request.member_id and member is None and request.member_id not in self._reserved_ids:
            raise Refused(ErrorCode.unknown_member_id)
        return member

    def _rename(self, holder: Member, request: JoinRequest) -> Member:
        # A static member returned without its id (KIP-345): it gets a new id, and the old one is fenced.
        del self.members[holder.id]
        self.leader = None if self.leader == holder.id else self.leader
        holder.id = self._new_id(request.client_id)
        holder.request = request
        self.members[holder.id] = holder
        return holder

    def _may_keep_generation(self, member: Member, request: JoinRequest) -> bool:
        same_protocols = member.request.protocols == request.protocols
        if self.phase is Phase.STABLE:  # The leader rejoins when it wants a new assignment.
            return same_protocols and member.id != self.leader and self.leader is not None
        return self.phase is Phase.COMPLETING and same_protocols and self.leader is not None

    def _check_protocols(self, request: JoinRequest) -> None:
        names = {name for name, _ in request.protocols}
        others = [m for m in self.members.values() if m.id != request.member_id]
        shared = all(names & {name for name, _ in m.request.protocols} for m in others)
        if not names or not shared or (others and request.protocol_type != self.protocol_type):
            raise Refused(ErrorCode.inconsistent_group_protocol)

    def _new_id(self, client_id: str) -> str:
        self._id_count += 1
        return f"{client_id}-{self.id}-{self._id_count:06d}"

    def _prepare(self, now: float) -> None:
        self.phase = Phase.PREPARING
        self._deadline = now + max(m.request.rebalance_timeout for m in self.members.values())
        for member in self.members.values():
            member.joined = member.syncing = False

    # -- timeouts

    def tick(self, now: float) -> None:
        """Drop members whose session expired, and finish a preparation that is complete or overdue."""
        for member in [m for m in self.members.values() if self._is_silent(m, now)]:
            self._remove(member, now)
        if self.phase is not Phase.PREPARING:
            return
        if now >= self._deadline:
            self.members = {m.id: m for m in self.members.values() if m.joined}
        if all(member.joined for member in self.members.values()):
            self._complete(now)

    def next_due(self, now: float) -> float:
        """Return the seconds until `tick` may have something to do."""
        due = [m.seen + m.request.session_timeout for m in self.members.values() if not self._is_waiting(m)]
        if self.phase is Phase.PREPARING:
            due.append(self._deadline)
        return max(0.0, min(due, default=now + 60.0) - now)

    def _is_waiting(self, member: Member) -> bool:
        return (self.phase is Phase.PREPARING and member.joined) or member.syncing

    def _is_silent(self, member: Member, now: float) -> bool:
        return not self._is_waiting(member) and now >= member.seen + member.request.session_timeout

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
        offers = [[name for name, _ in m.request.protocols] for m in self.members.values()]
        shared = set(offers[0]).intersection(*offers)
        votes = Counter(next(name for name in offer if name in shared) for offer in offers)
        return votes.most_common(1)[0][0]

    # -- after joining

    def sync(self, member: Member, assignments: dict[str, bytes], now: float) -> None:
        """Store the assignments that the leader sends; the others wait until `synced` returns theirs.

        Raises `Refused` during a rebalance.
        """
        if self.phase is Phase.PREPARING:
            raise Refused(ErrorCode.rebalance_in_progress)
        if self.phase is Phase.STABLE:
            return
        member.syncing = True
        if member.id == self.leader:
            self.phase = Phase.STABLE
            for other in self.members.values():
                # From now on, sessions run for all members, including one that died while it waited.
                other.syncing, other.seen = False, now
                other.assignment = assignments.get(other.id, b"")

    def synced(self, member: Member, generation: int, now: float) -> bytes | None:
        """Return the member's assignment, None until the leader has sent it.

        Raises `Refused` for an unknown member or during a rebalance.
        """
        if member.id not in self.members:
            raise Refused(ErrorCode.unknown_member_id)
        if self.phase is Phase.PREPARING or self.generation != generation:
            raise Refused(ErrorCode.rebalance_in_progress)
        if self.phase is not Phase.STABLE:
            return None
        member.syncing, member.seen = False, now
        return member.assignment

    def heartbeat(self, member: Member, now: float) -> None:
        """Note that the member is alive. Raises `Refused` if it must rejoin."""
        member.seen = now
        if self.phase is Phase.PREPARING:
            raise Refused(ErrorCode.rebalance_in_progress)

    def member(self, member_id: str, generation: int, *, instance_id: str | None = None) -> Member:
        """Return the member with this id. Raises `Refused` if it is fenced, unknown or of another generation."""
        holder = next((m for m in self.members.values() if instance_id and m.request.instance_id == instance_id), None)
        if holder is not None and holder.id != member_id:
            raise Refused(ErrorCode.fenced_instance_id)
        if member_id not in self.members:
            raise Refused(ErrorCode.unknown_member_id)
        if generation != self.generation:
            raise Refused(ErrorCode.illegal_generation)
        return self.members[member_id]

    def leave(self, member_id: str, instance_id: str | None, now: float) -> None:
        """Remove the member; the others must rejoin. Raises `Refused` for an unknown member."""
        for member in self.members.values():
            if member.id == member_id or (not member_id and instance_id and member.request.instance_id == instance_id):
                self._remove(member, now)
                self.tick(now)
                return
        if member_id not in self._reserved_ids:
            raise Refused(ErrorCode.unknown_member_id)
        self._reserved_ids.discard(member_id)

    def _remove(self, member: Member, now: float) -> None:
        del self.members[member.id]
        if not self.members:
            self._complete(now)
        elif self.phase is not Phase.PREPARING:
            self._prepare(now)

    # -- offsets

    def check_commit(self, member_id: str, generation: int, now: float) -> None:
        """Raise `Refused` for a commit by a non-member while the group has members, or of an older generation."""
        if generation < 0 and not self.members:
            return
        if generation < 0:
            raise Refused(ErrorCode.unknown_member_id)
        if not self.generation and not self.offsets:  # The group was never used.
            raise Refused(ErrorCode.illegal_generation)
        member = self.member(member_id, generation)
        member.seen = now
        if self.phase is Phase.COMPLETING:
            raise Refused(ErrorCode.rebalance_in_progress)
