"""`Admin`: creates, deletes and describes topics and lists offsets, on a cluster of its own or a shared one.

Calls come in with plain values and an optional timeout in seconds; they return when the whole cluster has caught
up, or raise within the timeout. What the requests contain is decided in the pure modules beside this one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from ottla.admin import offsets, topics
from ottla.admin.lookup import find_offsets
from ottla.admin.offsets import At, OffsetAt, OffsetSpec
from ottla.admin.topics import BROKER_DEFAULT, NewTopic, TopicDescription
from ottla.config import PLAINTEXT, Address, Retry, Security, Timeouts
from ottla.errors import BrokerError, ConnectionLost, ErrorCode, NetworkError, OttlaError, RequestTimedOut
from ottla.model import Isolation, TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.deadline import Deadline
from ottla.net.discovery import Question, metadata_request
from ottla.net.metadata import Broker, Metadata, from_response
from ottla.net.targets import Controller


class _Doubt:
    """Remembers whether an earlier attempt may have been carried out although its answer was lost."""

    def __init__(self, explained_by: ErrorCode) -> None:
        self._explained_by = explained_by
        self.accept = ErrorCode.none
        """The error that now means success: we did it ourselves, the last time."""

    def note(self, error: OttlaError) -> None:
        timed_out = isinstance(error, BrokerError) and error.code is ErrorCode.request_timed_out
        if timed_out or isinstance(error, ConnectionLost | RequestTimedOut):
            self.accept = self._explained_by


class Admin:
    """Made from bootstrap addresses, or from a `Cluster` that is then left open. Nothing connects before a call."""

    def __init__(
        self,
        cluster: Cluster | str | Iterable[str | Address],
        *,
        security: Security = PLAINTEXT,
        client_id: str = "ottla-admin",
        timeouts: Timeouts | None = None,
        retry: Retry | None = None,
    ) -> None:
        self._owns_cluster = not isinstance(cluster, Cluster)
        if isinstance(cluster, Cluster):
            self.cluster = cluster
        else:
            self.cluster = Cluster(cluster, security=security, client_id=client_id, timeouts=timeouts, retry=retry)

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the cluster client, unless it was handed in."""
        if self._owns_cluster:
            self.cluster.close()

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replicas: int = BROKER_DEFAULT,
        settings: Mapping[str, str] | None = None,
        assignments: Sequence[Sequence[int]] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Creates a topic and returns when it can be written to through any broker."""
        new = NewTopic(
            name=name,
            partitions=partitions,
            replicas=replicas,
            settings=settings or {},
            assignments=assignments,
        )
        self.create_topics([new], timeout=timeout)

    def create_topics(self, new: Collection[NewTopic], *, timeout: float | None = None) -> None:
        """Creates several topics and returns when all can be written to through any broker.

        They are created one by one as far as the cluster is concerned: when one is refused its BrokerError is
        raised, and others may exist.
        """
        deadline = self._deadline(timeout)
        names = [topic.name for topic in new]
        missing = {topic.name: topic for topic in new}
        doubt = _Doubt(ErrorCode.topic_already_exists)

        def check(response: Any) -> None:
            for name in topics.succeeded(response.topics):
                missing.pop(name, None)  # what is there already is not asked for again
            topics.check_create(response, accept=doubt.accept)

        self.cluster.call(
            Controller(),
            lambda version_of: topics.build_create(
                version_of, missing.values(), seconds=self._broker_seconds(deadline)
            ),
            check=check,
            what=f"creating {_named('topic', names)}",
            deadline=deadline,
            retrying=doubt.note,
        )
        self._await_everywhere(names, topics.unready, what="waiting for new topics", deadline=deadline)
        # A leader may know that it leads a moment before it does; one that answers this is ready for records.
        find_offsets(
            self.cluster,
            self._partitions(names, deadline),
            at=OffsetSpec.LATEST,
            isolation=Isolation.READ_UNCOMMITTED,
            deadline=deadline,
        )

    def delete_topics(self, names: Collection[str] | str, *, timeout: float | None = None) -> None:
        """Deletes topics and returns when no broker knows them any more."""
        deadline = self._deadline(timeout)
        wanted = [names] if isinstance(names, str) else list(names)
        present = dict.fromkeys(wanted)
        doubt = _Doubt(ErrorCode.unknown_topic_or_partition)

        def check(response: Any) -> list[str]:
            for name in topics.succeeded(response.responses):
                present.pop(name, None)
            return topics.check_delete(response)

        unknown = self.cluster.call(
            Controller(),
            lambda version_of: topics.build_delete(version_of, present, seconds=self._broker_seconds(deadline)),
            check=check,
            what=f"deleting {_named('topic', wanted)}",
            deadline=deadline,
            retrying=doubt.note,
        )
        if unknown and doubt.accept is ErrorCode.none:
            raise BrokerError(ErrorCode.unknown_topic_or_partition, f"deleting {_named('topic', unknown)}")
        self._await_everywhere(wanted, topics.still_there, what="waiting for deleted topics", deadline=deadline)
        self.cluster.invalidate(*wanted)

    def describe_topics(
        self, names: Collection[str] | str | None = None, *, timeout: float | None = None
    ) -> list[TopicDescription]:
        """The named topics (None: all), by name; BrokerError when one does not exist."""
        wanted = [names] if isinstance(names, str) else names
        return topics.describe(self.cluster.metadata(wanted, deadline=self._deadline(timeout)))

    def topic_names(self, *, timeout: float | None = None) -> list[str]:
        """The names of all topics but Kafka's internal ones, sorted."""
        metadata = self.cluster.metadata(None, deadline=self._deadline(timeout))
        return sorted(name for name, topic in metadata.topics.items() if not topic.internal)

    def list_offsets(
        self,
        partitions: str | Iterable[TopicPartition],
        at: At = OffsetSpec.LATEST,
        *,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAt]:
        """Where `at` is in each partition, or in all partitions of the topic that is named.

        Leaders are asked at the same time; partitions whose leader moved are asked again, the others not.
        """
        deadline = self._deadline(timeout)
        offsets.wire_timestamp(at)  # refuses a bad time before anything is sent
        wanted = self._partitions([partitions], deadline) if isinstance(partitions, str) else list(partitions)
        return find_offsets(self.cluster, wanted, at=at, isolation=isolation, deadline=deadline)

    def _partitions(self, names: Collection[str], deadline: Deadline) -> list[TopicPartition]:
        return [
            TopicPartition(name, partition.index)
            for name in names
            for partition in self.cluster.topic(name, deadline=deadline).partitions
        ]

    def _await_everywhere(
        self,
        names: Collection[str],
        judge: Callable[[Metadata, Collection[str]], BrokerError | None],
        *,
        what: str,
        deadline: Deadline,
    ) -> None:
        """Waits until the metadata of every broker passes `judge`."""
        effort = self.cluster.effort(what, deadline)
        while (objection := self._objection(names, judge, deadline)) is not None:
            effort.failed(objection)

    def _objection(
        self,
        names: Collection[str],
        judge: Callable[[Metadata, Collection[str]], BrokerError | None],
        deadline: Deadline,
    ) -> OttlaError | None:
        """The first broker's view that does not pass; a broker that is gone is not listed for long."""
        for broker in self.cluster.metadata(deadline=deadline).brokers.values():
            try:
                objection = judge(self._view(broker, names, deadline), names)
            except NetworkError as exc:
                return exc
            if objection is not None:
                return objection
        return None

    def _view(self, broker: Broker, names: Collection[str], deadline: Deadline) -> Metadata:
        """What this one broker believes."""
        connection = self.cluster.connection(broker, deadline=deadline)
        message = metadata_request(connection.version, Question(frozenset(names)))
        limit = deadline.sooner(self.cluster.timeouts.request)
        return from_response(connection.request(message, deadline=limit))

    def _deadline(self, timeout: float | None) -> Deadline:
        return Deadline.after(self.cluster.timeouts.total if timeout is None else timeout)

    def _broker_seconds(self, deadline: Deadline) -> float:
        """What the broker may take, a little less than we wait for it."""
        return max(0.1, 0.8 * min(deadline.remaining(), self.cluster.timeouts.request))


def _named(kind: str, names: Collection[str]) -> str:
    return f"{kind}{'s' if len(names) > 1 else ''} {', '.join(names)}"
