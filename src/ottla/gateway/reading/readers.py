"""Runs reads of many clients on a few threads, within one limit of memory, so that no topic or broker takes them all.

Blocking reads come in with the topic and the size that they ask for; their results go out on the event loop. The size
counts until the client has taken its answer. It knows neither HTTP nor records.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from ottla.gateway.http.problems import unavailable
from ottla.gateway.reading.log_reader import LogReader

T = TypeVar("T")
THREADS = 12
_OF_A_BROKER = 8
_OF_A_TOPIC = 4
_WAIT_SECONDS = 10.0
"""How long a read waits for memory or a thread before it is refused."""


class Ticket:
    """What one answer takes of the memory."""

    __slots__ = ("_memory", "size_bytes")

    def __init__(self, memory: Memory, size_bytes: int) -> None:
        self._memory = memory
        self.size_bytes = size_bytes

    def free(self) -> None:
        """The client has its answer, or will not get one."""
        self.resize(0)

    def resize(self, size_bytes: int) -> None:
        """Note what it has become. One record may be larger than what was asked for: then others wait."""
        self._memory.used_bytes += size_bytes - self.size_bytes
        self.size_bytes = size_bytes
        self._memory.wake()


class Memory:
    """Bytes that all answers share. For one event loop."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.used_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def hold(self, size_bytes: int) -> Ticket:
        """Hold memory, first come, first served; `Ticket.free` ends it. Raises `Problem` 503 after too long a wait."""
        size_bytes = min(size_bytes, self.most_bytes)
        if self._waiting or (self.used_bytes and self.used_bytes + size_bytes > self.most_bytes):
            await self._wait(size_bytes)
        else:
            self.used_bytes += size_bytes
        return Ticket(self, size_bytes)

    async def _wait(self, size_bytes: int) -> None:
        """Wait for memory, and hold it."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size_bytes, future)
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                await future
        except BaseException as error:
            if future.done() and not future.cancelled():
                self.used_bytes -= size_bytes  # it was given at the last moment
            else:
                self._waiting.remove(entry)
            self.wake()
            if isinstance(error, TimeoutError):
                raise unavailable("the memory for answers is full", limit="read_memory_bytes") from None
            raise

    def wake(self) -> None:
        """Let those go on for whom there is room."""
        while self._waiting:
            size_bytes, future = self._waiting[0]
            if future.cancelled():
                return  # its owner is about to remove it, and calls again
            if self.used_bytes and self.used_bytes + size_bytes > self.most_bytes:
                return
            self.used_bytes += size_bytes
            self._waiting.popleft()
            future.set_result(None)


class Readers:
    """The threads that read. For one event loop."""

    def __init__(self, log: LogReader, *, memory_bytes: int) -> None:
        self.log = log
        self.memory = Memory(memory_bytes)
        self._threads = ThreadPoolExecutor(THREADS, "ottla-gateway-read")
        self._lanes: defaultdict[tuple[str, object], _Lane] = defaultdict(_Lane)

    async def run(self, topic: str, partition: int, read: Callable[[], T]) -> T:
        """Run a read in a thread. Raises what it raises, and `Problem` 503 if no thread is free for too long.

        A `partition` of -1 stands for all of the topic.
        """
        known = self.log.cluster.known.topics.get(topic)
        found = None if known is None or partition < 0 else known.partition(partition)
        leader = -1 if found is None else found.leader
        deadline = time.monotonic() + _WAIT_SECONDS
        async with (
            self._lane(("topic", topic), _OF_A_TOPIC, deadline),
            self._lane(("broker", leader), _OF_A_BROKER, deadline),
        ):
            return await asyncio.get_running_loop().run_in_executor(self._threads, read)

    @asynccontextmanager
    async def _lane(self, name: tuple[str, object], width: int, deadline: float) -> AsyncIterator[None]:
        lane = self._lanes[name]
        lane.users += 1
        try:
            if lane.slots is None:
                lane.slots = asyncio.Semaphore(width)
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    await lane.slots.acquire()
            except TimeoutError:
                what = "brokers are slow" if name[0] == "broker" else "many clients read this topic"
                raise unavailable(f"no thread is free: {what}", limit="read_threads") from None
            try:
                yield
            finally:
                lane.slots.release()
        finally:
            lane.users -= 1
            if not lane.users:
                self._lanes.pop(name, None)

    def close(self) -> None:
        """End the threads; what they do fails."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Lane:
    """How many reads of one kind run at once."""

    def __init__(self) -> None:
        self.users = 0
        self.slots: asyncio.Semaphore | None = None
