"""How far followers are behind their leaders: ListOffsets requests to both, and the difference.

Comes in: partitions with their leaders and followers. Goes out: the records that each follower lacked. A broker that
does not respond is left out. DescribeLogDirs does not tell it: the lag in there is that of a log behind its own high
watermark, which a follower that is behind does not know either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from typing import NamedTuple

from ottla.admin.all_brokers import Build, ask_all
from ottla.admin.offsets import LIST_OFFSETS, OffsetSpec
from ottla.errors import ErrorCode, OttlaError
from ottla.model import Isolation, TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.connection import VersionOf
from ottla.net.deadline import Deadline
from ottla.net.metadata import Broker
from ottla.wire import list_offsets
from ottla.wire.messages import Encoded


class Followed(NamedTuple):
    """A partition, the broker that leads it, and those that copy it."""

    partition: TopicPartition
    leader: int
    followers: tuple[int, ...]


def find_follower_lag(
    cluster: Cluster, followed: Collection[Followed], *, deadline: Deadline
) -> dict[tuple[TopicPartition, int], int]:
    """Return the records that each follower lacks, by partition and broker. What no broker answers for is absent.

    Leaders are asked before followers, so that what was written in between counts for no lag.
    """
    led = _ends(cluster, ((each.leader, each.partition) for each in followed), deadline=deadline)
    known = [each for each in followed if (each.partition, each.leader) in led]
    copied = _ends(
        cluster, ((broker, each.partition) for each in known for broker in each.followers), deadline=deadline
    )
    return {
        (each.partition, broker): max(0, led[each.partition, each.leader] - copied[each.partition, broker])
        for each in known
        for broker in each.followers
        if (each.partition, broker) in copied
    }


def _ends(
    cluster: Cluster, places: Iterable[tuple[int, TopicPartition]], *, deadline: Deadline
) -> dict[tuple[TopicPartition, int], int]:
    """Return the ends of logs as the brokers that were asked have them."""
    asked: dict[int, dict[str, list[tuple[int, int]]]] = {}
    for broker, (topic, index) in places:
        asked.setdefault(broker, {}).setdefault(topic, []).append((index, -1))
    brokers = cluster.known.brokers
    present = sorted(asked.keys() & brokers.keys())
    limit = deadline.sooner(cluster.timeouts.request)
    requests: list[tuple[Broker, Build]] = [
        (brokers[broker], partial(_build, topics=asked[broker], seconds=limit.remaining())) for broker in present
    ]
    answers = ask_all(cluster, requests, deadline=limit, read=lambda request: request.result())
    ends: dict[tuple[TopicPartition, int], int] = {}
    for broker, answer in zip(present, answers, strict=True):
        if isinstance(answer, OttlaError):
            continue
        for row in list_offsets.list_response(answer):
            if row.error_code == ErrorCode.none:
                ends[TopicPartition(row.topic, row.partition), broker] = row.offset
    return ends


def _build(version_of: VersionOf, *, topics: dict[str, list[tuple[int, int]]], seconds: float) -> Encoded:
    version = version_of(LIST_OFFSETS)
    body = list_offsets.list_request(
        topics,
        version=version,
        timestamp=OffsetSpec.LATEST.value,
        isolation=Isolation.READ_UNCOMMITTED,
        timeout_ms=round(seconds * 1000),
        replica=list_offsets.ANY_REPLICA,
    )
    return Encoded(LIST_OFFSETS, version, body)
