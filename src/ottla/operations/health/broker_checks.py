"""Checks of brokers and controllers: away, silent, quorum, versions, and shares that are uneven.

A `Snapshot` comes in, findings go out. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from ottla.admin.nodes import BrokerVersions
from ottla.admin.quorum import Quorum, QuorumReplica
from ottla.operations.health.findings import Finding, Severity, counted, named, typed
from ottla.operations.health.snapshot import Limits, Snapshot
from ottla.quantities import show_duration, show_size

_OVERVIEW = typed("topics", "list", "--long")
_BROKERS = typed("brokers", "list")
_FEATURE = "metadata.version"


def reachable(seen: Snapshot, limits: Limits) -> Iterator[Finding]:
    """A cluster that cannot be reached at all."""
    if seen.error is not None:
        yield Finding("unreachable", Severity.CRITICAL, f"no broker can be reached: {seen.error}", command=_RETRY)


_RETRY = typed("health", "--exit-when-healthy")


def away(seen: Snapshot, limits: Limits) -> Iterator[Finding]:
    """Brokers that are registered, vote, or hold replicas, and are not up."""
    holders: Counter[int] = Counter(node for _, part in seen.partitions() for node in part.replicas)
    fenced = {number for number, broker in (seen.registered or {}).items() if broker.is_fenced}
    for number in sorted(({*holders} | fenced) - {*seen.brokers}):
        replicas = holders[number]
        holds = f" and holds {counted(replicas, 'replica')}" if replicas else ""
        state = "is registered but not up" if number in fenced else "is not among the brokers of the cluster"
        yield Finding(
            "broker-away",
            Severity.WARNING if replicas else Severity.NOTE,
            f"broker {number} {state}{holds}",
            (f"broker {number}",),
            _OVERVIEW,
            f"broker {number}",
            _last_fetch(seen.quorum, number),
        )


def silent(seen: Snapshot, limits: Limits) -> Iterator[Finding]:
    """Brokers that count as up and do not answer: frozen, overloaded, or cut off from here."""
    for number, reason in sorted(seen.silent.items()):
        leads = sum(part.leader == number for _, part in seen.partitions())
        yield Finding(
            "broker-silent",
            Severity.CRITICAL,
            f"broker {number} does not answer ({reason}); it leads {counted(leads, 'partition')}",
            (f"broker {number}",),
            typed("health", "probe", "--for", "10s"),
            f"broker {number}",
        )


def quorum(seen: Snapshot, limits: Limits) -> Iterator[Finding]:
    """No active controller, controllers that are away, nodes that lag behind the metadata log."""
    if seen.quorum_error is not None:
        yield Finding(
            "no-controller",
            Severity.CRITICAL,
            f"no controller answers, so leaders, topics and settings cannot change: {seen.quorum_error}",
            command=_RETRY,
        )
    if seen.quorum is None:
        return
    if seen.quorum.leader < 0:
        yield Finding("no-controller", Severity.CRITICAL, "the controllers have no leader", command=_RETRY)
    late = [replica for replica in seen.quorum.voters if _is_late(seen.quorum, replica, limits)]
    voters = len(seen.quorum.voters)
    spare = (voters - 1) // 2 - len(late)
    for replica in late:
        left = "one more loss leaves the cluster without a controller" if spare <= 0 else f"{spare} more may be lost"
        yield Finding(
            "controller-lag",
            Severity.WARNING,
            f"controller {replica.id} of {voters} {_lag(seen.quorum, replica)}; {left}",
            (f"controller {replica.id}",),
            typed("health", "--watch"),
            f"controller {replica.id}",
            replica.last_caught_up,
        )
    for replica in seen.quorum.observers:
        if replica.id in seen.brokers and _is_late(seen.quorum, replica, limits):
            yield Finding(
                "metadata-lag",
                Severity.WARNING,
                f"broker {replica.id} {_lag(seen.quorum, replica)}: it may not know new leaders and topics",
                (f"broker {replica.id}",),
                typed("health", "probe", "--for", "10s"),
                f"broker {replica.id}",
                replica.last_caught_up,
            )


def _is_late(found: Quorum, replica: QuorumReplica, limits: Limits) -> bool:
    if found.now is None or replica.id == found.leader or replica.log_end_offset >= found.high_watermark:
        fetched = found.now is None or replica.last_fetch is None or replica.id == found.leader
        return not fetched and _age(found, replica.last_fetch) > limits.quorum_seconds
    return _age(found, replica.last_caught_up) > limits.quorum_seconds


def _age(found: Quorum, time: float | None) -> float:
    return (found.now or 0.0) - (time or 0.0)


def _lag(found: Quorum, replica: QuorumReplica) -> str:
    if replica.last_caught_up is None:
        return "has not fetched from the active controller"
    age = show_duration(round(_age(found, replica.last_caught_up)))
    behind = max(0, found.high_watermark - replica.log_end_offset)
    return f"has not caught up with the metadata log for {age} ({counted(behind, 'record')} behind)"


def _last_fetch(found: Quorum | None, number: int) -> float | None:
    replicas = () if found is None else (*found.voters, *found.observers)
    return next((replica.last_fetch for replica in replicas if replica.id == number), None)


def versions(seen: Snapshot, limits: Limits) -> Iterator[Finding]:
    """Brokers that speak different versions, and features that wait to be finalized."""
    groups: dict[tuple[tuple[int, tuple[int, int]], ...], list[int]] = {}
    for number, spoken in sorted(seen.versions.items()):
        groups.setdefault(tuple(sorted(spoken.apis.items())), []).append(number)
    if len(groups) > 1:
        sides = sorted(groups.values(), key=lambda each: (-len(each), each))
        odd = [number for side in sides[1:] for number in side]
        yield Finding(
            "versions-differ",
            Severity.WARNING,
            f"brokers {named([str(number) for number in odd])} speak other versions of the protocol than"
            f" {named([str(number) for number in sides[0]])}: an upgrade is not finished",
            tuple(f"broker {number}" for number in odd),
            _BROKERS,
        )
    level, possible = _levels(seen.versions)
    if len(groups) == 1 and level is not None and possible is not None and level < possible:
        yield Finding(
            "feature-level",
            Severity.NOTE,
            f"{_FEATURE} is at level {level}, and all brokers support {possible}: the upgrade is not finalized",
            # Nothing in Ottla changes features: there is no way back from most levels.
            command=f"kafka-features.sh --bootstrap-server HOST:PORT upgrade --feature {_FEATURE}={possible}",
        )


def _levels(spoken: Mapping[int, BrokerVersions]) -> tuple[int | None, int | None]:
    """Return the finalized level of metadata.version, and the highest that all brokers support."""
    levels = [each.finalized[_FEATURE] for each in spoken.values() if _FEATURE in each.finalized]
    possible = [each.supported[_FEATURE][1] for each in spoken.values() if _FEATURE in each.supported]
    return max(levels, default=None), min(possible, default=None)


def skew(seen: Snapshot, limits: Limits) -> Iterator[Finding]:
    """Brokers with far more than their share. Few partitions, or few bytes, say nothing."""
    if len(seen.brokers) < 2:
        return
    leaders: Counter[int] = Counter(part.leader for _, part in seen.partitions())
    replicas: Counter[int] = Counter(node for _, part in seen.partitions() for node in part.replicas)
    if sum(leaders.values()) >= limits.skew_least:
        yield from _uneven(seen, "leaders", leaders, typed("leaders", "elect"), limits)
        yield from _uneven(seen, "replicas", replicas, typed("reassign", "plan", "--balance"), limits)
    stored = Counter({node: sum(each.replica_bytes for each in dirs) for node, dirs in seen.log_dirs.dirs.items()})
    if max(stored.values(), default=0) >= limits.skew_bytes:
        yield from _uneven(seen, "bytes", stored, _BROKERS, limits)


def _uneven(seen: Snapshot, what: str, shares: Mapping[int, int], command: str, limits: Limits) -> Iterator[Finding]:
    fair = sum(shares.get(number, 0) for number in seen.brokers) / len(seen.brokers)
    for number in sorted(seen.brokers):
        share = shares.get(number, 0)
        if fair and share >= limits.skew * fair:
            shown = f"{show_size(share)} of data" if what == "bytes" else f"{share:,} {what}"
            yield Finding(
                f"{what}-skew",
                Severity.NOTE,
                f"broker {number} has {shown}, {share / fair:.1f} times its fair share",
                (f"broker {number}",),
                command,
                f"broker {number}",
            )
