"""The part of `FakeKafka` that shows its state: topics, logs, records, leaders, and the requests of clients.

Everything is read under the dispatcher's lock and returned as copies; nothing here changes the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.errors import InputError
from ottla.testing.fake.dispatch import Dispatcher
from ottla.testing.fake.faults import RequestSeen
from ottla.testing.fake.log import Refused
from ottla.testing.fake.messages import api_key
from ottla.testing.fake.records import StoredRecord, decode
from ottla.testing.fake.state import Partition


class ClusterView:
    """What a test can assert on. Methods raise `InputError` for a missing topic or partition."""

    _dispatcher: Dispatcher

    @property
    def topics(self) -> Mapping[str, int]:
        """The existing topics and their partition counts."""
        with self._dispatcher.changed:
            return {name: len(topic.partitions) for name, topic in self._dispatcher.state.topics.items()}

    def log(self, topic: str, partition: int) -> list[bytes]:
        """Return the batches of a partition as a broker stores them, with offsets and leader epoch."""
        with self._dispatcher.changed:
            return [stored.data for stored in self._partition(topic, partition).log.batches]

    def records(self, topic: str, partition: int) -> list[StoredRecord]:
        """Return the decoded records of a partition."""
        with self._dispatcher.changed:
            start = self._partition(topic, partition).log.start
        return list(decode(self.log(topic, partition), topic=topic, partition=partition, start=start))

    def leader(self, topic: str, partition: int) -> int:
        """Return the id of a partition's leader; -1 if none of its replicas is up."""
        with self._dispatcher.changed:
            return self._partition(topic, partition).leader

    @property
    def requests(self) -> list[RequestSeen]:
        """The requests that reached a broker, oldest first."""
        with self._dispatcher.changed:
            return list(self._dispatcher.seen)

    def wait_for_request(
        self, api: str | int, timeout: float = 10.0, *, count: int = 1, broker: int | None = None
    ) -> RequestSeen:
        """Wait for the `count`-th request of this API since the start.

        Raises `DeadlineExceeded` if it does not come.
        """
        key = api_key(api)

        def matches(seen: RequestSeen) -> bool:
            return seen.api_key == key and broker in (None, seen.broker)

        description = f"request {count} of API {api}"
        return self._dispatcher.wait_for(matches, count=count, timeout=timeout, description=description)

    def _partition(self, topic: str, partition: int) -> Partition:
        try:
            return self._dispatcher.state.partition(self._dispatcher.state.topic_named(topic), partition)
        except Refused as refused:
            raise InputError(f"{refused}; topics are {sorted(self._dispatcher.state.topics)}") from refused
