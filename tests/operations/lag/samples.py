"""Polls made by hand, for tests of what is pure."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.admin.many_groups import Owner
from ottla.model import TopicPartition
from ottla.operations.lag.values import GroupSample, GroupType, Log, Retention, Sample, Times

TP = TopicPartition("clicks", 0)
OWNER = Owner("member-1", "app", "10.0.0.1")


def sample(
    at: float,
    committed: int | None,
    end: int | None,
    *,
    start: int | None = 0,
    name: str = "billing",
    is_owned: bool = False,
    times: Times | None = None,
    retention: Retention | None = None,
    size_bytes: int | None = None,
    more: tuple[GroupSample, ...] = (),
    high: int | None = None,
) -> Sample:
    """One group, one partition."""
    commits: Mapping[TopicPartition, int] = {} if committed is None else {TP: committed}
    owners = {TP: OWNER} if is_owned or committed is None else {}
    group = GroupSample(name, GroupType.CLASSIC, "Stable" if is_owned else "Empty", commits, owners=owners)
    return Sample(
        at=at,
        cluster="c",
        groups=(group, *more),
        logs={TP: Log(start, end, None, high)},
        times={} if times is None or committed is None else {(TP, committed): times},
        retention={} if retention is None else {TP.topic: retention},
        sizes={} if size_bytes is None else {TP: size_bytes},
        brokers=1,
    )
