"""Requests that wait for their response, and the queue that matches responses to them.

Response frames come in, completed requests go out. Responses must come in the order of the requests, which Kafka
promises, with their correlation ids; anything else is a `WireError`. It never locks or touches a socket.
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
    """Whether the broker sends a response to a request."""

    DUE = "due"
    NONE = "none"
    """Produce with acks=0: the request is done when the socket has taken it."""


class Pending:
    """A request in flight. `sent` (its last byte) and `finished` are readings of `time.monotonic`, None before."""

    __slots__ = (
        "_body",
        "_error",
        "_pipeline",
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
        pipeline: _Waits,
        *,
        api_key: int,
        version: int,
        correlation_id: int,
        deadline: Deadline,
        reply: Reply = Reply.DUE,
        answered: Callable[[Pending], None] | None = None,
    ) -> None:
        self._pipeline = pipeline
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
        """API and version, for error texts."""
        return f"{messages.api_name(self.api_key)} v{self.version}"

    @property
    def done(self) -> bool:
        """Whether `result` would return or raise at once."""
        return self.finished is not None

    @property
    def error(self) -> OttlaError | None:
        """The reason of its failure, or None."""
        return self._error

    def result(self) -> memoryview:
        """Return the body of the response, empty if none is due. Blocks until the request's deadline.

        Raises `RequestTimedOut` or `ConnectionLost` if the request failed.
        """
        if not self.done:
            self._pipeline.wait_for(self)
        if self._error is not None:
            raise copied(self._error)
        assert self._body is not None
        return self._body

    def response(self) -> Any:
        """Return the response as a kio entity. Raises as `result` does, and `WireError` if the body is unreadable."""
        return messages.decode_response(self.api_key, self.version, self.result())

    def finish(self, body: memoryview | None, error: OttlaError | None) -> None:
        """Complete the request with a body or an error. The connection calls it once, and then `answered`."""
        self._body, self._error = body, error
        self.finished = time.monotonic()


class InFlight:
    """The requests of one connection that wait for a response, oldest first."""

    def __init__(self) -> None:
        self._queue: deque[Pending] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Pending]:
        return iter(tuple(self._queue))  # a copy: another thread may add a request meanwhile

    def add(self, pending: Pending) -> None:
        """Append a request. For any thread."""
        self._queue.append(pending)

    def withdraw(self, pending: Pending) -> bool:
        """Take out a request that will not be sent. Returns False if it was drained before."""
        try:
            self._queue.remove(pending)
        except ValueError:
            return False
        return True

    def match(self, frame: memoryview) -> Pending:
        """Complete the request that `frame` answers, and return it. Raises `WireError` if it answers none."""
        if not self._queue:
            raise WireError("unexpected response: no request is outstanding")
        pending = self._queue[0]
        correlation_id, body = messages.split_response(pending.api_key, pending.version, frame)
        if correlation_id != pending.correlation_id:
            raise WireError(
                f"the response has correlation id {correlation_id},"
                f" but {pending.correlation_id} ({pending.name}) is due"
            )
        if self._queue and self._queue[0] is pending:  # else a signal handler has ended the connection in between
            self._queue.popleft()
            pending.finish(body, None)
        return pending

    def drain(self) -> list[Pending]:
        """Empty the queue and return the requests."""
        waiting: list[Pending] = []
        while True:  # one by one: each request is returned exactly once, whatever other threads add or withdraw
            try:
                waiting.append(self._queue.popleft())
            except IndexError:
                return waiting
