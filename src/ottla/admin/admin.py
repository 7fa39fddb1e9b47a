"""`Admin`: creates, changes, describes and deletes topics and lists offsets, on a cluster of its own or a shared one.

Calls come in with plain values and an optional timeout in seconds; they return when the whole cluster has caught
up, or raise within the timeout. What the requests contain is decided in the pure modules beside this one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from ottla.admin import offsets, settings, topics
from ottla.admin.everywhere import await_everywhere
from ottla.admin.group_admin import GroupAdmin
from ottla.admin.lookup import find_offsets, find_ranges
from ottla.admin.offsets import At, OffsetAt, OffsetSpec
from ottla.admin.settings import Changes, Settings
from ottla.admin.sizes import ReplicaSizes, find_sizes
from ottla.admin.topics import BROKER_DEFAULT, Apply, NewTopic, TopicDescription
from ottla.config import PLAINTEXT, Address, Retry, Security, Timeouts
from ottla.errors import BrokerError, ConnectionLost, ErrorCode, InputError, OttlaError, RequestTimedOut
from ottla.model import Isolation, OffsetRange, TopicPartition
from ottla.net.cluster import Cluster, Refresh
from ottla.net.context import ClientContext
from ottla.net.deadline import Deadline
from ottla.net.discovery import MetadataQuery, metadata_request
from ottla.net.metadata import from_response
from ottla.net.targets import AnyBroker, Controller


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
        self._footing = ClientContext(cluster, security=security, client_id=client_id, timeouts=timeouts, retry=retry)
        self.cluster = self._footing.cluster
        self.groups = GroupAdmin(self.cluster)
        """What can be done with consumer groups and their offsets."""

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the cluster client, unless it was handed in."""
        self._footing.close()

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
        self._await_metadata(names, topics.unready, what="waiting for new topics", deadline=deadline)
        self._await_leaders(names, deadline)

    def check_topic(self, new: NewTopic, *, timeout: float | None = None) -> Settings:
        """The settings that a topic would have if it were created: nothing is, but what is wrong is refused.

        They are empty when the user may not see them.
        """
        deadline = self._deadline(timeout)

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
        """Gives a topic more partitions, `total` in all; returns when they can be written to through any broker.

        Records stay where they are: from now on a key may go to another partition than before.
        """
        deadline = self._deadline(timeout)
        doubt = _Doubt(ErrorCode.invalid_partitions)
        self.cluster.call(
            Controller(),
            lambda version_of: topics.build_add_partitions(
                version_of, topic, total, seconds=self._broker_seconds(deadline), apply=apply
            ),
            check=lambda response: topics.check_add_partitions(response, accept=doubt.accept),
            what=f"adding partitions to topic {topic}",
            deadline=deadline,
            retrying=doubt.note,
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
        self._await_metadata(wanted, topics.still_there, what="waiting for deleted topics", deadline=deadline)
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
        partitions: str | Iterable[str | TopicPartition],
        at: At = OffsetSpec.LATEST,
        *,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAt]:
        """Where `at` is in each partition; the name of a topic stands for all its partitions.

        Leaders are asked at the same time; partitions whose leader moved are asked again, the others not.
        """
        deadline = self._deadline(timeout)
        offsets.wire_timestamp(at)  # refuses a bad time before anything is sent
        wanted = self._partitions(partitions, deadline)
        return find_offsets(self.cluster, wanted, at=at, isolation=isolation, deadline=deadline)

    def log_ranges(
        self, partitions: str | Iterable[str | TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetRange]:
        """Where each log begins and ends. Its length estimates the records: compaction and transactions leave holes."""
        deadline = self._deadline(timeout)
        wanted = self._partitions(partitions, deadline)
        first = self.list_offsets(wanted, OffsetSpec.EARLIEST, timeout=deadline.remaining())
        last = self.list_offsets(wanted, OffsetSpec.LATEST, timeout=deadline.remaining())
        return {
            part: OffsetRange(*part, first[part].offset, max(first[part].offset, last[part].offset)) for part in wanted
        }

    def visible_log_ranges(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetRange]:
        """`log_ranges`, but for partitions of which nobody can tell for some seconds: they are absent."""
        deadline = self._deadline(timeout)
        wanted = list(partitions)
        self.cluster.metadata({part.topic for part in wanted}, deadline=deadline, refresh=Refresh.IF_STALE)
        return find_ranges(self.cluster, wanted, deadline=deadline)

    def settings(self, names: Collection[str] | str, *, timeout: float | None = None) -> dict[str, Settings]:
        """All settings of topics, by topic and name; BrokerError when a topic does not exist."""
        wanted = [names] if isinstance(names, str) else list(names)
        return self.cluster.call(
            AnyBroker(),
            lambda version_of: settings.build_describe(version_of, wanted),
            check=settings.read_describe,
            what=f"describing the settings of {_named('topic', wanted)}",
            deadline=self._deadline(timeout),
        )

    def alter_settings(
        self, topic: str, changes: Changes, *, apply: Apply = Apply.NOW, timeout: float | None = None
    ) -> None:
        """Changes some settings of a topic, None for "as the brokers say", and leaves the others as they are.

        Returns when every broker has heard of it.
        """
        deadline = self._deadline(timeout)
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
        """Bytes of each copy of each partition of the named topics (None: all), and which brokers did not tell."""
        deadline = self._deadline(timeout)
        return find_sizes(self.cluster, self.describe_topics(names, timeout=deadline.remaining()), deadline=deadline)

    def _partitions(self, given: str | Iterable[str | TopicPartition], deadline: Deadline) -> list[TopicPartition]:
        """The partitions that are meant, each once; a name stands for all partitions of that topic."""
        wanted = [given] if isinstance(given, str) else list(given)
        names = [one for one in wanted if isinstance(one, str)]
        topics = self.cluster.topics(names, deadline=deadline) if names else {}
        found: dict[TopicPartition, None] = {}
        for one in wanted:
            if isinstance(one, str):
                found.update((TopicPartition(one, partition.index), None) for partition in topics[one].partitions)
            elif isinstance(one, TopicPartition):
                found[one] = None
            else:
                raise InputError(f"{one!r} is neither a TopicPartition nor the name of a topic")
        return list(found)

    def _await_metadata(self, names: Collection[str], judge: topics.Judge, *, what: str, deadline: Deadline) -> None:
        """Waits until the metadata of every broker passes `judge`."""
        await_everywhere(
            self.cluster,
            lambda version_of: metadata_request(version_of, MetadataQuery(frozenset(names))),
            judge=lambda response: judge(from_response(response), names),
            what=what,
            deadline=deadline,
        )

    def _await_leaders(self, names: Collection[str], deadline: Deadline) -> None:
        """A leader may know that it leads a moment before it does; one that answers this is ready for records."""
        find_offsets(
            self.cluster,
            self._partitions(names, deadline),
            at=OffsetSpec.LATEST,
            isolation=Isolation.READ_UNCOMMITTED,
            deadline=deadline,
        )

    def _deadline(self, timeout: float | None) -> Deadline:
        return Deadline.after(self.cluster.timeouts.total if timeout is None else timeout)

    def _broker_seconds(self, deadline: Deadline) -> float:
        """What the broker may take, a little less than we wait for it."""
        return max(0.1, 0.8 * min(deadline.remaining(), self.cluster.timeouts.request))


def _named(kind: str, names: Collection[str]) -> str:
    return f"{kind}{'s' if len(names) > 1 else ''} {', '.join(names)}"
