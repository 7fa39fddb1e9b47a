"""A snapshot as metrics in Prometheus' text format. Pure.

Family A has the names and labels of kafka-lag-exporter and klag-exporter, family B those of kafka_exporter, so that
existing boards work. A fleet, mirror or query that has the name of a group is in neither. `ottla_...` says what neither
has. A value that is unknown is left out, never 0. Each text is made from one snapshot, so a series is gone as soon as
its group, topic or partition is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from ottla.model import TopicPartition
from ottla.operations.lag.values import OF_OTTLA, GroupLag, LagRow, Method, Snapshot, State, Status, most

FAMILIES = ("a", "b", "both")
_METHODS = {method: number for number, method in enumerate(Method)}
_STATES = {state: number for number, state in enumerate(State)}
_STATUSES = {Status.OK: 1, Status.WARN: 2, Status.ERR: 3, Status.UNKNOWN: 0}
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

Labels = str
Samples = Iterable[tuple[Labels, float | None]]


class Metric(NamedTuple):
    """One metric: its name, what it says, and its samples."""

    name: str
    text: str
    samples: Callable[[Snapshot], Samples]


def render(snapshot: Snapshot, *, cluster: str, family: str = "a") -> Iterator[str]:
    """Yield the text in pieces of one metric each, except the age. `cluster` is the label."""
    labels = _Labels(cluster)
    yield from _texts(_without_namesakes(snapshot), _chosen(family, labels))
    yield from _texts(snapshot, _ours(labels))


def render_age(snapshot: Snapshot, *, cluster: str, now: float) -> str:
    """Return the metric that changes without a poll. `now` is seconds since 1970."""
    return "".join(_texts(snapshot, [_age(_Labels(cluster), now)]))


def names(family: str = "both") -> list[str]:
    """Return the names of all metrics of a family, and those that are always there."""
    labels = _Labels("")
    return [metric.name for metric in (*_chosen(family, labels), *_ours(labels), _age(labels, 0.0))]


def _without_namesakes(snapshot: Snapshot) -> Snapshot:
    """Leave out readers with the name of a group of Kafka: the families have no label that tells them apart."""
    groups: dict[str, GroupLag] = {}
    for group in sorted(snapshot.groups, key=lambda group: group.type in OF_OTTLA):
        groups.setdefault(group.name, group)
    if len(groups) == len(snapshot.groups):
        return snapshot
    return replace(snapshot, groups=tuple(group for group in snapshot.groups if groups[group.name] is group))


def _texts(snapshot: Snapshot, chosen: Iterable[Metric]) -> Iterator[str]:
    for metric in chosen:
        lines = [
            f"{metric.name}{{{names}}} {_number(value)}\n" if names else f"{metric.name} {_number(value)}\n"
            for names, value in metric.samples(snapshot)
            if value is not None
        ]
        yield f"# HELP {metric.name} {metric.text}\n# TYPE {metric.name} gauge\n{''.join(lines)}"


def escaped(text: str) -> str:
    """Return a label's value as it stands between quotes."""
    return text.translate(_ESCAPES)


class _Labels:
    """The label sets of the families."""

    def __init__(self, cluster: str) -> None:
        self.cluster = f'cluster_name="{escaped(cluster)}"'

    def row(self, row: LagRow) -> str:
        """Return those of family A: of a group in a partition, with its member."""
        owner = row.owner
        host, client, member = ("", "", "") if owner is None else (owner.host, owner.client_id, owner.member_id)
        return (
            f'{self.cluster},group="{escaped(row.group)}",topic="{escaped(row.topic)}",partition="{row.partition}"'
            f',member_host="{escaped(host)}",client_id="{escaped(client)}",consumer_id="{escaped(member)}"'
        )

    def plain_row(self, row: LagRow) -> str:
        """Return those of a group in a partition, without its member."""
        return (
            f'{self.cluster},group="{escaped(row.group)}",type="{row.type}",topic="{escaped(row.topic)}"'
            f',partition="{row.partition}"'
        )

    def group(self, group: GroupLag) -> str:
        """Return those of a group."""
        return f'{self.cluster},group="{escaped(group.name)}"'

    def typed_group(self, group: GroupLag) -> str:
        """Return those of a group with its type."""
        return f'{self.group(group)},type="{group.type}"'

    def topic(self, group: GroupLag, topic: str) -> str:
        """Return those of a group in a topic."""
        return f'{self.group(group)},topic="{escaped(topic)}"'

    def partition(self, partition: TopicPartition) -> str:
        """Return those of a partition."""
        return f'{self.cluster},topic="{escaped(partition.topic)}",partition="{partition.partition}"'


