"""Random histories of two nodes at one store, held against the rules: whatever they do, they hear and see the same.

Everything is drawn from one source of chance: Hypothesis brings its own, which it can shrink, and long histories come
from seeds.
"""

from __future__ import annotations

import uuid
from random import Random
from typing import Any

from ottla.engines.fleet.rules import Rules
from ottla.engines.fleet.store import open_store
from ottla.engines.fleet.units import Charter, Failure, Grant, Lease, Move, Seen
from ottla.model import OffsetRange, TopicPartition

HIGH = 2**63 - 1
NAMES = ("", "a", "b", "node 1/2 ü\n{}")
LANES = (TopicPartition("a", 2), TopicPartition("a", 10), TopicPartition("a-b", 0), TopicPartition("a.b", 2**31 - 1))
BASES = (*(0,) * 5, 2, 99, 2**53, HIGH - 300)
"""Many are equal: a log that was recreated brings the same units again."""
STEPS = (
    *("lead", "stay", "stay", "resign", "plan", "plan", "plan", "reset", "raise_number", "waiting"),
    *("take",) * 7,
    *("finish", "fail", "reclaim") * 3,
    *("renew", "renew", "retry", "retry", "drop"),
    *("add_topics", "remove_topics", "hello", "goodbye", "note", "notes"),
)


class Agreement:
    """Two nodes of one group, and the rules beside them."""

    def __init__(self, url: str, chance: Random) -> None:
        group = f"agreement {uuid.uuid4().hex}"
        self.nodes = [open_store(url, group) for _ in range(2)]
        charter = Charter(ordered=chance.random() < 0.5, max_attempts=chance.randint(1, 4))
        self.model = Rules(charter)
        assert [node.found(charter) for node in self.nodes] == [charter, charter]
        self._turn = 0
        self._grants: list[Grant] = []
        self._seen: list[Seen] = []
        self._leases: list[Lease] = [self.both("lead", "a")]
        self.plan(chance)
        self.take(chance)

    def end(self) -> None:
        """The group is forgotten."""
        for node in self.nodes:
            node.forget()
            node.close()

    def step(self, chance: Random) -> None:
        """One step, and all that can be seen of it."""
        getattr(self, chance.choice(STEPS))(chance)
        for look in ("look", "pulse", "waiting", "failures", "notes"):
            self.both(look)
        planner = self.model.pulse().planner
        if planner is not None and planner not in self._seen[-4:]:
            self._seen.append(planner)

    def both(self, step: str, *args: Any) -> Any:
        """What the rules say, and one of the nodes as well."""
        self._turn += 1
        expected = getattr(self.model, step)(*args)
        assert getattr(self.nodes[self._turn % 2], step)(*args) == expected, (step, args)
        return expected

    # Planning

    def lead(self, chance: Random) -> None:
        over = chance.choice([None, self.model.pulse().planner, *self._seen[-3:]])
        lease = self.both("lead", chance.choice(NAMES), over)
        self._leases += [] if lease is None else [lease]

    def stay(self, chance: Random) -> None:
        self.both("stay", chance.choice(self._leases[-3:]))

    def resign(self, chance: Random) -> None:
        self.both("resign", chance.choice(self._leases[-2:]))

    def plan(self, chance: Random) -> None:
        known = {state.partition: state.planned for state in self.model.look().partitions}
        moves = []
        for _ in range(chance.randint(1, 3)):
            partition = chance.choice(LANES)
            before = known.get(partition)
            stop = chance.choice([chance.choice(BASES), *([] if before is None else [before])])
            units = []
            for _ in range(chance.randint(1, 4)):
                units.append(OffsetRange(*partition, stop, min(HIGH, stop + chance.randint(0, 2))))
                stop = units[-1].stop
            moves.append(Move(partition, before if chance.random() < 0.95 else 1, stop, tuple(units)))
        planner = self.model.pulse().planner
        leases = [self._leases[-1], *([] if planner is None else [planner.lease] * 4)]
        self.both("plan", chance.choice(leases), moves)

    def raise_number(self, chance: Random) -> None:
        above = self.model.look().number + chance.randint(-2, 9)
        self.both("raise_number", chance.choice([above, above, above, 10_000, 2**53 - 1, 2**60]))

    # Working

    def take(self, chance: Random) -> None:
        self._grants += self.both("take", chance.choice(NAMES), chance.randint(0, 3))

    def held(self, chance: Random) -> tuple[OffsetRange, Lease]:
        """A lease that is current, was current, belongs to another holder, or never existed."""
        out = [(out.range, out.seen.lease) for out in self.model.pulse().out]
        was = [(grant.range, grant.lease) for grant in self._grants[-4:]]
        others = [(unit, Lease(lease.number, "somebody else")) for unit, lease in out[:1]]
        nobody = (OffsetRange("nobody", 0, 0, 1), Lease(1, "a"))
        return chance.choice([*(out * 4), *was, *others, nobody])

    def renew(self, chance: Random) -> None:
        self.both("renew", [self.held(chance) for _ in range(chance.randint(0, 3))])

    def finish(self, chance: Random) -> None:
        unit, lease = self.held(chance)
        inside = chance.randint(unit.start, unit.stop)
        self.both("finish", unit, lease, chance.choice([unit.start, unit.stop, inside]))

    def fail(self, chance: Random) -> None:
        unit, lease = self.held(chance)
        self.both("fail", unit, lease, Failure(unit, 0, chance.choice(NAMES), "ü\n", "host", chance.random()))

    def reclaim(self, chance: Random) -> None:
        seen = [(out.range, out.seen) for out in self.model.pulse().out]
        unit, lease = self.held(chance)
        range_, last_seen = chance.choice([*seen, (unit, Seen(lease, chance.randint(0, 2)))])
        self.both("reclaim", range_, last_seen, Failure(range_, 0, "gone"))

    # The error list, and resetting

    def retry(self, chance: Random) -> None:
        self.both("retry", self.given_up(chance))

    def drop(self, chance: Random) -> None:
        self.both("drop", self.given_up(chance))

    def given_up(self, chance: Random) -> OffsetRange:
        return chance.choice([*(failure.range for failure in self.model.failures()), self.held(chance)[0]])

    def reset(self, chance: Random) -> None:
        self.both("reset", chance.choice(LANES), chance.choice([None, *BASES]))

    # The rest

    def waiting(self, chance: Random) -> None:
        self.both("waiting", chance.choice([None, *LANES]), chance.randint(0, 3))

    def add_topics(self, chance: Random) -> None:
        self.both("add_topics", {chance.choice(NAMES): chance.choice(["", "id-1", "id-2"]) for _ in range(2)})

    def remove_topics(self, chance: Random) -> None:
        self.both("remove_topics", [chance.choice(NAMES)])

    def hello(self, chance: Random) -> None:
        self.both("hello", chance.choice(NAMES), {"rate": chance.random(), "deep": {"ü": [None, chance.randint(0, 9)]}})

    def goodbye(self, chance: Random) -> None:
        self.both("goodbye", chance.choice(NAMES), chance.choice([None, 0, 1, 2]))

    def note(self, chance: Random) -> None:
        self.both("note", chance.choice(NAMES), chance.choice([None, b"", b"\x00\xff", b"value"]))

    def notes(self, chance: Random) -> None:
        self.both("notes", chance.choice(NAMES))
