"""Snapshots of clusters that exist on paper, to judge."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ottla.net.metadata import Broker, Partition, Topic
from ottla.operations.health.findings import Finding
from ottla.operations.health.judging import History, judge
from ottla.operations.health.snapshot import Limits, Snapshot

NOW = 1_800_000_000.0
GIB = 1 << 30


def part(index: int, leader: int, replicas: tuple[int, ...], isr: tuple[int, ...] | None = None) -> Partition:
    """A partition; all replicas are in sync unless said."""
    return Partition(index, leader, 0, replicas, replicas if isr is None else isr)


def brokers(*ids: int) -> dict[int, Broker]:
    """Brokers that are up."""
    return {number: Broker(number, f"b{number}", 9092) for number in ids}


def seen(*partitions: Partition, up: tuple[int, ...] = (1, 2, 3), min_isr: str = "2", **given: Any) -> Snapshot:
    """A cluster with the topic clicks."""
    topics = {"clicks": Topic("clicks", partitions=partitions)} if partitions else {}
    whole = Snapshot(
        NOW,
        cluster_id="c",
        brokers=brokers(*up),
        topics=topics,
        settings={"clicks": {"min.insync.replicas": min_isr}},
        reassignments=(),
    )
    return replace(whole, **given)


def judged(snapshot: Snapshot, **given: Any) -> list[Finding]:
    """All findings."""
    return list(judge(snapshot, **given)[0].findings)


def named(
    snapshot: Snapshot, check: str, limits: Limits | None = None, history: History | None = None
) -> list[Finding]:
    """The findings of one check."""
    return [each for each in judged(snapshot, limits=limits, history=history) if each.check == check]
