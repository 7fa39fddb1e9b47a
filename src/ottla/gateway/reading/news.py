"""Waits for new records on behalf of all clients at once: one question to each leader, several times a second.

Positions come in; a wait ends when a log does not end there any more, or when nothing can be found out about it, so
that the reader behind it looks. A waiting client costs no thread and no request of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from ottla.admin.lookup import find_soon
from ottla.admin.offsets import OffsetSpec
from ottla.model import Isolation, TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.deadline import Deadline

EVERY_SECONDS = 0.05
_ASK_SECONDS = 2.0
_THREADS = 8


class _Group(NamedTuple):
    """What is asked at once."""

    leader: int
    isolation: Isolation
    is_doubtful: bool
    """Whether the last question had no answer: such partitions would delay all others."""


class _Waiter:
    __slots__ = ("future", "isolation", "places")

    def __init__(self, places: Mapping[TopicPartition, int], isolation: Isolation) -> None:
        self.places = places
        self.isolation = isolation
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class News:
    """For one event loop."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._threads = ThreadPoolExecutor(_THREADS, "ottla-gateway-news")
        self._waiting: set[_Waiter] = set()
        self._missed: set[TopicPartition] = set()
        """Partitions for which the last question had no answer."""
        self._busy: set[_Group] = set()
        self._asking: set[asyncio.Task[None]] = set()
        self._ticking: asyncio.Task[None] | None = None
        self.is_ended = False

    async def wait(self, places: Mapping[TopicPartition, int], isolation: Isolation, seconds: float) -> bool:
        """Wait until one of the logs does not end at its offset, at most for some seconds. Returns whether to look."""
        if seconds <= 0 or not places or self.is_ended:
            return False
        waiter = _Waiter(places, isolation)
        self._waiting.add(waiter)
        if self._ticking is None or self._ticking.done():
            self._ticking = asyncio.ensure_future(self._tick())
        try:
            async with asyncio.timeout(seconds):
                await waiter.future
            return True
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(waiter)

    async def _tick(self) -> None:
        while self._waiting:
            for group, partitions in self._groups().items():
                if group not in self._busy:
                    self._busy.add(group)
                    task = asyncio.ensure_future(self._ask(group, sorted(partitions)))
                    self._asking.add(task)
                    task.add_done_callback(self._asking.discard)
            await asyncio.sleep(EVERY_SECONDS)
        self._missed.clear()

    def _groups(self) -> dict[_Group, set[TopicPartition]]:
        topics = self._cluster.known.topics
        groups: dict[_Group, set[TopicPartition]] = {}
        for waiter in self._waiting:
            for tp in waiter.places:
                topic = topics.get(tp.topic)
                partition = None if topic is None else topic.partition(tp.partition)
                leader = -1 if partition is None else partition.leader
                groups.setdefault(_Group(leader, waiter.isolation, tp in self._missed), set()).add(tp)
        return groups

    async def _ask(self, group: _Group, partitions: list[TopicPartition]) -> None:
        isolation = group.isolation
        try:
            ends = await asyncio.get_running_loop().run_in_executor(self._threads, self._ends, partitions, isolation)
        finally:
            self._busy.discard(group)
        self._missed.difference_update(ends)
        self._missed.update(tp for tp in partitions if tp not in ends)
        for waiter in self._waiting:
            if waiter.isolation is isolation and not waiter.future.done() and self._is_news(waiter, ends):
                waiter.future.set_result(None)

    def _is_news(self, waiter: _Waiter, ends: Mapping[TopicPartition, int]) -> bool:
        return any(ends[tp] != offset if tp in ends else tp in self._missed for tp, offset in waiter.places.items())

    def _ends(self, partitions: list[TopicPartition], isolation: Isolation) -> dict[TopicPartition, int]:
        deadline = Deadline.after(_ASK_SECONDS)
        found = find_soon(self._cluster, partitions, at=OffsetSpec.LATEST, deadline=deadline, isolation=isolation)
        return {tp: entry.offset for tp, entry in found.items()}

    def end(self) -> None:
        """End all waits, also those that are still to come."""
        self.is_ended = True
        for waiter in self._waiting:
            if not waiter.future.done():
                waiter.future.set_result(None)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)
