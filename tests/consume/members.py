"""Group members whose program only holds its partitions, and a ledger that checks that no two hold the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol

from tests.waiting import eventually

from ottla.consume.membership import GroupOptions, Membership, TargetAssignment
from ottla.model import TopicPartition
from ottla.net import Cluster

Partitions = frozenset[TopicPartition]
BUSY = 2.5
"""Seconds that something quick may take on a busy machine: less than any timeout that it could wait for."""


class Ledger:
    """Who holds what: recorded before a member reports a partition as held, and until after it released it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders: dict[TopicPartition, str] = {}
        self.trouble: list[str] = []

    def take(self, member: str, partitions: Partitions) -> None:
        with self._lock:
            for partition in partitions:
                other = self._holders.get(partition)
                if other is not None:
                    self.trouble.append(f"{member} takes {partition}, which {other} still holds")
                self._holders[partition] = member

    def let_go(self, member: str, partitions: Partitions) -> None:
        with self._lock:
            for partition in partitions:
                if self._holders.get(partition) == member:
                    del self._holders[partition]


class Holder:
    """The program's side of a membership: a thread that releases and takes over partitions, and records what it saw."""

    def __init__(
        self, cluster: Cluster, group: str, topics: set[str], *, name: str, ledger: Ledger, options: GroupOptions
    ) -> None:
        self.name = name
        self.held: Partitions = frozenset()
        self.lost: list[Partitions] = []
        self.revoked: list[Partitions] = []
        self.taken: list[Partitions] = []
        self.polls = True
        self._ledger = ledger
        self._woken = threading.Event()
        self._stop = False
        self.membership = Membership(cluster, group, options=options, changed=self._woken.set)
        self.membership.subscribe(frozenset(topics))
        self._thread = threading.Thread(target=self._run, name=f"holder-{name}", daemon=True)

    def start(self) -> Holder:
        self.membership.start()
        self._thread.start()
        return self

    def check(self) -> None:
        self.membership.check()

    def stop_holding(self) -> None:
        self._stop = True
        self._woken.set()
        self._thread.join(10)

    def leave(self, timeout: float = 5.0) -> float:
        """Release everything and leave; return the seconds that leaving took."""
        self.stop_holding()
        self._ledger.let_go(self.name, self.held)
        self.held = frozenset()
        begun = time.monotonic()
        self.membership.leave(timeout)
        return time.monotonic() - begun

    def _run(self) -> None:
        while not self._stop:
            self._woken.wait(0.02)
            self._woken.clear()
            if self.polls:
                self.membership.polled()
                self._act(self.membership.target())

    def _act(self, target: TargetAssignment) -> None:
        lost = self.held & target.lost
        revoked = self.held - target.partitions - target.lost
        new = target.partitions - self.held
        if lost or revoked:
            self.held -= lost | revoked
            self.lost += [lost] if lost else []
            self.revoked += [revoked] if revoked else []
            self._ledger.let_go(self.name, lost | revoked)
            self.membership.report_held(self.held)
        if new:
            self._ledger.take(self.name, new)
            self.held |= new
            self.taken.append(new)
            self.membership.report_held(self.held)


class Stage:
    """Makes holders that leave at the end, and waits for what they should hold."""

    def __init__(self, bootstrap: str, stack: ExitStack) -> None:
        self.bootstrap = bootstrap
        self.ledger = Ledger()
        self._stack = stack

    def cluster(self, **settings: object) -> Cluster:
        return self._stack.enter_context(Cluster(self.bootstrap, **settings))  # type: ignore[arg-type]

    def join(self, group: str, *topics: str, name: str, cluster: Cluster | None = None, **options: object) -> Holder:
        holder = Holder(
            cluster or self.cluster(),
            group,
            set(topics),
            name=name,
            ledger=self.ledger,
            options=GroupOptions(**options),  # type: ignore[arg-type]
        )
        self._stack.callback(holder.leave)
        return holder.start()


class Holding(Protocol):
    """A member with partitions, ours or another client's."""

    name: str
    held: Partitions

    def check(self) -> None: ...


def settled(holders: Sequence[Holding], everything: Partitions, *, seconds: float = 20.0) -> None:
    """Wait until the holders have all partitions between them, evenly."""

    def is_settled() -> bool:
        for holder in holders:
            holder.check()
        sizes = [len(holder.held) for holder in holders]
        together = frozenset[TopicPartition]().union(*(holder.held for holder in holders))
        return together == everything and sum(sizes) == len(everything) and max(sizes) - min(sizes) <= 1

    eventually(is_settled, lambda: f"{ {h.name: sorted(map(str, h.held)) for h in holders} }", seconds=seconds)


def all_of(topic: str, count: int) -> Partitions:
    return frozenset(TopicPartition(topic, index) for index in range(count))
