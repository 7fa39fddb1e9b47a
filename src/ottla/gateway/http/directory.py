"""Which topics exist: what the gateway asks before it lets a name into the producer, and what it tells clients.

Names come in. Answers come from memory, or from a broker for a name that is new. One that does not exist is refused
here, and costs the producer nothing. A thread keeps the rest fresh, and looks for brokers while none answers: meanwhile
no request does, and topics that the spool knows are taken.
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

    def __init__(self, admin: Admin, *, keeps: Callable[[str], bool]) -> None:
        self._admin = admin
        self._keeps = keeps
        """Whether records of a topic can be kept while no broker answers: the spool knows it."""
        self.topics: set[str] = set()
        self._missing: dict[str, float] = {}
        """Names that did not exist, and when."""
        self._questions: dict[str, asyncio.Future[bool]] = {}
        """By name, what is being asked: all requests for a topic share one question."""
        self._has_answer: bool | None = None
        """Whether a broker answered when one was last asked; None before that."""
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
        """Raise `Problem` unless the topic exists, or may exist and the spool knows it while no broker answers."""
        if topic in self.topics:
            return
        try:
            check_topic(topic)
        except OttlaError as error:
            raise Problem(422, str(error), code=42206) from error
        if time.monotonic() - self._missing.get(topic, -_FRESH_SECONDS) < _LEAST_SECONDS:
            raise unknown_topic(topic)
        if not self._has_answer and self._keeps(topic):
            return
        try:
            exists = await asyncio.shield(self._question(topic))
        except OttlaError as error:
            if self._keeps(topic):
                return
            raise unavailable(f"no broker answers, and no spool knows topic {topic!r}") from error
        if exists:
            self.topics.add(topic)
            return
        if len(self._missing) >= _MOST_MISSING:
            self._missing.clear()
        self._missing[topic] = time.monotonic()
        raise unknown_topic(topic)

    def _question(self, topic: str) -> asyncio.Future[bool]:
        """Ask for a topic, unless that is under way."""
        question = self._questions.get(topic)
        if question is None:
            question = self._questions[topic] = asyncio.ensure_future(self.ask(lambda: self._exists(topic)))
            question.add_done_callback(lambda done: self._answered(topic, done))
        return question

    def _answered(self, topic: str, question: asyncio.Future[bool]) -> None:
        del self._questions[topic]
        if not question.cancelled():
            question.exception()  # looked at, also if every request that waited has gone

    def _exists(self, topic: str) -> bool:
        """Ask a broker for one topic, in its words: no topic is created by asking."""
        if self._has_answer is False:
            raise OttlaError("no broker has answered the last question")
        cluster = self._admin.cluster
        metadata = self._heard(lambda: cluster.metadata([topic], deadline=cluster.deadline(_ASK_SECONDS)))
        return metadata.topics[topic].error is ErrorCode.none

    def _heard(self, question: Callable[[], _T]) -> _T:
        """Return the answer to a question, and remember whether there was one."""
        try:
            answer = question()
        except OttlaError:
            self._has_answer = False
            raise
        self._has_answer = True
        self._answered_at = time.monotonic()
        return answer

    def refresh(self) -> None:
        """Ask for the names of all topics, unless that was done just now."""
        with self._asking:
            if time.monotonic() - self._asked_at < _LEAST_SECONDS:
                return
            try:
                self.topics = set(self._heard(lambda: self._admin.topic_names(timeout=_ASK_SECONDS)))
            except OttlaError as error:
                _log.debug("the names of topics are not known: %s", error)
                return
            finally:
                self._asked_at = time.monotonic()

    def _keep_fresh(self) -> None:
        self.refresh()
        while not self._is_closed.wait(_LEAST_SECONDS):
            if not self._has_answer or time.monotonic() - self._asked_at >= _EVERY_SECONDS:
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
