"""`GroupAdmin`: lists, describes and deletes groups, and reads and moves their committed offsets.

Comes in: calls with names and an optional timeout in seconds. They go to the coordinator of the group or to every
broker, and return or raise within the timeout. `groups` and `committed` build and check the messages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ottla.admin import groups
from ottla.admin.all_brokers import ask_each
from ottla.admin.committed import GROUP_MOVED_ON, Committed, commit, fetch_committed, raise_gravest
from ottla.admin.groups import GroupDescription, ListedGroup, PartitionLag
from ottla.admin.lookup import find_ranges
from ottla.errors import BrokerError, ErrorCode, NetworkError, UnsupportedFormat
from ottla.model import GroupMember, OffsetRange, TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.deadline import Deadline
from ottla.net.targets import AnyBroker, CoordinatorKind, CoordinatorOf


class GroupAdmin:
    """Administers the groups of a cluster, which stays open. Use `Admin.groups`.

    Every call raises `BrokerError` if the coordinator rejects it, and `DeadlineExceeded` or `NoBrokerReachable` if it
    does not succeed within `timeout`.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def list_groups(self, *, timeout: float | None = None) -> list[ListedGroup]:
        """Return every group of every coordinator, sorted by name. Raises the errors of `Cluster.call`."""
        deadline = self.cluster.deadline(timeout)
        effort = self.cluster.attempts("listing groups", deadline)
        while True:
            brokers = self.cluster.metadata(deadline=deadline).brokers.values()
            listed: dict[str, ListedGroup] = {}
            try:
                for broker, response in ask_each(self.cluster, brokers, groups.build_list, deadline=deadline).items():
                    if isinstance(response, NetworkError):
                        raise response
                    listed.update({group.name: group for group in groups.read_list(response, broker.id)})
                return [listed[name] for name in sorted(listed)]
            except (BrokerError, NetworkError) as exc:
                # Half a list would be worse than none: while a broker is down, its groups move to the others.
                self.cluster.doubt(AnyBroker())
                effort.failed(exc)

    def describe(self, group: str, *, timeout: float | None = None) -> GroupDescription:
        """Return a group with its members. Raises `BrokerError` with GROUP_ID_NOT_FOUND if it does not exist."""
        return self._describe(group, self.cluster.deadline(timeout))

    def committed(
        self, group: str, partitions: Collection[TopicPartition] | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, Committed]:
        """Return what the group has committed for these partitions (None: all), sorted. Others are absent."""
        offsets = fetch_committed(self.cluster, GroupMember(group), partitions, deadline=self.cluster.deadline(timeout))
        return dict(sorted(offsets.items()))

    def lag(self, group: str, *, timeout: float | None = None) -> list[PartitionLag]:
        """Return the lag of the group in every partition of the topics that it has committed or reads now."""
        deadline = self.cluster.deadline(timeout)
        committed = fetch_committed(self.cluster, GroupMember(group), None, deadline=deadline)
        assigned = {tp for member in self._members(group, deadline) for tp in member.assigned}
        partitions = self._partitions_of({tp.topic for tp in (*committed, *assigned)}, deadline)
        ends = find_ranges(self.cluster, partitions, deadline=deadline)
        return [_lag(tp, committed.get(tp), ends.get(tp)) for tp in sorted({*partitions, *committed, *assigned})]

    def set_offsets(
        self, group: str, offsets: Mapping[TopicPartition, Committed | int], *, timeout: float | None = None
    ) -> None:
        """Commit offsets for a group without members. The group may be new.

        Raises `BrokerError` with NON_EMPTY_GROUP, naming the members, if it has any: they would not notice the change.
        """
        deadline = self.cluster.deadline(timeout)
        entries = {tp: offset if isinstance(offset, Committed) else Committed(offset) for tp, offset in offsets.items()}
        try:
            commit(self.cluster, GroupMember(group), entries, deadline=deadline)
        except BrokerError as exc:
            if exc.code in GROUP_MOVED_ON:
                self._refuse_in_use(group, exc, deadline)
            raise

    def delete_offsets(self, group: str, partitions: Iterable[TopicPartition], *, timeout: float | None = None) -> None:
        """Delete what the group has committed for these partitions. Brokers reject it for topics that members read."""
        selected = list(partitions)
        self.cluster.call(
            _coordinator(group),
            lambda version_of: groups.build_delete_offsets(version_of, group, selected),
            check=lambda response: raise_gravest(groups.delete_offsets_errors(response, group)),
            what=f"deleting offsets of group {group}",
            deadline=self.cluster.deadline(timeout),
        )

    def delete(self, group: str, *, timeout: float | None = None) -> None:
        """Delete a group and its offsets. Raises `BrokerError` with NON_EMPTY_GROUP, naming them, if it has members."""
        deadline = self.cluster.deadline(timeout)
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
                return  # an earlier attempt did it, and its response was lost
            if exc.code is ErrorCode.non_empty_group:
                self._refuse_in_use(group, exc, deadline)
            raise

    def _refuse_in_use(self, group: str, cause: BrokerError, deadline: Deadline) -> None:
        """Raise an error with the members, if the group has any."""
        members = self._members(group, deadline)
        if members:
            raise groups.in_use(group, members) from cause

    def _members(self, group: str, deadline: Deadline) -> tuple[groups.DescribedMember, ...]:
        """Return the members of a group; none if it does not exist."""
        try:
            return self._describe(group, deadline).members
        except BrokerError as exc:
            if exc.code is ErrorCode.group_id_not_found:
                return ()
            raise

    def _describe(self, group: str, deadline: Deadline) -> GroupDescription:
        """Describe a group, first as KIP-848 and then as classic: brokers do not say which one it is."""
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
        """Return the partitions of the topics that still exist."""
        topics = self.cluster.metadata(names, deadline=deadline).topics if names else {}
        return [TopicPartition(name, part.index) for name in names for part in topics[name].partitions]


def _coordinator(group: str) -> CoordinatorOf:
    return CoordinatorOf(CoordinatorKind.GROUP, group)


def _lag(partition: TopicPartition, committed: Committed | None, log: OffsetRange | None) -> PartitionLag:
    start, stop = (None, None) if log is None else (log.start, log.stop)
    return PartitionLag(partition, committed, start, stop)
