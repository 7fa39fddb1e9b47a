"""The reference model of a group: every transition that a unit can make, in memory, without clock, store or network.

Every store must give the same answers as this class. Each method is one atomic step. A step by a holder who has lost
the lease changes nothing except the `refused` counter, and returns False.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ottla.engines.fleet.units import (
    Charter,
    Counts,
    Failure,
    Grant,
    Lease,
    Move,
    Node,
    Out,
    PartitionState,
    Pulse,
    Seen,
    Snapshot,
    label,
)
from ottla.model import OffsetRange, TopicPartition

LOST_LEASE = "its node died, froze or lost its connection"
"""The reason on the error list for a unit whose lease expired."""


@dataclass(slots=True)
class _Partition:
    """One partition: its units, and when it was last served."""

    planned: int
    turn: int = 0
    """The number of the partition's last lease. The partition with the lowest one is served next."""
    waiting: list[OffsetRange] = field(default_factory=list)
    out: set[OffsetRange] = field(default_factory=set)
    failed: set[OffsetRange] = field(default_factory=set)

    @property
    def done(self) -> int:
        """The offset below which everything is done."""
        unfinished = (*self.waiting, *self.out, *self.failed)
        return min((unit.start for unit in unfinished), default=self.planned)

    def is_ready(self, ordered: bool) -> bool:
        """Whether a unit can be taken. An ordered partition waits for the one in flight or on the error list."""
        return bool(self.waiting) and not (ordered and (self.out or self.failed))

    def wait(self, unit: OffsetRange) -> None:
        """Insert a unit in order, once: a log that was recreated can bring the same range a second time."""
        index = bisect.bisect_left(self.waiting, unit)
        if self.waiting[index : index + 1] != [unit]:
            self.waiting.insert(index, unit)


