"""Which topics exist: what the gateway asks before it lets a name into the producer, and what it tells clients.

Names come in. Answers come from memory, or from a broker for a name that is new. One that does not exist is refused
here, and costs the producer nothing. A thread keeps the rest fresh.
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
from ottla.errors import ErrorCode, OttlaError
from ottla.gateway.http.problems import Problem, unavailable, unknown_topic
from ottla.produce.records import topic as check_topic

_log = logging.getLogger(__name__)
_LEAST_SECONDS = 1.0
"""Between two questions for the names of all topics, and for one name that did not exist."""
_EVERY_SECONDS = 10.0
_FRESH_SECONDS = 60.0
"""How old what is known may be for `is_fresh`."""
_ASK_SECONDS = 5.0
_MOST_MISSING = 10_000
_T = TypeVar("_T")


class Directory:
    """The topics of a cluster. A thread keeps it fresh from `start` on."""

    def __init__(self, admin: Admin, *, accepts_unknown: bool) -> None:
        self._admin = admin
        self._accepts_unknown = accepts_unknown
        """Whether records for topics are taken before any broker has answered: there is a spool."""
        self.topics: set[str] = set()
        self._missing: dict[str, float] = {}
        """Names that did not exist, and when."""
        self._asked_at = -_FRESH_SECONDS
        self._answered_at = -_FRESH_SECONDS
        self._asking = threading.Lock()
        self._is_closed = threading.Event()
        self._threads = ThreadPoolExecutor(4, "ottla-gateway-ask")
        self._thread = threading.Thread(target=self._keep_fresh, name="ottla-gateway-topics", daemon=True)

    def start(self) -> None:
        """Begin to ask. It does not wait for an answer."""
        self._thread.start()

    @property
    def is_fresh(self) -> bool:
        """Whether the brokers have answered lately."""
        return time.monotonic() - self._answered_at < _FRESH_SECONDS

    async def require(self, topic: str) -> None:
        """Raise `Problem` unless the topic exists, or may exist while no broker answers."""
        if topic in self.topics:
            return
        try:
            check_topic(topic)
        except OttlaError as error:
            raise Problem(422, str(error), code=42206) from error
        if time.monotonic() - self._missing.get(topic, -_FRESH_SECONDS) < _LEAST_SECONDS:
            raise unknown_topic(topic)
        try:
            exists = await self.ask(lambda: self._exists(topic))
        except OttlaError as error:
            if not self._accepts_unknown:
                raise unavailable("no broker answers, and there is no spool") from error
            return
        if exists:
            self.topics.add(topic)
            return
        if len(self._missing) >= _MOST_MISSING:
            self._missing.clear()
        self._missing[topic] = time.monotonic()
        raise unknown_topic(topic)

    def _exists(self, topic: str) -> bool:
        """Ask a broker for one topic, in its words: no topic is created by asking."""
        metadata = self._admin.cluster.metadata([topic], deadline=self._admin.cluster.deadline(_ASK_SECONDS))
        self._answered_at = time.monotonic()
        return metadata.topics[topic].error is ErrorCode.none

    def refresh(self) -> None:
        """Ask for the names of all topics, unless that was done just now."""
        with self._asking:
            if time.monotonic() - self._asked_at < _LEAST_SECONDS:
                return
            try:
                self.topics = set(self._admin.topic_names(timeout=_ASK_SECONDS))
            except OttlaError as error:
                _log.debug("the names of topics are not known: %s", error)
                return
            finally:
                self._asked_at = time.monotonic()
            self._answered_at = time.monotonic()

    def _keep_fresh(self) -> None:
        self.refresh()
        while not self._is_closed.wait(_EVERY_SECONDS):
            self.refresh()

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
        self._is_closed.set()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._admin.close()