def _chosen(family: str, labels: _Labels) -> list[Metric]:
    return [
        *(_family_a(labels) if family in ("a", "both") else ()),
        *(_family_b(labels) if family in ("b", "both") else ()),
    ]


def _family_a(labels: _Labels) -> list[Metric]:
    def rows(value: Callable[[LagRow], float | None]) -> Callable[[Snapshot], Samples]:
        return lambda snapshot: ((labels.row(row), value(row)) for row in snapshot.rows())

    def groups(value: Callable[[GroupLag], float | None]) -> Callable[[Snapshot], Samples]:
        return lambda snapshot: ((labels.group(group), value(group)) for group in snapshot.groups)

    group = "kafka_consumergroup_group"
    return [
        Metric(f"{group}_offset", "The committed offset of a group in a partition.", rows(lambda row: row.committed)),
        Metric(
            f"{group}_lag", "Records between the committed offset and the log's end.", rows(lambda r: r.lag_records)
        ),
        Metric(
            f"{group}_lag_seconds",
            "How much older the first unread record is than the newest one.",
            rows(lambda row: row.lag_seconds),
        ),
        Metric(f"{group}_max_lag", "The highest lag of a group in any partition.", groups(_max_lag)),
        Metric(
            f"{group}_max_lag_seconds",
            "The highest lag in seconds of a group in any partition.",
            groups(lambda group: most(row.lag_seconds for row in group.rows)),
        ),
        Metric(f"{group}_sum_lag", "The lag of a group in all partitions.", groups(_sum_lag)),
        Metric(
            f"{group}_topic_sum_lag",
            "The lag of a group in all partitions of a topic.",
            lambda snapshot: (
                (labels.topic(each, topic), lag) for each in snapshot.groups for topic, lag in _by_topic(each).items()
            ),
        ),
        Metric(
            "kafka_partition_latest_offset",
            "The end of a partition's log.",
            lambda snapshot: ((labels.partition(tp), log.end) for tp, log in snapshot.logs.items()),
        ),
        Metric(
            "kafka_partition_earliest_offset",
            "The first offset of a partition's log.",
            lambda snapshot: ((labels.partition(tp), log.start) for tp, log in snapshot.logs.items()),
        ),
        Metric(
            "kafka_consumergroup_poll_time_ms",
            "How long the last poll took.",
            lambda snapshot: [(labels.cluster, snapshot.seconds * 1000)],
        ),
    ]


def _family_b(labels: _Labels) -> list[Metric]:
    def partition(tp: TopicPartition) -> str:
        return f'topic="{escaped(tp.topic)}",partition="{tp.partition}"'

    def rows(value: Callable[[LagRow], float | None]) -> Callable[[Snapshot], Samples]:
        return lambda snapshot: (
            (f'consumergroup="{escaped(row.group)}",{partition(TopicPartition(row.topic, row.partition))}', value(row))
            for row in snapshot.rows()
        )

    return [
        Metric("kafka_brokers", "Brokers of the cluster.", lambda snapshot: [("", snapshot.brokers)]),
        Metric(
            "kafka_topic_partitions",
            "Partitions of a topic.",
            lambda snapshot: ((f'topic="{escaped(topic)}"', count) for topic, count in _partitions(snapshot).items()),
        ),
        Metric(
            "kafka_topic_partition_current_offset",
            "The end of a partition's log.",
            lambda snapshot: ((partition(tp), log.end) for tp, log in snapshot.logs.items()),
        ),
        Metric(
            "kafka_topic_partition_oldest_offset",
            "The first offset of a partition's log.",
            lambda snapshot: ((partition(tp), log.start) for tp, log in snapshot.logs.items()),
        ),
        Metric(
            "kafka_consumergroup_current_offset",
            "The committed offset of a group in a partition.",
            rows(lambda row: row.committed),
        ),
        Metric("kafka_consumergroup_lag", "Records not read yet.", rows(lambda row: row.lag_records)),
        Metric(
            "kafka_consumergroup_lag_sum",
            "Records not read yet, in all partitions of a topic.",
            lambda snapshot: (
                (f'consumergroup="{escaped(group.name)}",topic="{escaped(topic)}"', lag)
                for group in snapshot.groups
                for topic, lag in _by_topic(group).items()
            ),
        ),
        Metric(
            "kafka_consumergroup_members",
            "Members of a group.",
            lambda snapshot: ((f'consumergroup="{escaped(group.name)}"', group.members) for group in snapshot.groups),
        ),
    ]


