"""Judges a cluster: all checks on one snapshot, with what earlier looks saw.

A `Snapshot` and a `History` come in, a `Verdict` goes out, and the history for the next look. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ottla.errors import ConfigError
from ottla.operations.health import broker_checks, disk_checks, partition_checks, work_checks
from ottla.operations.health.findings import Finding, Verdict, worst_first
from ottla.operations.health.snapshot import Limits, Snapshot

_LEAST_SECONDS = 30.0
"""Growth between two looks that are closer says little."""
_MOST_LOOKS = 60
_Sizes = Mapping[tuple[int, str], int]

_CHECKS: tuple[Callable[[Snapshot, Limits], Iterator[Finding]], ...] = (
    broker_checks.away,
    broker_checks.silent,
    broker_checks.quorum,
    broker_checks.versions,
    broker_checks.skew,
    partition_checks.offline,
    partition_checks.under_min_isr,
    partition_checks.at_min_isr,
    partition_checks.under_replicated,
    partition_checks.leaders,
    partition_checks.replicas,
    disk_checks.offline_dirs,
    disk_checks.full,
    work_checks.reassignments,
    work_checks.throttles,
    work_checks.transactions,
)
NAMES = (
    *("at-min-isr", "broker-away", "broker-silent", "bytes-skew", "controller-lag", "disk-filling", "disk-full"),
    *("feature-level", "group-rebalancing", "leaders-not-preferred", "leaders-skew", "log-dir-offline"),
    *("metadata-lag", "min-isr-above-replicas", "min-isr-equals-replicas", "no-controller", "offline-partitions"),
    *("open-transaction", "probe", "reassignment", "replicas-skew", "single-replica", "throttle-left"),
    *("under-min-isr", "under-replicated", "unreachable", "versions-differ"),
)
"""The names of all checks."""


@dataclass(frozen=True, slots=True)
class History:
    """What earlier looks at the same cluster saw."""

    first_seen: Mapping[tuple[str, str], float | None] = field(default_factory=dict)
    """When each present finding appeared; None if it was there at the first look."""
    rebalancing: Mapping[str, float] = field(default_factory=dict)
    """Since when groups rebalance, as far as was seen."""
    disks: tuple[tuple[float, _Sizes], ...] = ()
    """Times, and the used bytes of each disk at them, oldest first."""
    looks: int = 0


def check_names(names: Collection[str]) -> frozenset[str]:
    """Return the names of checks. Raises `ConfigError` for one that does not exist."""
    for name in names:
        if name not in NAMES:
            raise ConfigError(f"there is no check {name!r}: there are {', '.join(NAMES)}")
    return frozenset(names)


def judge(
    seen: Snapshot,
    history: History | None = None,
    *,
    limits: Limits | None = None,
    ignored: Collection[str] = (),
    more: Collection[Finding] = (),
) -> tuple[Verdict, History]:
    """Return the verdict on what was `seen`, and the history for the next look.

    `limits` says from where on a number is a finding. `ignored` names checks whose findings do not count and are not
    shown; `more` has findings from elsewhere, such as those of a probe.
    """
    before, bounds = history or History(), limits or Limits()
    rebalancing = {
        group.name: before.rebalancing.get(group.name, seen.taken_at)
        for group in seen.groups
        if group.state in work_checks.REBALANCING
    }
    found = [*broker_checks.reachable(seen, bounds)]
    if not found:
        for check in _CHECKS:
            found += check(seen, bounds)
        found += disk_checks.filling(seen, bounds, measured_growth(seen, before))
        found += work_checks.rebalances(seen, bounds, rebalancing)
    found += more
    kept = [_dated(each, before, seen.taken_at) for each in worst_first(found) if each.check not in ignored]
    verdict = Verdict(tuple(kept), seen.unseen, seen.taken_at, seen.cluster_id, len(seen.brokers), seen.partition_count)
    is_first = before.looks == 0
    after = History(
        {each.key: before.first_seen.get(each.key, None if is_first else seen.taken_at) for each in found},
        rebalancing,
        _with_disks(before.disks, seen),
        before.looks + 1,
    )
    return verdict, after


def measured_growth(seen: Snapshot, history: History) -> dict[tuple[int, str], float]:
    """Return the bytes per second that disks grew by since an earlier look, where that was long enough ago."""
    now = used_bytes(seen)
    rates: dict[tuple[int, str], float] = {}
    for time, sizes in history.disks[:1]:
        seconds = seen.taken_at - time
        if seconds >= _LEAST_SECONDS:
            rates = {key: (now[key] - sizes[key]) / seconds for key in now if key in sizes}
    return rates


def used_bytes(seen: Snapshot) -> dict[tuple[int, str], int]:
    """Return how many bytes of each disk are in use, by broker and path."""
    return {
        (each.broker, each.path): each.total_bytes - each.usable_bytes
        for dirs in seen.log_dirs.dirs.values()
        for each in dirs
        if each.total_bytes is not None and each.usable_bytes is not None
    }


def _dated(finding: Finding, history: History, now: float) -> Finding:
    """Return the finding with the time at which it appeared, if that is known and the check does not know better."""
    if finding.since is not None or history.looks == 0:
        return finding
    return replace(finding, since=history.first_seen.get(finding.key, now))


def _with_disks(looks: tuple[tuple[float, _Sizes], ...], seen: Snapshot) -> tuple[tuple[float, _Sizes], ...]:
    sizes = used_bytes(seen)
    return (*looks, (seen.taken_at, sizes))[-_MOST_LOOKS:] if sizes else looks
