"""`GroupAdmin`: lists, describes and deletes groups, and reads and moves the offsets that they have committed.

Calls come in with names and an optional timeout in seconds and go to the coordinator of the group, or to every broker;
they return or raise within the timeout. What the requests contain is decided in `groups` and `committed`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ottla.admin import groups
from ottla.admin.committed import GROUP_MOVED_ON, Committed, commit, fetch_committed, raise_gravest
from ottla.admin.everywhere import ask_each
from ottla.admin.groups import GroupDescription, ListedGroup, PartitionLag
from ottla.admin.lookup import find_ranges
from ottla.errors import BrokerError, ErrorCode, NetworkError, UnsupportedFormat
from ottla.model import GroupMember, OffsetRange, TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.deadline import Deadline
from ottla.net.targets import AnyBroker, CoordinatorKind, CoordinatorOf


class GroupAdmin:
    """Looks after the groups of a cluster, which stays open; `Admin.groups` makes one."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def list_groups(self, *, timeout: float | None = None) -> list[ListedGroup]:
        """Every group of every coordinator, by name."""
        deadline = self._deadline(timeout)
        effort = self.cluster.attempts("listing groups", deadline)
        while True:
            brokers = self.cluster.metadata(deadline=deadline).brokers.values()
            found: dict[str, ListedGroup] = {}
            try:
                for broker, answer in ask_each(self.cluster, brokers, groups.build_list, deadline=deadline).items():
                    if isinstance(answer, NetworkError):
                        raise answer
                    found.update({group.name: group for group in groups.read_list(answer, broker.id)})
                return [found[name] for name in sorted(found)]
            except (BrokerError, NetworkError) as exc:
                # Half a list would be worse than none: while a broker is away its groups move to the others.
                self.cluster.doubt(AnyBroker())
                effort.failed(exc)

    def describe(self, group: str, *, timeout: float | None = None) -> GroupDescription:
        """A group with its members; BrokerError with GROUP_ID_NOT_FOUND when there is none of that name."""
        return self._describe(group, self._deadline(timeout))

    def committed(
        self, group: str, partitions: Collection[TopicPartition] | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, Committed]:
        """What the group has committed for these partitions (None: all), sorted; those without a commit are absent."""
        found = fetch_committed(self.cluster, GroupMember(group), partitions, deadline=self._deadline(timeout))
        return dict(sorted(found.items()))

    def lag(self, group: str, *, timeout: float | None = None) -> list[PartitionLag]:
        """How far the group is in every partition of the topics that it has committed offsets of, or reads now."""
        deadline = self._deadline(timeout)
        found = fetch_committed(self.cluster, GroupMember(group), None, deadline=deadline)
        assigned = {part for member in self._members(group, deadline) for part in member.assigned}
        partitions = self._partitions_of({part.topic for part in (*found, *assigned)}, deadline)
        ends = find_ranges(self.cluster, partitions, deadline=deadline)
        return [_lag(part, found.get(part), ends.get(part)) for part in sorted({*partitions, *found, *assigned})]

    def set_offsets(
        self, group: str, offsets: Mapping[TopicPartition, Committed | int], *, timeout: float | None = None
    ) -> None:
        """Commits offsets for a group without members, also for one that is new.

        With members it is refused with NON_EMPTY_GROUP, and they are named: they would not notice.
        """
        deadline = self._deadline(timeout)
        wanted = {part: at if isinstance(at, Committed) else Committed(at) for part, at in offsets.items()}
        try:
            commit(self.cluster, GroupMember(group), wanted, deadline=deadline)
        except BrokerError as exc:
            if exc.code in GROUP_MOVED_ON:
                self._refuse_in_use(group, exc, deadline)
            raise

    def delete_offsets(self, group: str, partitions: Iterable[TopicPartition], *, timeout: float | None = None) -> None:
        """Forgets what the group has committed for these partitions; refused for topics that members read."""
        wanted = list(partitions)
        self.cluster.call(
            _coordinator(group),
            lambda version_of: groups.build_delete_offsets(version_of, group, wanted),
            check=lambda response: raise_gravest(groups.delete_offsets_errors(response, group)),
            what=f"deleting offsets of group {group}",
            deadline=self._deadline(timeout),
        )

    def delete(self, group: str, *, timeout: float | None = None) -> None:
        """Deletes a group and its offsets. One with members is refused with NON_EMPTY_GROUP, and they are named."""
        deadline = self._deadline(timeout)
        lost: list[NetworkError] = []
        try:
            self.cluster.call(
                _coordinator(group),
                lambda version_of: groups.build_delete(version_of, group),
                check=groups.check_delete,
                what=f"deleting group {group}",
                deadline=deadline,
                retrying=lambda error: lost.append(error) if isinstance(error, NetworkError) else None,
            )
        except BrokerError as exc:
            if exc.code is ErrorCode.group_id_not_found and lost:
                return  # an earlier attempt did it, and its answer was lost
            if exc.code is ErrorCode.non_empty_group:
                self._refuse_in_use(group, exc, deadline)
            raise

    def _refuse_in_use(self, group: str, cause: BrokerError, deadline: Deadline) -> None:
        members = self._members(group, deadline)
        if members:
            raise groups.in_use(group, members) from cause

    def _members(self, group: str, deadline: Deadline) -> tuple[groups.DescribedMember, ...]:
        try:
            return self._describe(group, deadline).members
        except BrokerError as exc:
            if exc.code is ErrorCode.group_id_not_found:
                return ()
            raise

    def _describe(self, group: str, deadline: Deadline) -> GroupDescription:
        target, what = _coordinator(group), f"describing group {group}"
        try:
            return self.cluster.call(
                target,
                lambda version_of: groups.build_describe_consumer(version_of, group),
                check=groups.read_describe_consumer,
                what=what,
                deadline=deadline,
            )
        except UnsupportedFormat:
            pass  # before Kafka 3.7
        except BrokerError as exc:
            if exc.code not in (ErrorCode.group_id_not_found, ErrorCode.unsupported_version):
                raise
        return self.cluster.call(
            target,
            lambda version_of: groups.build_describe_classic(version_of, group),
            check=groups.read_describe_classic,
            what=what,
            deadline=deadline,
        )

    def _partitions_of(self, names: Collection[str], deadline: Deadline) -> list[TopicPartition]:
        """The partitions of those topics that still exist."""
        topics = self.cluster.metadata(names, deadline=deadline).topics if names else {}
        return [TopicPartition(name, part.index) for name in names for part in topics[name].partitions]

    def _deadline(self, timeout: float | None) -> Deadline:
        return Deadline.after(self.cluster.timeouts.total if timeout is None else timeout)


def _coordinator(group: str) -> CoordinatorOf:
    return CoordinatorOf(CoordinatorKind.GROUP, group)


def _lag(partition: TopicPartition, committed: Committed | None, log: OffsetRange | None) -> PartitionLag:
    start, stop = (None, None) if log is None else (log.start, log.stop)
    return PartitionLag(partition, committed, start, stop)
