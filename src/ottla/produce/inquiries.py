"""What the core asks brokers that takes long: a producer id, the end of a log, a place in a transaction.

Effects come in; each runs in the background of the loop, and its result, or its error, goes back into the core on the
loop's thread.
"""

from __future__ import annotations

import time

from ottla.errors import OttlaError
from ottla.net import Cluster
from ottla.net.background import BackgroundTasks
from ottla.produce import coordinator
from ottla.produce.core import Core
from ottla.produce.effects import ReadTail
from ottla.produce.failures import Failures
from ottla.produce.identity import new_producer_id
from ottla.produce.outgoing import Identity
from ottla.produce.participants import Join


class Inquiries:
    """Asks for the core of one producer."""

    def __init__(self, core: Core, background: BackgroundTasks, cluster: Cluster, failures: Failures) -> None:
        self._core = core
        self._background = background
        self._cluster = cluster
        self._failures = failures

    def identify(self) -> None:
        """Request a producer id."""
        self._background.run(
            "identity",
            lambda: new_producer_id(self._cluster),
            done=self._core.identified,
            failed=lambda error: self._core.not_identified(error, time.monotonic()),
        )

    def read_tail(self, effect: ReadTail) -> None:
        """Search the end of a log."""
        topic, lane, search, counts = effect

        def search_log() -> dict[Identity, int]:
            from ottla.produce import tail  # imports the reader, which few producers ever need

            return tail.find(self._cluster, search, counts)

        self._background.run(
            ("tail", lane.tp),
            search_log,
            done=lambda offsets: self._core.tail_read(topic, lane, offsets),
            failed=lambda error: self._core.tail_not_read(lane, error, time.monotonic()),
        )

    def join(self, join: Join) -> None:
        """Ask the coordinator to add partitions to the transaction."""

        def failed(error: OttlaError) -> None:
            self._failures.failure = self._failures.failure or error
            self._core.not_joined(join, error)

        self._background.run(
            "transaction",
            lambda: coordinator.add_partitions(self._cluster, join.identity, join.partitions),
            done=lambda _: self._core.joined(join),
            failed=failed,
        )
