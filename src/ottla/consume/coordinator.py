"""The line to the coordinator of one group: requests of the membership's thread, one after the other.

Steps of a state machine come in, answers go out, or one error. It tries everything once: when to try again is the
machine's affair. Other threads may cut a request short.
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
    """With a connection of its own: a broker lets JoinGroup wait for the other members, and all that is behind it."""

    def __init__(self, cluster: Cluster, group: str, *, seconds: float) -> None:
        self._cluster = cluster
        self._target = CoordinatorOf(CoordinatorKind.GROUP, group)
        self._seconds = min(seconds, cluster.timeouts.connect)
        self._lane = f"group {uuid.uuid4().hex}"
        self._lock = threading.Lock()
        self._asking: tuple[Connection, Ask] | None = None
        self._in_a_hurry = False

    def ask(self, ask: Ask) -> Any:
        """The answer of the group's coordinator; finding and reaching it comes before the time that it has."""
        line = self._line(Deadline.after(self._seconds))
        return self._exchange(line, ask, Deadline.after(ask.seconds))

    def ask_by(self, ask: Ask, deadline: Deadline) -> Any:
        """The same within a deadline for everything."""
        return self._exchange(self._line(deadline), ask, deadline)

    def look(self, look: Look) -> Collection[Topic]:
        """Metadata of topics, also of those that do not exist."""
        deadline = Deadline.after(self._seconds)
        return self._cluster.metadata(look.topics, deadline=deadline, refresh=look.refresh).topics.values()

    def doubt(self) -> None:
        """The coordinator is looked up again before the next request."""
        self._cluster.doubt(self._target)

    def check_usable(self) -> None:
        """Raises when the cluster's client was closed."""
        self._cluster.check_usable()

    def hurry(self) -> None:
        """Nothing that waits for other members is asked from now on; such a request that is under way is cut."""
        with self._lock:
            self._in_a_hurry = True
            asking = self._asking
        if asking is not None and asking[1].patient:
            asking[0].close()

    def cut(self) -> None:
        """Ends whatever is under way."""
        with self._lock:
            asking = self._asking
        if asking is not None:
            asking[0].close()

    def _line(self, deadline: Deadline) -> Connection:
        broker = self._cluster.coordinator(self._target.key, self._target.kind, deadline=deadline)
        return self._cluster.connection(broker, channel=self._lane, deadline=deadline)

    def _exchange(self, line: Connection, ask: Ask, deadline: Deadline) -> Any:
        version = line.version(ask.api)
        if version < ask.lowest:
            api = messages.api_name(ask.api)
            raise UnsupportedFormat(f"{ask.what} needs {api} in version {ask.lowest}, the broker has {version}")
        message = messages.compose(messages.request_type(ask.api, version), ask.fields)
        with self._lock:
            if self._in_a_hurry and ask.patient:
                raise client_closed()
            self._asking = line, ask
        try:
            return line.request(message, deadline=deadline)
        finally:
            with self._lock:
                self._asking = None