def _age(labels: _Labels, now: float) -> Metric:
    return Metric(
        "ottla_lag_poll_age_seconds",
        "How old these figures are.",
        lambda snapshot: [(labels.cluster, max(0.0, now - snapshot.at))],
    )


def _ours(labels: _Labels) -> list[Metric]:
    def rows(value: Callable[[LagRow], float | None]) -> Callable[[Snapshot], Samples]:
        return lambda snapshot: ((labels.plain_row(row), value(row)) for row in snapshot.rows())

    def groups(value: Callable[[GroupLag], float | None]) -> Callable[[Snapshot], Samples]:
        return lambda snapshot: ((labels.typed_group(group), value(group)) for group in snapshot.groups)

    def whole(value: Callable[[Snapshot], float]) -> Callable[[Snapshot], Samples]:
        return lambda snapshot: [(labels.cluster, value(snapshot))]

    group = "ottla_consumergroup"
    methods = ", ".join(f"{number} {method}" for method, number in _METHODS.items())
    states = ", ".join(f"{number} {state}" for state, number in _STATES.items())
    statuses = ", ".join(f"{number} {status}" for status, number in _STATUSES.items())
    return [
        Metric(f"{group}_status", f"The state of a group: {statuses}.", groups(lambda each: _STATUSES[each.status])),
        Metric(f"{group}_state", f"The state in a partition: {states}.", rows(lambda row: _STATES[row.state])),
        Metric(f"{group}_lag_method", f"How the seconds are known: {methods}.", rows(lambda r: _METHODS[r.method])),
        Metric(
            f"{group}_unread_seconds",
            "How long ago the first unread record was written.",
            rows(lambda row: row.unread_seconds),
        ),
        Metric(f"{group}_lag_trend", "By how many records a second the lag grows.", rows(lambda row: row.trend)),
        Metric(f"{group}_catch_up_seconds", "When the lag will be 0.", rows(lambda row: row.catch_up_seconds)),
        Metric(
            f"{group}_retention_seconds",
            "When the first unread record will be deleted, at the earliest.",
            rows(lambda row: row.retention_seconds),
        ),
        Metric(
            f"{group}_lost_records",
            "Records that were deleted before the group read them.",
            rows(lambda row: row.lost_records),
        ),
        Metric("ottla_lag_poll_seconds", "How long the poll took.", whole(lambda each: each.seconds)),
        Metric("ottla_lag_poll_requests", "Requests of the poll.", whole(lambda each: each.traffic.requests)),
        Metric("ottla_lag_poll_bytes", "Bytes of its responses.", whole(lambda each: each.traffic.size_bytes)),
        Metric("ottla_lag_brokers_away", "Brokers that did not answer.", whole(lambda each: len(each.away))),
    ]


def _max_lag(group: GroupLag) -> float | None:
    worst = group.worst
    return None if worst is None else worst.lag_records


def _sum_lag(group: GroupLag) -> float | None:
    return None if group.worst is None else group.lag_records


def _by_topic(group: GroupLag) -> dict[str, int]:
    sums: dict[str, int] = {}
    for row in group.rows:
        if row.lag_records is not None:
            sums[row.topic] = sums.get(row.topic, 0) + row.lag_records
    return sums


def _partitions(snapshot: Snapshot) -> dict[str, int]:
    counts: dict[str, int] = {}
    for tp in snapshot.logs:
        counts[tp.topic] = counts.get(tp.topic, 0) + 1
    return counts


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(round(value, 6))
