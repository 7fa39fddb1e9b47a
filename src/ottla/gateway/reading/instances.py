"""The consumer instances of a gateway: who owns which, how many there may be, and when one ends.

An identity, a group and a name stand for one instance, so that another client neither uses nor finds it. Calls run on a
few threads, those of one instance one after the other. Between calls a task takes part in rebalances for all of them,
matches patterns, and ends those that are unused for too long. It knows no HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from ottla.consume.consumer import Consumer
from ottla.consume.listener import Listener
from ottla.consume.options import GroupOptions
from ottla.events import Event
from ottla.events.reads import RangeLost
from ottla.fetch.options import Fetching
from ottla.gateway.http.problems import Problem, check_share, unavailable
from ottla.gateway.reading.instance import Instance, Terms
from ottla.net.access import ClusterAccess

_log = logging.getLogger(__name__)
T = TypeVar("T")
_THREADS = 32
_EVERY_SECONDS = 0.5
_MATCH_SECONDS = 5.0
_CLOSE_SECONDS = 10.0
_MOST_POLL_SECONDS = 600.0
"""The group waits so long for an instance in a rebalance. The task takes part for it twice a second."""


class Key(NamedTuple):
    """What stands for an instance."""

    identity: str
    group: str
    name: str


@dataclass(slots=True)
class Held:
    """An instance with the turns of its calls."""

    instance: Instance
    used_at: float
    users: int = 0
    """Requests that are under way."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Of one call of the instance."""
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Of one read, which is many calls."""
    is_ended: bool = False
    matched_at: float = 0.0


class Instances:
    """For one event loop, but for `close`."""

    def __init__(
        self,
        access: ClusterAccess,
        *,
        most: int,
        idle_seconds: float,
        memory_bytes: int,
        batch_bytes: int,
        match: Callable[[str, str], frozenset[str]],
    ) -> None:
        """`match` returns the topics that an identity may read and that match a pattern."""
        self._access = access
        self._most = most
        self._idle_seconds = idle_seconds
        self._fetching = Fetching(memory_bytes=memory_bytes, request_bytes=memory_bytes, max_batch_bytes=batch_bytes)
        self._match = match
        self._held: dict[Key, Held] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "ottla-gateway-consumer")
        self._keeping: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._held)

    def create(self, key: Key, terms: Terms) -> Held:
        """Create an instance. Raises `Problem` if it exists, or if there are too many."""
        if self._is_closed:
            raise unavailable("the gateway is stopping")
        if key in self._held:
            raise Problem(409, f"group {key.group!r} has a consumer instance {key.name!r} already", code=40902)
        if len(self._held) >= self._most:
            raise unavailable(f"{self._most} consumer instances are in use", limit="consumers")
        check_share([each.identity for each in self._held], key.identity, self._most, "consumers")
        held = self._held[key] = Held(Instance(key.group, key.name, terms, self._connect), time.monotonic())
        if self._keeping is None or self._keeping.done():
            self._keeping = asyncio.ensure_future(self._keep())
        return held

    def get(self, key: Key) -> Held:
        """Return an instance of this identity. Raises `Problem` 40403."""
        held = self._held.get(key)
        if held is None:
            raise self.unknown(key)
        return held

    def unknown(self, key: Key) -> Problem:
        """Return the answer for an instance that is not there, and why it may not be."""
        return Problem(
            404,
            f"no consumer instance {key.name!r} in group {key.group!r}: it was deleted, or unused for"
            f" {self._idle_seconds:g} s, or the gateway was started again. Create it again: it continues at what the"
            " group has committed",
            code=40403,
        )

    async def delete(self, key: Key) -> None:
        """End an instance; its client has got what was sent to it. Raises `Problem` 40403."""
        held = self.get(key)
        del self._held[key]
        held.is_ended = True
        async with held.turn:
            await self.in_thread(lambda: held.instance.close(has_all=True))

    async def run(self, key: Key, call: Callable[[Instance], T]) -> T:
        """Run a call of an instance, after those before it. Raises what it raises, and `Problem` 40403."""
        held = self.get(key)
        held.users += 1
        try:
            async with held.turn:
                if held.is_ended:
                    raise self.unknown(key)
                return await self.in_thread(lambda: call(held.instance))
        finally:
            held.users -= 1
            held.used_at = time.monotonic()

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run something that blocks."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _keep(self) -> None:
        """Look after all instances, until there are none."""
        while self._held:
            await asyncio.sleep(min(_EVERY_SECONDS, self._idle_seconds))
            for key, held in self._held.items():
                if not held.turn.locked():  # nothing waits for one that takes long
                    task = asyncio.ensure_future(self._look_after(key, held))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)

    async def _look_after(self, key: Key, held: Held) -> None:
        async with held.turn:
            if held.is_ended:
                return
            try:
                if not held.users and time.monotonic() - held.used_at >= self._idle_seconds:
                    self._held.pop(key, None)
                    held.is_ended = True
                    await self.in_thread(held.instance.close)
                else:
                    await self.in_thread(lambda: self._maintain(key, held))
            except Exception as error:  # the client gets it with its next read; others must go on
                _log.debug("consumer instance %s: %s", key.name, error)

    def _maintain(self, key: Key, held: Held) -> None:
        instance, now = held.instance, time.monotonic()
        if instance.pattern and now - held.matched_at >= _MATCH_SECONDS:
            held.matched_at = now
            topics = self._match(key.identity, instance.pattern)
            if topics and topics != instance.topics:
                instance.subscribe(topics, instance.pattern)
        instance.maintain()

    def _connect(self, group: str, terms: Terms, listener: Listener) -> Consumer:
        access = self._access
        return Consumer(
            access.bootstrap,
            group=group,
            start=terms.start,
            commit_every=None,
            listener=listener,
            options=GroupOptions(max_poll_interval=_MOST_POLL_SECONDS),
            fetching=self._fetching,
            isolation=terms.isolation,
            on_lost=terms.start,
            security=access.resolved_security(),
            client_id=access.client_id,
            timeouts=access.timeouts,
            retry=access.retry,
            events=[_warn],
        )

    def close(self) -> None:
        """End all instances: what their clients were done with is committed, and they leave their groups."""
        self._is_closed = True
        held, self._held = list(self._held.values()), {}
        for each in held:
            each.is_ended = True
        wait([self._threads.submit(each.instance.close) for each in held], _CLOSE_SECONDS)
        self._threads.shutdown(wait=False, cancel_futures=True)


def matching(names: Iterable[str], pattern: str) -> frozenset[str]:
    """Return the names that match a pattern as a whole. In linear time: patterns come from clients.

    Raises `ValueError` for text that is no pattern.
    """
    known = sorted(names)
    try:
        found = pc.match_substring_regex(pa.array(known, pa.string()), rf"\A(?:{pattern})\z")
    except (pa.ArrowInvalid, UnicodeEncodeError) as error:
        raise ValueError(f"it is not a regular expression: {str(error)[:100]}") from error
    return frozenset(name for name, is_match in zip(known, found.to_pylist(), strict=True) if is_match)


def _warn(event: Event) -> None:
    if isinstance(event, RangeLost):
        where = f"{event.topic}-{event.partition}"
        _log.warning("a consumer instance lost %s, offsets %d to %d: %s", where, event.start, event.stop, event.reason)
