"""Publishes what a client counts: a thread that writes the pages of its session every few seconds, and at the end.

The client reports slices; whether they may go on is answered here (`expect`, `await_announced`). A cluster that does
not take tallies never stops the client for longer than `Audit.wait_seconds`: it is logged, and the client goes on.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence

from ottla.config import PLAINTEXT, Security, Timeouts
from ottla.errors import OttlaError
from ottla.net import Cluster
from ottla.net.deadline import Deadline
from ottla.tally.publishing import ensure_topic, publish
from ottla.tally.session import Session
from ottla.tally.settings import Audit
from ottla.tally.values import Slice

_log = logging.getLogger(__name__)
_CLOSE_SECONDS = 1.0
"""How long the last publication may take at least."""
_SETTLE_SECONDS = 0.002
"""How long a publication that clients wait for collects what else is to be announced."""


class Publisher:
    """The tallies of one client. `start` is implied by the first slice; `close` publishes the last pages."""

    def __init__(
        self,
        audit: Audit,
        bootstrap: Sequence[object],
        *,
        role: str,
        security: Security = PLAINTEXT,
        client_id: str = "ottla-audit",
        announced: Callable[[], None] = lambda: None,
    ) -> None:
        """`announced` is called on the thread after each publication: something that waits may go on."""
        self.audit = audit
        self.session = Session(audit, id=uuid.uuid4().hex, role=role)
        own = audit.bootstrap is None
        addresses = ",".join(map(str, bootstrap)) if audit.bootstrap is None else audit.bootstrap
        self._cluster = Cluster(
            addresses,
            security=security if own else audit.security,
            client_id=f"{client_id}-audit",
            timeouts=Timeouts(connect=5.0, request=10.0, total=30.0),
        )
        self._announced = announced
        self._lock = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_wanted = False
        self._is_closed = False
        self._is_ready = False
        self._waiting_since: float | None = None
        """When records began to wait for a publication, by the monotonic clock."""
        self._error: OttlaError | None = None
        self._pid = os.getpid()

    @property
    def bucket_ms(self) -> int:
        """The length of a bucket, as the kernels take it."""
        return self.audit.bucket_seconds * 1000

    @property
    def error(self) -> OttlaError | None:
        """Why the last publication failed; None if it did not."""
        return self._error

    def expect(self, topic: str, slices: Sequence[Slice]) -> bool:
        """Note records that are on their way. Returns whether they may go; if not, `may_go` says when."""
        is_announced = self.session.expect(topic, slices)
        if not is_announced:
            self._want()
        return is_announced

    def may_go(self, topic: str, slices: Sequence[Slice]) -> bool:
        """Whether expected records are announced, or have waited long enough."""
        if self.session.is_announced(topic, slices):
            return True
        since = self._waiting_since
        return self._is_closed or (since is not None and time.monotonic() >= since + self.audit.wait_seconds)

    def await_announced(self, topic: str, slices: Sequence[Slice]) -> None:
        """Block until expected records may go on, for at most `wait_seconds`."""
        with self._lock:
            while not self.may_go(topic, slices):
                self._lock.wait(0.1)

    def count(self, topic: str, partition: int, slices: Iterable[Slice]) -> None:
        """Count records that have arrived."""
        self.session.count(topic, partition, list(slices))

    def close(self) -> None:
        """Publish the last pages and end the thread. What cannot be published in time is logged, not raised."""
        timeout = max(self.audit.wait_seconds, _CLOSE_SECONDS)
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            thread = self._thread
            self._lock.notify_all()
        deadline = Deadline.after(timeout)
        try:
            if thread is not None:
                thread.join(timeout)
            if self.session.topics:
                self._publish(deadline, is_last=True)
        except OttlaError as error:
            _log.warning("the last tallies of tier %s could not be published: %s", self.audit.tier, error)
        finally:
            self._cluster.close()

    def _want(self) -> None:
        """Ask for a publication as soon as possible."""
        with self._lock:
            if self._is_closed:
                return
            if self._waiting_since is None:
                self._waiting_since = time.monotonic()
            self._is_wanted = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ottla-audit", daemon=True)
                self._thread.start()
            self._lock.notify_all()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._is_wanted and not self._is_closed:
                    self._lock.wait(self.audit.publish_every)
                if self._is_closed:
                    return
                self._is_wanted = False
            time.sleep(_SETTLE_SECONDS)
            try:
                self._publish(Deadline.after(max(self.audit.publish_every, 5.0)), is_last=False)
            except OttlaError as error:
                if self._error is None:
                    _log.warning("tallies of tier %s cannot be published, will retry: %s", self.audit.tier, error)
                self._error = error
                with self._lock:
                    if not self._is_closed:
                        self._lock.wait(min(1.0, self.audit.publish_every))
            else:
                self._error = None
                with self._lock:
                    self._waiting_since = time.monotonic() if self.session.needs_publication else None
                    self._is_wanted = self._is_wanted or self._waiting_since is not None
                    self._lock.notify_all()
            self._announced()

    def _publish(self, deadline: Deadline, *, is_last: bool) -> None:
        if not self._is_ready:
            ensure_topic(self._cluster, self.audit.topic, deadline=deadline)
            self._is_ready = True
        for pages in self.session.pages(time.time(), is_last=is_last):
            publish(self._cluster, pages, topic=self.audit.topic, deadline=deadline)
            for page in pages:
                self.session.published(page)
