"""Requests that wait for their answer, and the queue in which answers meet them.

Frames come in, completed requests go out; answers must come in the order of the requests (Kafka promises
it) and carry their correlation ids, anything else is a WireError. Nothing here locks or touches a socket.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, Protocol

from ottla.errors import OttlaError, WireError, copied
from ottla.net.deadline import Deadline
from ottla.wire import messages


class _Waits(Protocol):
    def wait_for(self, pending: Pending) -> None: ...


class Reply(Enum):
    """Whether the broker answers a request."""

    DUE = "due"
    NONE = "none"
    """Produce with acks=0: the request is done when the socket has taken it."""


class Pending:
    """A request on its way. `sent` (its last byte) and `finished` are readings of `time.monotonic`, None before."""

    __slots__ = (
        "_body",
        "_error",
        "_line",
        "answered",
        "api_key",
        "correlation_id",
        "deadline",
        "finished",
        "reply",
        "sent",
        "version",
    )

    def __init__(
        self,
        line: _Waits,
        *,
        api_key: int,
        version: int,
        correlation_id: int,
        deadline: Deadline,
        reply: Reply = Reply.DUE,
        answered: Callable[[Pending], None] | None = None,
    ) -> None:
        self._line = line
        self._body: memoryview | None = None
        self._error: OttlaError | None = None
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.deadline = deadline
        self.reply = reply
        self.answered = answered
        self.sent: float | None = None
        self.finished: float | None = None

    def __repr__(self) -> str:
        state = "waiting" if not self.done else "answered" if self._error is None else "failed"
        return f"<Pending {self.name} #{self.correlation_id}, {state}>"

    @property
    def name(self) -> str:
        """API and version, for the texts of errors."""
        return f"{messages.api_name(self.api_key)} v{self.version}"

    @property
    def done(self) -> bool:
        """Whether `result` would return or raise at once."""
        return self.finished is not None

    @property
    def error(self) -> OttlaError | None:
        """Why it failed, or None."""
        return self._error

    def result(self) -> memoryview:
        """The body of the answer, after waiting for it until the request's deadline; empty when none is due."""
        if not self.done:
            self._line.wait_for(self)
        if self._error is not None:
            raise copied(self._error)
        assert self._body is not None
        return self._body

    def response(self) -> Any:
        """The answer as a kio entity, after waiting like `result`; an unreadable body is a WireError."""
        return messages.decode_response(self.api_key, self.version, self.result())

    def finish(self, body: memoryview | None, error: OttlaError | None) -> None:
        """Called once, by the connection, which then calls `answered`."""
        self._body, self._error = body, error
        self.finished = time.monotonic()


class InFlight:
    """The requests of one connection whose answers are due, oldest first."""

    def __init__(self) -> None:
        self._queue: deque[Pending] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Pending]:
        return iter(tuple(self._queue))  # one may be added meanwhile

    def add(self, pending: Pending) -> None:
        """`pending` is sent after everything that was added before. Any thread may say so."""
        self._queue.append(pending)

    def withdraw(self, pending: Pending) -> bool:
        """It is not sent; False if it was drained before."""
        try:
            self._queue.remove(pending)
        except ValueError:
            return False
        return True

    def meet(self, frame: memoryview) -> Pending:
        """The request that `frame` answers, completed."""
        if not self._queue:
            raise WireError("the broker sent an answer to no question")
        pending = self._queue[0]
        correlation_id, body = messages.split_response(pending.api_key, pending.version, frame)
        if correlation_id != pending.correlation_id:
            raise WireError(
                f"an answer with correlation id {correlation_id} came where"
                f" {pending.correlation_id} ({pending.name}) was due"
            )
        if self._queue and self._queue[0] is pending:  # else a signal handler came in between, and ended the line
            self._queue.popleft()
            pending.finish(body, None)
        return pending

    def drain(self) -> list[Pending]:
        """Everything that waits; nothing does afterwards."""
        waiting: list[Pending] = []
        while True:  # one by one: what another thread adds or withdraws meanwhile is told exactly once
            try:
                waiting.append(self._queue.popleft())
            except IndexError:
                return waiting
