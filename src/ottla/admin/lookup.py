"""Finds offsets in many partitions at once, with one request per leader, all at the same time.

Comes in: partitions and a place. Goes out: an offset for each. Only partitions whose leader moved are asked again.
`offsets` builds and reads the messages.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from ottla.admin import offsets
from ottla.admin.all_brokers import Traffic, ask_all, network_only
from ottla.admin.offsets import At, OffsetAt, OffsetSpec
from ottla.errors import BrokerError, NetworkError, OttlaError
from ottla.model import Isolation, OffsetRange, TopicPartition
from ottla.net.cluster import Cluster, Refresh, VersionOf
from ottla.net.deadline import Deadline
from ottla.net.metadata import Broker
from ottla.net.pending import Pending
from ottla.net.targets import LeaderOf
from ottla.wire.messages import Encoded

Offsets = dict[TopicPartition, OffsetAt]
Errors = dict[TopicPartition, OttlaError]
Epochs = dict[TopicPartition, int]
Ranges = dict[TopicPartition, OffsetRange]

_PATIENCE = 4.0
"""Seconds to wait for a leader: longer than an election takes."""
_log = logging.getLogger(__name__)


def find_offsets(
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    *,
    at: At,
    isolation: Isolation,
    deadline: Deadline,
) -> Offsets:
    """Return the offset of `at` in each partition. Raises within the deadline if any is missing."""
    results: Offsets = {}
    _search(cluster, partitions, results, at=at, isolation=isolation, deadline=deadline)
    return {partition: results[partition] for partition in dict.fromkeys(partitions)}


def find_ranges(
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    *,
    deadline: Deadline,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> Ranges:
    """Return where logs begin and end. A partition that no broker can tell about soon is absent.

    That happens without a leader, and after a change of leader with fewer replicas in sync than min.insync.replicas:
    the end of the log is then unknown for as long as the other replicas are down.
    """
    each = min(_PATIENCE, deadline.remaining() / 2) / 2  # a slow one must leave time for the other
    first, last = (
        find_soon(cluster, partitions, at=at, isolation=isolation, deadline=deadline.sooner(each))
        for at in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
    )
    complete = [tp for tp in partitions if tp in first and tp in last]
    return {tp: OffsetRange(*tp, first[tp].offset, max(first[tp].offset, last[tp].offset)) for tp in complete}


def find_soon(
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    *,
    at: At,
    deadline: Deadline,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> Offsets:
    """Return what brokers tell before the deadline about partitions that are known to have a leader."""
    led = [tp for tp in partitions if _is_led(cluster, tp)]
    results = Offsets()
    try:
        _search(cluster, led, results, at=at, isolation=isolation, deadline=deadline)
    except OttlaError as exc:
        _log.debug("cannot list every offset: %s", exc)
    return results


def _is_led(cluster: Cluster, tp: TopicPartition) -> bool:
    """Whether the known metadata names a leader that is up."""
    topic = cluster.known.topics.get(tp.topic)
    partition = None if topic is None else topic.partition(tp.partition)
    return partition is not None and partition.leader in cluster.known.brokers


def _search(
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    results: Offsets,
    *,
    at: At,
    isolation: Isolation,
    deadline: Deadline,
) -> None:
    """Add to `results` until it has all partitions. Offsets found before an error stay in it."""
    attempts = cluster.attempts(f"listing offsets of {_summary(partitions)}", deadline)
    missing = list(dict.fromkeys(partitions))
    while missing:
        listed, errors = _ask_leaders(cluster, _by_leader(cluster, missing, deadline), at, isolation, deadline)
        results.update(listed)
        missing = [partition for partition in missing if partition not in results]
        if errors:
            _doubt_leaders(cluster, errors)
            attempts.failed(_gravest(errors))


def _by_leader(cluster: Cluster, partitions: Collection[TopicPartition], deadline: Deadline) -> dict[Broker, Epochs]:
    """Group partitions by leader, with the leader epoch of each."""
    # One request for all topics. The rest is answered from memory, except for partitions without a leader.
    metadata = cluster.metadata({tp.topic for tp in partitions}, deadline=deadline, refresh=Refresh.IF_STALE)
    groups: dict[Broker, Epochs] = {}
    for tp in partitions:
        topic = metadata.topics.get(tp.topic)
        partition = None if topic is None else topic.partition(tp.partition)
        broker = None if partition is None else metadata.brokers.get(partition.leader)
        if broker is None:
            broker = cluster.leader(tp.topic, tp.partition, deadline=deadline)
            partition = cluster.topic(tp.topic, deadline=deadline).partition(tp.partition)
        groups.setdefault(broker, {})[tp] = -1 if partition is None else partition.leader_epoch
    return groups


def ask_leaders(
    cluster: Cluster,
    requests: Sequence[tuple[Broker, Epochs, At]],
    *,
    isolation: Isolation,
    deadline: Deadline,
    traffic: Traffic | None = None,
) -> list[tuple[Offsets, Errors]]:
    """Ask each broker once, all at the same time. Returns, for each request, the offsets found and the other errors."""
    limit = deadline.sooner(cluster.timeouts.request)

    def build(version_of: VersionOf, *, epochs: Epochs, at: At) -> Encoded:
        return offsets.build_list(version_of, epochs, at=at, isolation=isolation, seconds=limit.remaining())

    builds = [(broker, partial(build, epochs=epochs, at=at)) for broker, epochs, at in requests]
    results: list[tuple[Offsets, Errors]] = []
    for (_, epochs, _), answer in zip(
        requests, ask_all(cluster, builds, deadline=limit, traffic=traffic, read=Pending.result), strict=True
    ):
        if isinstance(network_only(answer), NetworkError):
            results.append(({}, dict.fromkeys(epochs, answer)))
        else:
            listed, refused = offsets.read_list(answer, epochs)
            results.append((listed, dict(refused)))
    return results


def _ask_leaders(
    cluster: Cluster, groups: Mapping[Broker, Epochs], at: At, isolation: Isolation, deadline: Deadline
) -> tuple[Offsets, Errors]:
    """Return the offsets found, and the errors of the other partitions."""
    results: Offsets = {}
    errors: Errors = {}
    requests = [(broker, epochs, at) for broker, epochs in groups.items()]
    for listed, refused in ask_leaders(cluster, requests, isolation=isolation, deadline=deadline):
        results.update(listed)
        errors.update(refused)
    return results, errors


def _doubt_leaders(cluster: Cluster, errors: Errors) -> None:
    """Drop leaders that errors prove stale, so that the next attempt looks them up."""
    for partition, error in errors.items():
        if isinstance(error, NetworkError) or (isinstance(error, BrokerError) and error.row.refresh):
            cluster.doubt(LeaderOf(partition.topic, partition.partition))


def _gravest(errors: Errors) -> OttlaError:
    """Return an error that no retry will cure, if there is one."""
    return min(errors.values(), key=lambda error: isinstance(error, BrokerError) and error.retriable)


def _summary(partitions: Collection[TopicPartition]) -> str:
    """Name the first partitions, for messages."""
    names = [str(partition) for partition in list(partitions)[:3]]
    more = len(partitions) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