class Rules:
    """The state of one group, and the steps that change it. No method raises."""

    def __init__(self, charter: Charter) -> None:
        self.charter = charter
        self._number = 0
        """The number of the last lease, of the planner's and the units' alike."""
        self._planner: Seen | None = None
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._out: dict[OffsetRange, Out] = {}
        self._tries: dict[OffsetRange, int] = {}
        """Attempts so far of units that are out or waiting again."""
        self._failures: dict[OffsetRange, Failure] = {}
        self._nodes: dict[str, Node] = {}
        self._topics: dict[str, str] = {}
        self._counts = Counts()
        self._notes: dict[str, bytes] = {}

    # Topics

    def add_topics(self, topics: Mapping[str, str]) -> None:
        """Plan these topics from now on. An empty id keeps the id that is known."""
        for name, identity in topics.items():
            self._topics[name] = identity or self._topics.get(name, "")

    def remove_topics(self, names: Iterable[str]) -> None:
        """Stop planning these topics. Existing units are still worked on, and planned offsets stay."""
        for name in names:
            self._topics.pop(name, None)

    # Planning

    def lead(self, holder: str, over: Seen | None = None) -> Lease | None:
        """Return a lease to plan if it is free, or if the current lease is still exactly `over`, which expired."""
        if self._planner is not None and self._planner != over:
            return None
        self._planner = Seen(self._next(holder), 0)
        return self._planner.lease

    def stay(self, lease: Lease) -> bool:
        """Renew the planner's lease: raise its beat."""
        if self._planner is None or self._planner.lease != lease:
            return self._refuse()
        self._planner = self._planner._replace(beat=self._planner.beat + 1)
        return True

    def resign(self, lease: Lease) -> bool:
        """Give up the right to plan."""
        if self._planner is None or self._planner.lease != lease:
            return self._refuse()
        self._planner = None
        return True

    def plan(self, lease: Lease, moves: Sequence[Move]) -> bool:
        """Apply all moves or none. Refused if the caller is not the planner, or a planned offset is not `before`."""
        if self._planner is None or self._planner.lease != lease:
            return self._refuse()
        planned = {partition: state.planned for partition, state in self._partitions.items()}
        if any(planned.get(move.partition) != move.before for move in moves):
            return self._refuse()
        for move in moves:
            state = self._partitions.setdefault(move.partition, _Partition(move.to))
            state.planned = move.to
            for unit in move.units:
                state.wait(unit)
        return True

    def raise_number(self, least: int) -> None:
        """Make sure that the next lease has a number above `least`."""
        self._number = max(self._number, least)

    # Working

    def take(self, holder: str, most: int = 1) -> list[Grant]:
        """Lease up to `most` waiting units: from the partition served longest ago, lowest offsets first."""
        grants: list[Grant] = []
        while len(grants) < most:
            ready = [partition for partition, state in self._partitions.items() if state.is_ready(self.charter.ordered)]
            if not ready:
                break
            longest_ago = min(ready, key=lambda tp: (self._partitions[tp].turn, label(tp)))
            state = self._partitions[longest_ago]
            unit = state.waiting.pop(0)
            lease = self._next(holder)
            state.turn = lease.number
            state.out.add(unit)
            self._tries[unit] = self._tries.get(unit, 0) + 1
            self._out[unit] = Out(unit, Seen(lease, 0), self._tries[unit])
            grants.append(Grant(unit, lease, self._tries[unit]))
        return grants

    def renew(self, held: Sequence[tuple[OffsetRange, Lease]]) -> list[bool]:
        """Raise the beat of each lease. False for those that are lost."""
        kept = []
        for unit, lease in held:
            out = self._held(unit, lease)
            if out is not None:
                self._out[unit] = out._replace(seen=out.seen._replace(beat=out.seen.beat + 1))
            kept.append(out is not None)
        return kept

    def finish(self, unit: OffsetRange, lease: Lease, reached: int) -> bool:
        """Finish a unit up to `reached`. The rest waits again, as if this attempt had not been made."""
        out = self._held(unit, lease)
        if out is None:
            return self._refuse()
        self._free(unit)
        tries = self._tries.pop(unit)
        if reached > unit.start:
            self._count(done=1, offsets=reached - unit.start)
        else:
            self._count(given_back=1)
        if reached < unit.stop:
            rest = replace(unit, start=reached)
            if rest == unit and tries > 1:  # given back: this attempt does not count, but earlier ones do
                self._tries[rest] = tries - 1
            self._wait(rest)
        return True

    def fail(self, unit: OffsetRange, lease: Lease, failure: Failure) -> bool:
        """End an attempt as failed. The unit waits again, or goes to the error list after its last attempt."""
        if self._held(unit, lease) is None:
            return self._refuse()
        self._count(failed=1)
        self._lose(unit, failure)
        return True

    def reclaim(self, unit: OffsetRange, seen: Seen, failure: Failure) -> bool:
        """Take a unit away if its lease is still exactly as `seen`. The attempt counts."""
        out = self._out.get(unit)
        if out is None or out.seen != seen:
            return False
        self._count(reclaimed=1)
        self._lose(unit, failure)
        return True

    # The error list, and resetting

    def failures(self) -> list[Failure]:
        """Return the error list, sorted by range."""
        return [failure for _, failure in sorted(self._failures.items())]

    def retry(self, unit: OffsetRange) -> bool:
        """Move a unit from the error list back to the waiting ones. Its attempts start again at 1."""
        if self._failures.pop(unit, None) is None:
            return False
        self._partitions[unit.topic_partition].failed.discard(unit)
        self._wait(unit)
        return True

    def drop(self, unit: OffsetRange) -> bool:
        """Remove a unit from the error list for good."""
        if self._failures.pop(unit, None) is None:
            return False
        self._partitions[unit.topic_partition].failed.discard(unit)
        return True

    def reset(self, partition: TopicPartition, offset: int | None) -> None:
        """Plan a partition from this offset, or forget it if None. Its units are removed, and their leases are lost."""
        state = self._partitions.pop(partition, None)
        for unit in [] if state is None else [*state.waiting, *state.out, *state.failed]:
            self._out.pop(unit, None)
            self._tries.pop(unit, None)
            self._failures.pop(unit, None)
        if offset is not None:
            self._partitions[partition] = _Partition(offset, turn=0 if state is None else state.turn)

    # Nodes and reports

    def hello(self, name: str, report: Mapping[str, Any]) -> None:
        """Raise a node's beat and store its report about itself."""
        known = self._nodes.get(name)
        self._nodes[name] = Node(name, 0 if known is None else known.beat + 1, dict(report))

    def goodbye(self, name: str, beat: int | None = None) -> bool:
        """Remove a node. With `beat`, only if that is still its last one."""
        known = self._nodes.get(name)
        if known is None or (beat is not None and known.beat != beat):
            return False
        del self._nodes[name]
        return True

    def pulse(self) -> Pulse:
        """Return the leases that the other nodes watch."""
        return Pulse(self._planner, tuple(out for _, out in sorted(self._out.items())))

    def look(self) -> Snapshot:
        """Return the whole state of the group, except waiting units, failures and notes."""
        states = [
            PartitionState(partition, state.planned, state.done, len(state.waiting), len(state.out), len(state.failed))
            for partition, state in sorted(self._partitions.items())
        ]
        return Snapshot(
            planner=self._planner,
            partitions=tuple(states),
            out=tuple(out for _, out in sorted(self._out.items())),
            nodes=tuple(node for _, node in sorted(self._nodes.items())),
            topics=dict(self._topics),
            counts=self._counts,
            number=self._number,
        )

    def waiting(self, partition: TopicPartition | None = None, most: int = 1000) -> list[OffsetRange]:
        """Return up to `most` waiting units, by partition and offset."""
        chosen = [tp for tp in sorted(self._partitions) if partition in (None, tp)]
        return [unit for tp in chosen for unit in self._partitions[tp].waiting][:most]

    def note(self, key: str, value: bytes | None) -> None:
        """Store a small value under this key. None removes it."""
        if value is None:
            self._notes.pop(key, None)
        else:
            self._notes[key] = value

    def notes(self, prefix: str = "") -> dict[str, bytes]:
        """Return the notes whose keys begin with `prefix`."""
        return {key: value for key, value in self._notes.items() if key.startswith(prefix)}

    # Parts of steps

    def _next(self, holder: str) -> Lease:
        """Issue a lease with the next number."""
        self._number += 1
        return Lease(self._number, holder)

    def _held(self, unit: OffsetRange, lease: Lease) -> Out | None:
        """Return the entry of a unit if this lease holds it."""
        out = self._out.get(unit)
        return out if out is not None and out.seen.lease == lease else None

    def _free(self, unit: OffsetRange) -> None:
        """Remove a unit from those in flight."""
        del self._out[unit]
        self._partitions[unit.topic_partition].out.discard(unit)

    def _wait(self, unit: OffsetRange) -> None:
        self._partitions[unit.topic_partition].wait(unit)

    def _lose(self, unit: OffsetRange, failure: Failure) -> None:
        """End an attempt that did not succeed: retry the unit, or move it to the error list."""
        tries = self._out[unit].attempt
        self._free(unit)
        if tries < self.charter.max_attempts:
            self._wait(unit)
            return
        self._tries.pop(unit)
        self._count(given_up=1)
        self._failures[unit] = replace(failure, range=unit, attempts=tries)
        self._partitions[unit.topic_partition].failed.add(unit)

    def _count(self, **more: int) -> None:
        self._counts = self._counts._replace(**{name: getattr(self._counts, name) + by for name, by in more.items()})

    def _refuse(self) -> bool:
        """Count a call by a holder who has lost the lease."""
        self._count(refused=1)
        return False
