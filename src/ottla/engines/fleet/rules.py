"""What may happen to the units of a group: every transition, in memory, without clock, store or network.

Whatever a store does must give the same answers as this. Each method is one atomic step; a step that comes from a
holder who has lost the lease changes nothing, is counted, and says so in its answer.
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
)
from ottla.model import OffsetRange, TopicPartition

LOST_LEASE = "its node died, froze or lost its connection"
"""The reason on the error list where nobody was left to give one."""


@dataclass(slots=True)
class _Lane:
    """One partition: what waits there, in order, and when it was last served."""

    planned: int
    turn: int = 0
    """The number of the last lease of this partition: who was served longest ago is next."""
    waiting: list[OffsetRange] = field(default_factory=list)
    out: set[OffsetRange] = field(default_factory=set)
    failed: set[OffsetRange] = field(default_factory=set)

    @property
    def done(self) -> int:
        return min(
            (one.start for group in (self.waiting, self.out, self.failed) for one in group), default=self.planned
        )

    def is_ready(self, ordered: bool) -> bool:
        return bool(self.waiting) and not (ordered and (self.out or self.failed))

    def wait(self, unit: OffsetRange) -> None:
        """A unit waits once, even if a log that was made anew has brought it a second time."""
        place = bisect.bisect_left(self.waiting, unit)
        if self.waiting[place : place + 1] != [unit]:
            self.waiting.insert(place, unit)


class Rules:
    """The state of one group."""

    def __init__(self, charter: Charter) -> None:
        self.charter = charter
        self._number = 0
        self._planner: Seen | None = None
        self._lanes: dict[TopicPartition, _Lane] = {}
        self._out: dict[OffsetRange, Out] = {}
        self._tries: dict[OffsetRange, int] = {}
        self._failures: dict[OffsetRange, Failure] = {}
        self._nodes: dict[str, Node] = {}
        self._topics: dict[str, str] = {}
        self._counts = Counts()
        self._notes: dict[str, bytes] = {}

    # Topics

    def add_topics(self, topics: Mapping[str, str]) -> None:
        """Plan these from now on. An id that is empty leaves the one that is known."""
        for name, identity in topics.items():
            self._topics[name] = identity or self._topics.get(name, "")

    def remove_topics(self, names: Iterable[str]) -> None:
        """Plan these no more. Units that are there are worked on, and the planned offsets stay."""
        for name in names:
            self._topics.pop(name, None)

    # Planning

    def lead(self, holder: str, over: Seen | None = None) -> Lease | None:
        """The right to plan: if nobody has it, or if `over`, which stood still, is still how it is."""
        if self._planner is not None and self._planner != over:
            return None
        self._planner = Seen(self._next(holder), 0)
        return self._planner.lease

    def stay(self, lease: Lease) -> bool:
        """The planner's beat."""
        if self._planner is None or self._planner.lease != lease:
            return self._refuse()
        self._planner = self._planner._replace(beat=self._planner.beat + 1)
        return True

    def resign(self, lease: Lease) -> bool:
        """Whoever comes next may plan."""
        if self._planner is None or self._planner.lease != lease:
            return self._refuse()
        self._planner = None
        return True

    def plan(self, lease: Lease, moves: Sequence[Move]) -> bool:
        """All moves, or none: refused for whoever is not the planner, and where an offset is not as it was thought."""
        if self._planner is None or self._planner.lease != lease:
            return self._refuse()
        planned = {at: lane.planned for at, lane in self._lanes.items()}
        if any(planned.get(move.at) != move.before for move in moves):
            return self._refuse()
        for move in moves:
            lane = self._lanes.setdefault(move.at, _Lane(move.to))
            lane.planned = move.to
            for unit in move.units:
                lane.wait(unit)
        return True

    def raise_number(self, least: int) -> None:
        """The next lease has a number above this."""
        self._number = max(self._number, least)

    # Working

    def take(self, holder: str, most: int = 1) -> list[Grant]:
        """Units that wait: of the partition served longest ago first, and its lowest offsets first."""
        grants: list[Grant] = []
        while len(grants) < most:
            ready = [at for at, lane in self._lanes.items() if lane.is_ready(self.charter.ordered)]
            if not ready:
                break
            lane = self._lanes[min(ready, key=lambda at: (self._lanes[at].turn, f"{at.topic}/{at.partition}"))]
            unit = lane.waiting.pop(0)
            lease = self._next(holder)
            lane.turn = lease.number
            lane.out.add(unit)
            self._tries[unit] = self._tries.get(unit, 0) + 1
            self._out[unit] = Out(unit, Seen(lease, 0), self._tries[unit])
            grants.append(Grant(unit, lease, self._tries[unit]))
        return grants

    def renew(self, held: Sequence[tuple[OffsetRange, Lease]]) -> list[bool]:
        """The beat of each; False for those that are lost."""
        kept = []
        for unit, lease in held:
            out = self._held(unit, lease)
            if out is not None:
                self._out[unit] = out._replace(seen=out.seen._replace(beat=out.seen.beat + 1))
            kept.append(out is not None)
        return kept

    def finish(self, unit: OffsetRange, lease: Lease, reached: int) -> bool:
        """Done up to `reached`; what is left of the unit waits again, as if it had not been tried."""
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
            if rest == unit and tries > 1:
                self._tries[rest] = tries - 1
            self._wait(rest)
        return True

    def fail(self, unit: OffsetRange, lease: Lease, failure: Failure) -> bool:
        """The attempt has failed: the unit waits again, or comes to the error list if it was the last one."""
        if self._held(unit, lease) is None:
            return self._refuse()
        self._count(failed=1)
        self._lose(unit, failure)
        return True

    def reclaim(self, unit: OffsetRange, seen: Seen, failure: Failure) -> bool:
        """Take a unit from whoever holds it, if its lease is still as it was `seen`. Counts as an attempt."""
        out = self._out.get(unit)
        if out is None or out.seen != seen:
            return False
        self._count(reclaimed=1)
        self._lose(unit, failure)
        return True

    # The error list, and beginning anew

    def failures(self) -> list[Failure]:
        """The units that were given up."""
        return [failure for _, failure in sorted(self._failures.items())]

    def retry(self, unit: OffsetRange) -> bool:
        """Put a unit of the error list back; its attempts begin at 1."""
        if self._failures.pop(unit, None) is None:
            return False
        self._lanes[unit.topic_partition].failed.discard(unit)
        self._wait(unit)
        return True

    def drop(self, unit: OffsetRange) -> bool:
        """Give a unit of the error list up for good."""
        if self._failures.pop(unit, None) is None:
            return False
        self._lanes[unit.topic_partition].failed.discard(unit)
        return True

    def reset(self, at: TopicPartition, offset: int | None) -> None:
        """Plan a partition from this offset, or forget it; its units are gone, and their holders have lost them."""
        lane = self._lanes.pop(at, None)
        for unit in [] if lane is None else [*lane.waiting, *lane.out, *lane.failed]:
            self._out.pop(unit, None)
            self._tries.pop(unit, None)
            self._failures.pop(unit, None)
        if offset is not None:
            self._lanes[at] = _Lane(offset, turn=0 if lane is None else lane.turn)

    # Nodes, and looking

    def hello(self, name: str, report: Mapping[str, Any]) -> None:
        """A node's beat, and what it says of itself."""
        known = self._nodes.get(name)
        self._nodes[name] = Node(name, 0 if known is None else known.beat + 1, dict(report))

    def goodbye(self, name: str, beat: int | None = None) -> bool:
        """Forget a node; with a `beat` only if that is still its last one."""
        known = self._nodes.get(name)
        if known is None or (beat is not None and known.beat != beat):
            return False
        del self._nodes[name]
        return True

    def pulse(self) -> Pulse:
        """What those who watch need to see all the time."""
        return Pulse(self._planner, tuple(out for _, out in sorted(self._out.items())))

    def look(self) -> Snapshot:
        """How things stand."""
        lanes = [
            PartitionState(at, lane.planned, lane.done, len(lane.waiting), len(lane.out), len(lane.failed))
            for at, lane in sorted(self._lanes.items())
        ]
        return Snapshot(
            planner=self._planner,
            lanes=tuple(lanes),
            out=tuple(out for _, out in sorted(self._out.items())),
            nodes=tuple(node for _, node in sorted(self._nodes.items())),
            topics=dict(self._topics),
            counts=self._counts,
            number=self._number,
        )

    def waiting(self, at: TopicPartition | None = None, most: int = 1000) -> list[OffsetRange]:
        """Units that wait, by partition and offset."""
        lanes = sorted(self._lanes) if at is None else [one for one in (at,) if one in self._lanes]
        return [unit for one in lanes for unit in self._lanes[one].waiting][:most]

    def note(self, key: str, value: bytes | None) -> None:
        """Keep something small under this key; None removes it."""
        if value is None:
            self._notes.pop(key, None)
        else:
            self._notes[key] = value

    def notes(self, prefix: str = "") -> dict[str, bytes]:
        """What is kept under keys that begin like this."""
        return {key: value for key, value in self._notes.items() if key.startswith(prefix)}

    # Parts of steps

    def _next(self, holder: str) -> Lease:
        self._number += 1
        return Lease(self._number, holder)

    def _held(self, unit: OffsetRange, lease: Lease) -> Out | None:
        out = self._out.get(unit)
        return out if out is not None and out.seen.lease == lease else None

    def _free(self, unit: OffsetRange) -> None:
        del self._out[unit]
        self._lanes[unit.topic_partition].out.discard(unit)

    def _wait(self, unit: OffsetRange) -> None:
        self._lanes[unit.topic_partition].wait(unit)

    def _lose(self, unit: OffsetRange, failure: Failure) -> None:
        tries = self._out[unit].attempt
        self._free(unit)
        if tries < self.charter.max_attempts:
            self._wait(unit)
            return
        self._tries.pop(unit)
        self._count(given_up=1)
        self._failures[unit] = replace(failure, range=unit, attempts=tries)
        self._lanes[unit.topic_partition].failed.add(unit)

    def _count(self, **more: int) -> None:
        self._counts = self._counts._replace(**{name: getattr(self._counts, name) + by for name, by in more.items()})

    def _refuse(self) -> bool:
        self._count(refused=1)
        return False
