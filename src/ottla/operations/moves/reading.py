"""Reads the layout of a running cluster: brokers, replicas, leaders, sizes and free disk space.

Comes in: a cluster. Goes out: a `Layout`, and what disks have. It only looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ottla.admin.disks import LogDirs, find_log_dirs
from ottla.admin.movement import topic_settings
from ottla.errors import ErrorCode
from ottla.model import TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.deadline import Deadline
from ottla.net.metadata import Metadata
from ottla.operations.moves.values import Layout, Member, Placement

_MIN_IN_SYNC = "min.insync.replicas"


@dataclass(frozen=True, slots=True)
class Survey:
    """A layout, with what is needed to judge whether replicas may move."""

    layout: Layout
    sizes: Mapping[TopicPartition, Mapping[int, int]] = field(default_factory=dict)
    """The bytes of each replica, by partition and broker; what did not respond is absent."""
    usable: Mapping[int, int] = field(default_factory=dict)
    """What each broker may still write to its disks, if it says so."""
    min_in_sync: Mapping[str, int] = field(default_factory=dict)
    """min.insync.replicas of each topic; 1 where the user may not see it."""
    away: Mapping[int, str] = field(default_factory=dict)
    """Why brokers did not say what they have."""


def survey(cluster: Cluster, *, deadline: Deadline) -> Survey:
    """Ask all brokers. Raises as `Cluster.call` does."""
    metadata = cluster.metadata(None, deadline=deadline)
    dirs = find_log_dirs(cluster, metadata.brokers.values(), deadline=deadline.sooner(deadline.remaining() / 2))
    settings = topic_settings(cluster, list(metadata.topics), only=[_MIN_IN_SYNC], deadline=deadline)
    minimum = {
        topic: int(own[_MIN_IN_SYNC]) for topic, own in settings.items() if own.get(_MIN_IN_SYNC, "").isdecimal()
    }
    sizes = replica_sizes(dirs)
    return Survey(layout_of(metadata, sizes), sizes, _usable(dirs), minimum, dirs.away)


def layout_of(metadata: Metadata, sizes: Mapping[TopicPartition, Mapping[int, int]]) -> Layout:
    """Return the layout in metadata of all topics."""
    placements = tuple(
        Placement(
            tp := TopicPartition(topic.name, partition.index),
            partition.replicas,
            max(sizes.get(tp, {}).values(), default=0),
            partition.leader,
            partition.isr,
        )
        for topic in metadata.topics.values()
        if topic.error is ErrorCode.none
        for partition in topic.partitions
    )
    members = {broker.id: Member(broker.id, broker.rack) for broker in metadata.brokers.values()}
    for placement in placements:
        for broker in placement.replicas:
            members.setdefault(broker, Member(broker, is_alive=False))
    return Layout(metadata.cluster_id or "", tuple(members.values()), placements)


def replica_sizes(dirs: LogDirs) -> dict[TopicPartition, dict[int, int]]:
    """Return the bytes of each replica by partition and broker."""
    sizes: dict[TopicPartition, dict[int, int]] = {}
    for broker, own in dirs.dirs.items():
        for log_dir in own:
            for partition, size in log_dir.replicas.items():
                by_broker = sizes.setdefault(partition, {})
                by_broker[broker] = max(size, by_broker.get(broker, 0))
    return sizes


def _usable(dirs: LogDirs) -> dict[int, int]:
    usable: dict[int, int] = {}
    for broker, own in dirs.dirs.items():
        known = [log_dir.usable_bytes for log_dir in own if log_dir.error is None and log_dir.usable_bytes is not None]
        # Directories on one disk report the same space.
        if known:
            usable[broker] = sum(set(known))
    return usable
