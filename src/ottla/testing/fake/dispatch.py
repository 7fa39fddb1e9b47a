"""Handles one request of the fake: records it, matches it against the faults, runs its handler, builds the response.

A frame and the broker that it reached come in; a `Reply` goes out that says what to send and what happens to the
connection. Sockets belong to `server`, the rules of Kafka to `apis` and `state`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ottla.errors import DeadlineExceeded, WireError
from ottla.model import TopicPartition
from ottla.testing.fake.apis import api_versions, metadata
from ottla.testing.fake.apis.table import TABLE
from ottla.testing.fake.context import Context, Hangup
from ottla.testing.fake.faults import Fault, FaultTable, Kind, RequestSeen, When, describe
from ottla.testing.fake.log import Refused
from ottla.testing.fake.messages import Incoming, answer, parse, peek
from ottla.testing.fake.state import ClusterState
from ottla.wire.messages import api_name

_log = logging.getLogger(__name__)

REMEMBERED_REQUESTS = 100_000
"""Number of requests that are kept for tests to look at."""


class Then(Enum):
    """What happens to a connection after a request."""

    CONTINUE = "read the next request"
    CLOSE = "close it"
    IGNORE = "keep it open and never respond again"


@dataclass(frozen=True, slots=True)
class Reply:
    """What to send, and what to do next."""

    data: bytes = b""
    then: Then = Then.CONTINUE


class Dispatcher:
    """Handles frames for all brokers of one cluster. `changed` is the lock of everything in it."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.faults = FaultTable()
        self.seen: deque[RequestSeen] = deque(maxlen=REMEMBERED_REQUESTS)
        self.changed = threading.Condition(threading.Lock())

    def reply(self, frame: bytes, broker: int) -> Reply:
        """Handle one request that reached `broker`."""
        incoming = self._parse(frame)
        if incoming is None:
            return Reply(then=Then.CLOSE)
        with self.changed:
            if broker not in self.state.live:  # It went down while the request was under way.
                return Reply(then=Then.CLOSE)
            seen = self._note(incoming, broker)
            try:
                return self._handle(incoming, seen)
            except Hangup:
                return Reply(then=Then.CLOSE)
            finally:
                self.changed.notify_all()

    def wait_for(
        self, matches: Callable[[RequestSeen], bool], *, count: int, timeout: float, description: str
    ) -> RequestSeen:
        """Return the `count`-th request that matches. Raises `DeadlineExceeded` if it does not arrive."""

        def matching() -> list[RequestSeen]:
            return [seen for seen in self.seen if matches(seen)]

        with self.changed:
            if self.changed.wait_for(lambda: len(matching()) >= count, timeout):
                return matching()[count - 1]
            causes = tuple(f"seen: {describe(seen)}" for seen in list(self.seen)[-5:])
        raise DeadlineExceeded(f"waiting for {description}", timeout, causes)

    def _parse(self, frame: bytes) -> Incoming | None:
        key, version = peek(frame)
        api = TABLE.get(key)
        if api is None or (version not in api.versions and key != api_versions.KEY):
            # A real broker does the same with a request that it never offered.
            _log.warning("the fake broker does not support %s v%d: connection closed", api_name(key), version)
            return None
        try:
            return parse(frame, known=version in api.versions)
        except WireError as exc:
            _log.warning("connection closed: %s", exc)
            return None

    def _note(self, incoming: Incoming, broker: int) -> RequestSeen:
        topics, partitions = _touched(incoming.body, self.state)
        if incoming.api_key == metadata.KEY and incoming.body.topics is None:
            topics = tuple(self.state.topics)
        name = api_name(incoming.api_key)
        touched = (tuple(dict.fromkeys(topics)), tuple(partitions))
        seen = RequestSeen(
            broker, name, incoming.api_key, incoming.version, incoming.client_id, *touched, at=time.monotonic()
        )
        self.seen.append(seen)
        self.changed.notify_all()
        return seen

    def _handle(self, incoming: Incoming, seen: RequestSeen) -> Reply:
        if self.faults.take(Kind.SILENCE, seen):
            return Reply(then=Then.IGNORE)
        self._delay(seen, When.BEFORE_HANDLING)
        if self.faults.take(Kind.CUT, seen, When.BEFORE_HANDLING):
            raise Hangup
        context = self._context(seen, self.faults.take(Kind.FAIL, seen))
        tree = TABLE[incoming.api_key].handle(incoming.body, self.state, context)
        self.changed.notify_all()
        self._delay(seen, When.AFTER_HANDLING)
        if self.faults.take(Kind.CUT, seen, When.AFTER_HANDLING):
            raise Hangup
        if tree is None:
            return Reply()
        # A client that asks in a version that is too new is answered in the oldest one, which it can read (KIP-511).
        version = incoming.version if incoming.version in TABLE[incoming.api_key].versions else 0
        data = answer(incoming.api_key, version, correlation_id=incoming.correlation_id, tree=tree)
        return self._shortened(data, self.faults.take(Kind.HALF, seen))

    def _context(self, seen: RequestSeen, fault: Fault | None) -> Context:
        live = self.state.live
        return Context(seen, fault=fault, changed=self.changed, is_live=lambda: seen.broker in live)

    def _delay(self, seen: RequestSeen, when: When) -> None:
        fault = self.faults.take(Kind.DELAY, seen, when)
        if fault is None:
            return
        context = self._context(seen, fault=None)
        end = context.now() + fault.seconds
        while (left := end - context.now()) > 0:
            context.wait(left)

    def _shortened(self, data: bytes, fault: Fault | None) -> Reply:
        if fault is None:
            return Reply(data)
        keep_bytes = len(data) // 2 if fault.keep_bytes is None else fault.keep_bytes
        return Reply(data[:keep_bytes], Then.CLOSE)


def _touched(body: Any, state: ClusterState) -> tuple[tuple[str, ...], list[TopicPartition]]:
    """Return the topics and partitions that a request names, under any of the field names that messages use."""
    items = [item for entity in (body, *getattr(body, "groups", ())) for item in _topics_of(entity)]
    names_and_items = [(_name(item, state), item) for item in items]
    pairs = [TopicPartition(name, index) for name, item in names_and_items for index in _indexes(item)]
    return tuple(name for name, _ in names_and_items if name), pairs


def _topics_of(entity: Any) -> tuple[Any, ...]:
    for field in ("topics", "topic_data", "topic_names"):
        topics = getattr(entity, field, None)
        if topics is not None:
            return tuple(topics)
    return ()


def _name(item: Any, state: ClusterState) -> str:
    if isinstance(item, str):
        return item
    try:
        return state.topic(item).name
    except Refused:
        return getattr(item, "name", None) or getattr(item, "topic", None) or ""


def _indexes(item: Any) -> list[int]:
    partitions = next(
        (
            elements
            for field in ("partitions", "partition_data", "partition_indexes")
            if (elements := getattr(item, field, None))
        ),
        (),
    )
    return [partition if isinstance(partition, int) else _index(partition) for partition in partitions]


def _index(partition: Any) -> int:
    fields = ("index", "partition", "partition_index")
    return next((int(getattr(partition, field)) for field in fields if hasattr(partition, field)), -1)
