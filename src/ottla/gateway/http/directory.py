"""Which topics exist: what the gateway asks before it lets a name into the producer, and what it tells clients.

Names come in. Answers come from memory; a thread asks the brokers, at most once a second. A name that no broker knows
is refused here at once, and costs nothing later.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ottla.admin import Admin, TopicDescription
from ottla.errors import OttlaError
from ottla.gateway.http.problems import Problem, unavailable, unknown_topic
from ottla.produce.records import topic as check_topic

_log = logging.getLogger(__name__)
_LEAST_SECONDS = 1.0
"""Between two questions for the names of all topics."""
_FRESH_SECONDS = 60.0
"""How old what is known may be for `is_fresh`."""
_ASK_SECONDS = 10.0
_T = TypeVar("_T")


class Directory:
    """The topics of a cluster."""

    def __init__(self, admin: Admin, *, accepts_unknown: bool) -> None:
        self._admin = admin
        self._accepts_unknown = accepts_unknown
        """Whether records for topics are taken before any broker has answered: there is a spool."""
        self.topics: frozenset[str] = frozenset()
        self._asked_at = -_FRESH_SECONDS
        self._answered_at = -_FRESH_SECONDS
        self._has_answer = False
        self._asking = threading.Lock()
        self._threads = ThreadPoolExecutor(4, "ottla-gateway-ask")

    @property
    def is_fresh(self) -> bool:
        """Whether the brokers have answered lately."""
        return time.monotonic() - self._answered_at < _FRESH_SECONDS

    async def require(self, topic: str) -> None:
        """Raise `Problem` unless the topic exists, or may exist while no broker has ever answered."""
        if topic in self.topics:
            return
        try:
            check_topic(topic)
        except OttlaError as error:
            raise Problem(422, str(error), code=42206) from error
        await self.ask(self.refresh)
        if topic in self.topics:
            return
        if self._has_answer:
            raise unknown_topic(topic)
        if not self._accepts_unknown:
            raise unavailable("no broker has answered yet, and there is no spool")

    def refresh(self) -> None:
        """Ask for the names of all topics, unless that was done just now."""
        with self._asking:
            if time.monotonic() - self._asked_at < _LEAST_SECONDS:
                return
            self._asked_at = time.monotonic()
            try:
                self.topics = frozenset(self._admin.topic_names(timeout=_ASK_SECONDS))
            except OttlaError as error:
                _log.warning("the names of topics are not known: %s", error)
                return
            self._has_answer = True
            self._answered_at = time.monotonic()

    def describe(self, topics: Collection[str]) -> list[TopicDescription]:
        """Return leaders and replicas of topics. Blocks."""
        return self._admin.describe_topics(topics, timeout=_ASK_SECONDS)

    @property
    def admin(self) -> Admin:
        """The client that asks."""
        return self._admin

    async def ask(self, question: Callable[[], _T]) -> _T:
        """Run something that blocks in a thread of its own."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, question)

    def close(self) -> None:
        """Ask nothing any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._admin.close()
