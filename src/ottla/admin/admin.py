"""`Admin`: creates, changes, describes and deletes topics, and lists offsets.

Comes in: calls with plain values and an optional timeout in seconds. They return when every broker of the cluster has
caught up, or raise within the timeout. The pure modules next to this one build and check the messages. It must not move
records.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from ottla.admin import offsets, settings, topics
from ottla.admin.all_brokers import await_everywhere
from ottla.admin.group_admin import GroupAdmin
from ottla.admin.lookup import find_offsets, find_ranges
from ottla.admin.offsets import At, OffsetAt, OffsetSpec
from ottla.admin.settings import Changes, Settings
from ottla.admin.sizes import ReplicaSizes, find_sizes
from ottla.admin.topics import BROKER_DEFAULT, Apply, NewTopic, TopicDescription
from ottla.config import PLAINTEXT, Retry, Security, Timeouts
from ottla.errors import BrokerError, ConnectionLost, ErrorCode, InputError, OttlaError, RequestTimedOut
from ottla.model import Isolation, OffsetRange, TopicPartition
from ottla.net.cluster import Refresh
from ottla.net.context import Addresses, ClientContext
from ottla.net.deadline import Deadline
from ottla.net.discovery import MetadataQuery, metadata_request
from ottla.net.metadata import from_response
from ottla.net.targets import AnyBroker, Controller


class _Uncertainty:
    """Remembers whether an earlier attempt may have succeeded although its response was lost."""

    def __init__(self, explained_by: ErrorCode) -> None:
        self._explained_by = explained_by
        self.accept = ErrorCode.none
        """The error that now means success: the previous attempt did it."""

    def note(self, error: OttlaError) -> None:
        timed_out = isinstance(error, BrokerError) and error.code is ErrorCode.request_timed_out
        if timed_out or isinstance(error, ConnectionLost | RequestTimedOut):
            self.accept = self._explained_by


class Admin:
    """Administers topics, offsets and groups. Nothing connects before the first call.

    Takes bootstrap addresses, or a `Cluster`, which stays open on `close`. Every call raises `BrokerError` if the
    cluster rejects it, and `DeadlineExceeded` or `NoBrokerReachable` if it does not succeed within `timeout`.
    """

    def __init__(
        self,
        cluster: Addresses | None = None,
        *,
        security: Security = PLAINTEXT,
        client_id: str = "ottla-admin",
        timeouts: Timeouts | None = None,
        retry: Retry | None = None,
    ) -> None:
        self._context = ClientContext(cluster, security=security, client_id=client_id, timeouts=timeouts, retry=retry)
        self.cluster = self._context.cluster
        self.groups = GroupAdmin(self.cluster)
        """Consumer groups and their offsets."""

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the cluster client, unless the caller passed it in."""
        self._context.close()

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
        """Create the topic `name`. Returns when it can be written through any broker.

        `replicas` is the number of each partition, by default that of the brokers. `assignments` lists the brokers of
        each partition instead. `settings` are Kafka's, as text.
        """
        new = NewTopic(
            name=name,
            partitions=partitions,
            replicas=replicas,
            settings=settings or {},
            assignments=assignments,
        )
        self.create_topics([new], timeout=timeout)

    def create_topics(self, new: Collection[NewTopic], *, timeout: float | None = None) -> None:
        """Create the topics `new`. Returns when all of them can be written through any broker.

        This is not atomic: if the cluster rejects one topic, its `BrokerError` is raised, and others may exist.
        """
        deadline = self.cluster.deadline(timeout)
        names = [topic.name for topic in new]
        missing = {topic.name: topic for topic in new}
        uncertainty = _Uncertainty(ErrorCode.topic_already_exists)

        def check(response: Any) -> None:
            for name in topics.succeeded(response.topics):
                missing.pop(name, None)  # a retry must not ask again for those that exist
            topics.check_create(response, accept=uncertainty.accept)

        self.cluster.call(
            Controller(),
            lambda version_of: topics.build_create(
                version_of, missing.values(), seconds=self._broker_seconds(deadline)
            ),
            check=check,
            what=f"creating {_named('topic', names)}",
            deadline=deadline,
            retrying=uncertainty.note,
        )
        self._await_metadata(names, topics.unready, what="waiting for new topics", deadline=deadline)
        self._await_leaders(names, deadline)

    def check_topic(self, new: NewTopic, *, timeout: float | None = None) -> Settings:
        """Return the settings that the topic `new` would have, without creating it.

        Raises `BrokerError` for whatever would make creating it fail. The settings are empty if the user may not see
        them.
        """
        deadline = self.cluster.deadline(timeout)

        def check(response: Any) -> Settings:
            topics.check_create(response)
            return settings.from_created(getattr(response.topics[0], "configs", None))

        return self.cluster.call(
            Controller(),
            lambda version_of: topics.build_create(
                version_of, [new], seconds=self._broker_seconds(deadline), apply=Apply.CHECK
            ),
            check=check,
            what=f"checking topic {new.name}",
            deadline=deadline,
        )

    def add_partitions(self, topic: str, total: int, *, apply: Apply = Apply.NOW, timeout: float | None = None) -> None:
        """Raise the number of partitions of a topic to `total`. Returns when they can be written through any broker.

        Existing records stay where they are. From now on a key may map to another partition than before. With
        `apply=Apply.CHECK`, brokers check it and change nothing.
        """
        deadline = self.cluster.deadline(timeout)
        uncertainty = _Uncertainty(ErrorCode.invalid_partitions)
        self.cluster.call(
            Controller(),
            lambda version_of: topics.build_add_partitions(
                version_of, topic, total, seconds=self._broker_seconds(deadline), apply=apply
            ),
            check=lambda response: topics.check_add_partitions(response, accept=uncertainty.accept),
            what=f"adding partitions to topic {topic}",
            deadline=deadline,
            retrying=uncertainty.note,
        )
        if apply is Apply.NOW:
            self._await_metadata(
                [topic],
                lambda metadata, _: topics.fewer_than(metadata, topic, total),
                what="waiting for new partitions",
                deadline=deadline,
            )
            self._await_leaders([topic], deadline)

    def delete_topics(self, names: Collection[str] | str, *, timeout: float | None = None) -> None:
        """Delete topics. Returns when no broker knows them any more. Raises `BrokerError` if one does not exist."""
        deadline = self.cluster.deadline(timeout)
        topic_names = [names] if isinstance(names, str) else list(names)
        present = dict.fromkeys(topic_names)
        uncertainty = _Uncertainty(ErrorCode.unknown_topic_or_partition)

        def check(response: Any) -> list[str]:
            for name in topics.succeeded(response.responses):
                present.pop(name, None)
            return topics.check_delete(response)

        unknown = self.cluster.call(
            Controller(),
            lambda version_of: topics.build_delete(version_of, present, seconds=self._broker_seconds(deadline)),
            check=check,
            what=f"deleting {_named('topic', topic_names)}",
            deadline=deadline,
            retrying=uncertainty.note,
        )
        if unknown and uncertainty.accept is ErrorCode.none:
            raise BrokerError(ErrorCode.unknown_topic_or_partition, f"deleting {_named('topic', unknown)}")
        self._await_metadata(topic_names, topics.still_there, what="waiting for deleted topics", deadline=deadline)
        self.cluster.invalidate(*topic_names)

    def describe_topics(
        self, names: Collection[str] | str | None = None, *, timeout: float | None = None
    ) -> list[TopicDescription]:
        """Return the named topics (None: all), sorted by name. Raises `BrokerError` if one does not exist."""
        selected = [names] if isinstance(names, str) else names
        return topics.describe(self.cluster.metadata(selected, deadline=self.cluster.deadline(timeout)))

    def topic_names(self, *, timeout: float | None = None) -> list[str]:
        """Return the names of all topics except Kafka's internal ones, sorted."""
        metadata = self.cluster.metadata(None, deadline=self.cluster.deadline(timeout))
        return sorted(name for name, topic in metadata.topics.items() if not topic.internal)

    def list_offsets(
        self,
        partitions: str | Iterable[str | TopicPartition],
        at: At = OffsetSpec.LATEST,
        *,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAt]:
        """Return the offset of `at` in each partition. The name of a topic stands for all its partitions.

        With `isolation=Isolation.READ_COMMITTED` a log ends before the first open transaction. Asks all leaders at the
        same time, and asks again only for partitions whose leader moved. Raises `InputError` for an invalid time.
        """
        deadline = self.cluster.deadline(timeout)
        offsets.wire_timestamp(at)  # rejects an invalid time before anything is sent
        selected = self._partitions(partitions, deadline)
        return find_offsets(self.cluster, selected, at=at, isolation=isolation, deadline=deadline)

    def log_ranges(
        self, partitions: str | Iterable[str | TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetRange]:
        """Return where each log begins and ends. Its length is an estimate: compaction and transactions leave gaps."""
        deadline = self.cluster.deadline(timeout)
        selected = self._partitions(partitions, deadline)
        first = self.list_offsets(selected, OffsetSpec.EARLIEST, timeout=deadline.remaining())
        last = self.list_offsets(selected, OffsetSpec.LATEST, timeout=deadline.remaining())
        return {tp: OffsetRange(*tp, first[tp].offset, max(first[tp].offset, last[tp].offset)) for tp in selected}

    def visible_log_ranges(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetRange]:
        """Return `log_ranges`, without the partitions whose range no broker can tell within a few seconds."""
        deadline = self.cluster.deadline(timeout)
        selected = list(partitions)
        self.cluster.metadata({tp.topic for tp in selected}, deadline=deadline, refresh=Refresh.IF_STALE)
        return find_ranges(self.cluster, selected, deadline=deadline)

    def settings(self, names: Collection[str] | str, *, timeout: float | None = None) -> dict[str, Settings]:
        """Return all settings of topics, by topic and name. Raises `BrokerError` if a topic does not exist."""
        topic_names = [names] if isinstance(names, str) else list(names)
        return self.cluster.call(
            AnyBroker(),
            lambda version_of: settings.build_describe(version_of, topic_names),
            check=settings.read_describe,
            what=f"describing the settings of {_named('topic', topic_names)}",
            deadline=self.cluster.deadline(timeout),
        )

    def visible_settings(self, names: Collection[str], *, timeout: float | None = None) -> dict[str, Settings]:
        """Return `settings`, without the topics that have been deleted meanwhile."""
        deadline = self.cluster.deadline(timeout)
        what = "describing the settings of topics"
        attempts = self.cluster.attempts(what, deadline)
        known: dict[str, Settings] = {}
        missing = frozenset(names)
        while missing:
            known |= self.cluster.call(
                AnyBroker(),
                functools.partial(settings.build_describe, topics=missing),
                check=settings.read_describe_known,
                what=what,
                deadline=deadline,
            )
            missing -= known.keys()
            if missing:
                missing &= self.cluster.metadata(None, deadline=deadline).topics.keys()
            if missing:  # a topic that this broker does not know is a new one, if it is still listed
                attempts.failed(BrokerError(ErrorCode.unknown_topic_or_partition, f"{what}: {', '.join(missing)}"))
        return known

    def alter_settings(
        self, topic: str, changes: Changes, *, apply: Apply = Apply.NOW, timeout: float | None = None
    ) -> None:
        """Change some settings of a topic and keep the others. None in `changes` removes the topic's own value.

        Returns when every broker has the change. With `apply=Apply.CHECK`, brokers check it and change nothing.
        """
        deadline = self.cluster.deadline(timeout)
        self.cluster.call(
            Controller(),
            lambda version_of: settings.build_alter(version_of, topic, changes, apply=apply),
            check=settings.check_alter,
            what=f"altering settings of topic {topic}",
            deadline=deadline,
        )
        if apply is Apply.NOW:
            await_everywhere(
                self.cluster,
                lambda version_of: settings.build_describe(version_of, [topic], only=changes),
                judge=lambda response: settings.not_yet(response, topic, changes),
                what=f"waiting for altered settings of topic {topic}",
                deadline=deadline,
            )

    def replica_sizes(
        self, names: Collection[str] | str | None = None, *, timeout: float | None = None
    ) -> ReplicaSizes:
        """Return the size of each replica of the named topics (None: all), and the brokers that did not respond."""
        deadline = self.cluster.deadline(timeout)
        return find_sizes(self.cluster, self.describe_topics(names, timeout=deadline.remaining()), deadline=deadline)

    def _partitions(self, selection: str | Iterable[str | TopicPartition], deadline: Deadline) -> list[TopicPartition]:
        """Return the selected partitions, each once. A name stands for all partitions of that topic."""
        items = [selection] if isinstance(selection, str) else list(selection)
        names = [item for item in items if isinstance(item, str)]
        topics = self.cluster.topics(names, deadline=deadline) if names else {}
        partitions: dict[TopicPartition, None] = {}
        for item in items:
            if isinstance(item, str):
                partitions.update(
                    (TopicPartition(item, partition.index), None) for partition in topics[item].partitions
                )
            elif isinstance(item, TopicPartition):
                partitions[item] = None
            else:
                raise InputError(f"{item!r} is neither a TopicPartition nor a topic name")
        return list(partitions)

    def _await_metadata(self, names: Collection[str], judge: topics.Judge, *, what: str, deadline: Deadline) -> None:
        """Wait until the metadata of every broker passes `judge`."""
        await_everywhere(
            self.cluster,
            lambda version_of: metadata_request(version_of, MetadataQuery(frozenset(names))),
            judge=lambda response: judge(from_response(response), names),
            what=what,
            deadline=deadline,
        )

    def _await_leaders(self, names: Collection[str], deadline: Deadline) -> None:
        """Wait until the leaders serve: one may be elected a moment before it does. One that responds is ready."""
        find_offsets(
            self.cluster,
            self._partitions(names, deadline),
            at=OffsetSpec.LATEST,
            isolation=Isolation.READ_UNCOMMITTED,
            deadline=deadline,
        )

    def _broker_seconds(self, deadline: Deadline) -> float:
        """Return the time the broker may take, a little less than we wait for it."""
        return max(0.1, 0.8 * min(deadline.remaining(), self.cluster.timeouts.request))


def _named(kind: str, names: Collection[str]) -> str:
    return f"{kind}{'s' if len(names) > 1 else ''} {', '.join(names)}"
