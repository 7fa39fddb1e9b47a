"""Finds offsets in many partitions at once: each leader is asked once, all at the same time.

Partitions and a place come in, an offset for each goes out; partitions whose leader moved are asked again, the
others not. What the requests contain is decided in `offsets`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from ottla.admin import offsets
from ottla.admin.offsets import At, OffsetAt, OffsetSpec
from ottla.errors import BrokerError, NetworkError, OttlaError
from ottla.model import Isolation, OffsetRange, TopicPartition
from ottla.net.cluster import Cluster, Refresh
from ottla.net.deadline import Deadline
from ottla.net.metadata import Broker
from ottla.net.pending import Pending
from ottla.net.targets import LeaderOf

Found = dict[TopicPartition, OffsetAt]
Errors = dict[TopicPartition, OttlaError]
Epochs = dict[TopicPartition, int]
Ranges = dict[TopicPartition, OffsetRange]

_PATIENCE = 4.0
"""Seconds: longer than an election takes."""
_log = logging.getLogger(__name__)


def find_offsets(
    cluster: Cluster,
    wanted: Collection[TopicPartition],
    *,
    at: At,
    isolation: Isolation,
    deadline: Deadline,
) -> Found:
    """Where `at` is in each of the partitions, or an error within the deadline."""
    found: Found = {}
    _search(cluster, wanted, found, at=at, isolation=isolation, deadline=deadline)
    return {partition: found[partition] for partition in dict.fromkeys(wanted)}


def find_ranges(
    cluster: Cluster,
    wanted: Collection[TopicPartition],
    *,
    deadline: Deadline,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> Ranges:
    """Where logs begin and end, as far as that is told soon: a partition without it is absent.

    Without a leader nobody can tell, nor when fewer replicas are in sync than min.insync.replicas asks for after a
    change of leaders: its end is then unknown for as long as the others are away.
    """
    led = [key for key in wanted if _is_led(cluster, key)]
    each = min(_PATIENCE, deadline.remaining() / 2) / 2
    first, last = Found(), Found()
    for at, found in ((OffsetSpec.EARLIEST, first), (OffsetSpec.LATEST, last)):
        limit = deadline.sooner(each)  # one that takes long must leave time for the other
        try:
            _search(cluster, led, found, at=at, isolation=isolation, deadline=limit)
        except OttlaError as exc:
            _log.debug("not every end is known: %s", exc)
    told = [key for key in led if key in first and key in last]
    return {key: OffsetRange(*key, first[key].offset, max(first[key].offset, last[key].offset)) for key in told}


def _is_led(cluster: Cluster, key: TopicPartition) -> bool:
    topic = cluster.known.topics.get(key.topic)
    partition = None if topic is None else topic.partition(key.partition)
    return partition is not None and partition.leader in cluster.known.brokers


def _search(
    cluster: Cluster,
    wanted: Collection[TopicPartition],
    found: Found,
    *,
    at: At,
    isolation: Isolation,
    deadline: Deadline,
) -> None:
    """Adds to `found` until all are there; what was found before an error stays in it."""
    effort = cluster.attempts(f"listing offsets of {_some(wanted)}", deadline)
    missing = list(dict.fromkeys(wanted))
    while missing:
        there, errors = _ask_leaders(cluster, _by_leader(cluster, missing, deadline), at, isolation, deadline)
        found.update(there)
        missing = [partition for partition in missing if partition not in found]
        if errors:
            _doubt_leaders(cluster, errors)
            effort.failed(_gravest(errors))


def _by_leader(cluster: Cluster, wanted: Collection[TopicPartition], deadline: Deadline) -> dict[Broker, Epochs]:
    # One question for all topics; what follows is answered from memory, except where there is no leader yet.
    told = cluster.metadata({key.topic for key in wanted}, deadline=deadline, refresh=Refresh.IF_STALE)
    groups: dict[Broker, Epochs] = {}
    for key in wanted:
        topic = told.topics.get(key.topic)
        partition = None if topic is None else topic.partition(key.partition)
        broker = None if partition is None else told.brokers.get(partition.leader)
        if broker is None:
            broker = cluster.leader(key.topic, key.partition, deadline=deadline)
            partition = cluster.topic(key.topic, deadline=deadline).partition(key.partition)
        groups.setdefault(broker, {})[key] = -1 if partition is None else partition.leader_epoch
    return groups


def _ask_leaders(
    cluster: Cluster, groups: Mapping[Broker, Epochs], at: At, isolation: Isolation, deadline: Deadline
) -> tuple[Found, Errors]:
    """What was found, and why the rest was not."""
    limit = deadline.sooner(cluster.timeouts.request)
    found: Found = {}
    errors: Errors = {}
    asked: list[tuple[Pending, Epochs]] = []
    for broker, epochs in groups.items():
        try:
            connection = cluster.connection(broker, deadline=deadline)
            message = offsets.build_list(
                connection.version, epochs, at=at, isolation=isolation, seconds=limit.remaining()
            )
            asked.append((connection.submit_message(message, deadline=limit), epochs))
        except NetworkError as exc:
            errors.update(dict.fromkeys(epochs, exc))
    for pending, epochs in asked:
        try:
            there, refused = offsets.read_list(pending.response(), epochs)
        except NetworkError as exc:
            errors.update(dict.fromkeys(epochs, exc))
        else:
            found.update(there)
            errors.update(refused)
    return found, errors


def _doubt_leaders(cluster: Cluster, errors: Errors) -> None:
    for partition, error in errors.items():
        if isinstance(error, NetworkError) or (isinstance(error, BrokerError) and error.row.refresh):
            cluster.doubt(LeaderOf(partition.topic, partition.partition))


def _gravest(errors: Errors) -> OttlaError:
    """One that no retry will cure, if there is one."""
    return min(errors.values(), key=lambda error: isinstance(error, BrokerError) and error.retriable)


def _some(wanted: Collection[TopicPartition]) -> str:
    names = [str(partition) for partition in list(wanted)[:3]]
    more = len(wanted) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
