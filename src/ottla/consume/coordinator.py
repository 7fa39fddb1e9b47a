"""The connection to the coordinator of one group.

Steps of a state machine come in one at a time, from the membership's thread; responses go out, or an error. Each
request is sent once: the state machine decides about retries. Other threads may abort a request.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Collection
from typing import Any

from ottla.consume.steps import Ask, Look
from ottla.errors import UnsupportedFormat
from ottla.net import Cluster, Connection, CoordinatorKind, CoordinatorOf, Deadline, Topic
from ottla.net.interrupt import client_closed
from ottla.wire import messages


class CoordinatorClient:
    """Has its own connection: a broker holds JoinGroup back until all members join, and everything behind it."""

    def __init__(self, cluster: Cluster, group: str, *, seconds: float) -> None:
        self._cluster = cluster
        self._target = CoordinatorOf(CoordinatorKind.GROUP, group)
        self._seconds = min(seconds, cluster.timeouts.connect)
        self._lane = f"group {uuid.uuid4().hex}"
        self._lock = threading.Lock()
        self._request: tuple[Connection, Ask] | None = None
        self._is_leaving = False

    def ask(self, ask: Ask) -> Any:
        """Send a request to the coordinator and return the response.

        Finding and reaching the coordinator has its own time limit, before `ask.seconds`. Raises an `OttlaError` if it
        fails.
        """
        connection = self._connect(Deadline.after(self._seconds))
        return self._exchange(connection, ask, Deadline.after(ask.seconds))

    def ask_by(self, ask: Ask, deadline: Deadline) -> Any:
        """Like `ask`, with one deadline for everything."""
        return self._exchange(self._connect(deadline), ask, deadline)

    def look(self, look: Look) -> Collection[Topic]:
        """Return the metadata of topics, including missing ones."""
        deadline = Deadline.after(self._seconds)
        return self._cluster.metadata(look.topics, deadline=deadline, refresh=look.refresh).topics.values()

    def doubt(self) -> None:
        """Look the coordinator up again before the next request."""
        self._cluster.doubt(self._target)

    def check_usable(self) -> None:
        """Raise if the client was closed."""
        self._cluster.check_usable()

    def hurry(self) -> None:
        """Send no more requests that wait for other members, and abort one that is in flight."""
        with self._lock:
            self._is_leaving = True
            request = self._request
        if request is not None and request[1].patient:
            request[0].close()

    def cut(self) -> None:
        """Abort the request in flight, if any."""
        with self._lock:
            request = self._request
        if request is not None:
            request[0].close()

    def _connect(self, deadline: Deadline) -> Connection:
        broker = self._cluster.coordinator(self._target.key, self._target.kind, deadline=deadline)
        return self._cluster.connection(broker, channel=self._lane, deadline=deadline)

    def _exchange(self, connection: Connection, ask: Ask, deadline: Deadline) -> Any:
        version = connection.version(ask.api)
        if version < ask.lowest:
            api = messages.api_name(ask.api)
            raise UnsupportedFormat(f"{ask.what} needs {api} version {ask.lowest}, but the broker supports {version}")
        message = messages.compose(messages.request_type(ask.api, version), ask.fields)
        with self._lock:
            if self._is_leaving and ask.patient:
                raise client_closed()
            self._request = connection, ask
        try:
            return connection.request(message, deadline=deadline)
        finally:
            with self._lock:
                self._request = None
