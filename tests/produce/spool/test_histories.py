"""Any history of puts, acknowledgements, restarts and kills: the spool holds what a dictionary would hold."""

from __future__ import annotations

import shutil
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ottla.errors import SpoolFull
from ottla.produce.spool import Store, Ticket

from .batches import entry, whole
from .conftest import quick_directory


class Histories(RuleBasedStateMachine):
    """The model: `live` must be there; `asked` was done but not settled and may come back only after a kill."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = quick_directory()
        self.root = Path(self.directory.name)
        self.lives = 0
        self.live: dict[int, tuple[Ticket, bytes]] = {}
        self.asked: dict[int, tuple[Ticket, bytes]] = {}
        self.put_so_far = 0
        self.replacing_bytes = 0

    @initialize(fsync=st.booleans(), max_bytes=st.sampled_from((None, 40_000, 200_000)))
    def begin(self, fsync: bool, max_bytes: int | None) -> None:
        self.fsync, self.max_bytes = fsync, max_bytes
        self.store = self.opened()

    def opened(self) -> Store:
        return Store.open(self.root / str(self.lives), fsync=self.fsync, max_bytes=self.max_bytes, segment_bytes=4096)

    def put_one(self, size_bytes: int, supersedes: int = 0) -> None:
        self.put_so_far += 1
        new = entry(self.put_so_far, size_bytes=size_bytes, supersedes=supersedes)
        try:
            ticket = self.store.put(new)
        except SpoolFull as exc:
            self.must_be_full_of_what_is_live(exc.needed_bytes)
            return
        self.live[ticket.id] = ticket, whole(new)
        if supersedes:
            self.replacing_bytes += ticket.size_bytes
            self.asked[supersedes] = self.live.pop(supersedes)

    def must_be_full_of_what_is_live(self, needed_bytes: int) -> None:
        assert self.max_bytes is not None
        assert self.store.live_bytes + needed_bytes > self.max_bytes / 3

    @rule(sizes=st.lists(st.sampled_from((0, 10, 300, 1500, 9000)), min_size=1, max_size=12))
    def put(self, sizes: list[int]) -> None:
        for size in sizes:
            self.put_one(size)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def put_instead(self, data: st.DataObject) -> None:
        self.put_one(100, data.draw(st.sampled_from(sorted(self.live))))
        self.store.durable()

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.live)), max_size=20, unique=True))
        self.store.done(self.live[i][0] for i in chosen)
        self.asked |= {i: self.live.pop(i) for i in chosen}

    @precondition(lambda self: len(self.live) > 3)
    @rule(keep=st.integers(1, 3))
    def done_all_but_a_few(self, keep: int) -> None:
        chosen = [i for i in sorted(self.live)[:-keep] if i % 7]
        self.store.done(self.live[i][0] for i in chosen)
        self.asked |= {i: self.live.pop(i) for i in chosen}

    @rule()
    def settle(self) -> None:
        self.store.settle()
        self.asked.clear()

    @rule()
    def durable(self) -> None:
        self.store.durable()

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.asked.clear()
        self.store = self.opened()
        self.inherit()

    @rule()
    def kill(self) -> None:
        """Continue with what is on disk at this moment, without its writer."""
        before = self.root / str(self.lives)
        self.lives += 1
        shutil.copytree(before, self.root / str(self.lives))
        self.store.close()
        shutil.rmtree(before)
        self.store = self.opened()
        self.inherit()

    def inherit(self) -> None:
        ids = [stored.ticket.id for stored in self.store.inherited]
        assert ids == sorted(ids)
        assert self.live.keys() <= set(ids) <= self.live.keys() | self.asked.keys()
        assert self.store.damage == []
        everything = self.live | self.asked
        self.live = {s.ticket.id: (s.ticket, everything[s.ticket.id][1]) for s in self.store.inherited}
        self.asked = {}

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        ticket, expected = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        assert whole(self.store.read(ticket)) == expected

    @invariant()
    def it_counts_right_and_keeps_its_limit(self) -> None:
        if hasattr(self, "store"):
            assert self.store.count == len(self.live)
            assert self.store.used_bytes >= self.store.live_bytes
            marks = 16 * self.put_so_far
            # A replacement is always accepted, or a full spool could never drain.
            assert self.max_bytes is None or self.store.used_bytes <= self.max_bytes + marks + self.replacing_bytes

    def teardown(self) -> None:
        if hasattr(self, "store"):
            for ticket, expected in self.live.values():
                assert whole(self.store.read(ticket)) == expected
            self.store.close()
        self.directory.cleanup()


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
