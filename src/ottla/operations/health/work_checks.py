"""Checks of what goes on in a cluster: moves of replicas, throttles that were left, open transactions, rebalances.

A `Snapshot` comes in, findings go out. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ottla.admin.movement import RATES, THROTTLED
from ottla.operations.health.findings import Finding, Severity, counted, named, typed
from ottla.operations.health.snapshot import Limits, Snapshot
from ottla.quantities import show_duration

REBALANCING = frozenset({"PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"})
"""States of a group whose members wait for partitions, in both protocols."""


def reassignments(seen: Snapshot, limits: Limits) -> Iterator[Finding]:
    """Partitions whose replicas move."""
    if seen.reassignments:
        names = tuple(str(each.partition) for each in seen.reassignments)
        yield Finding(
            "reassignment",
            Severity.NOTE,
            f"replicas of {counted(len(names), 'partition')} move ({named(names)})",
            names,
            typed("reassign", "status"),
        )


def throttles(seen: Snapshot, limits: Limits) -> Iterator[Finding]:
    """Replication throttles that no running reassignment needs: they slow down replicas that have to catch up."""
    if seen.reassignments is None or seen.reassignments:
        return
    brokers = [f"broker {number}" for number, own in sorted(seen.own_settings.items()) if _is_limited(own)]
    topics = [name for name, own in sorted(seen.settings.items()) if any(own.get(key) for key in THROTTLED)]
    if not brokers and not topics:
        return
    where = " and ".join(
        text
        for text in (
            f"{counted(len(brokers), 'rate')} ({named(brokers)})" if brokers else "",
            f"lists of {counted(len(topics), 'topic')} ({named(topics)})" if topics else "",
        )
        if text
    )
    yield Finding(
        "throttle-left",
        Severity.WARNING if brokers and topics else Severity.NOTE,
        f"replication is throttled although no replicas move: {where}",
        (*brokers, *topics),
        typed("throttles", "show"),
    )


def _is_limited(own: Mapping[str, str]) -> bool:
    # Kafka reports the greatest possible number where no rate is set.
    return any(name in own and int(own[name]) < 1 << 62 for name in RATES if own.get(name, "").isdigit())


def transactions(seen: Snapshot, limits: Limits) -> Iterator[Finding]:
    """Transactions that are open for long: readers of committed data wait at their first record."""
    for each in seen.transactions:
        age = None if each.since is None else seen.taken_at - each.since.timestamp()
        if age is None or age <= limits.transaction_seconds:
            continue
        over = each.timeout is not None and age > each.timeout
        ends = "; its timeout is over" if over else ""
        if each.timeout is not None and not over:
            ends = f"; its coordinator aborts it after {show_duration(round(each.timeout))}"
        waits = f", and readers of {named([str(tp) for tp in each.partitions])} wait" if each.partitions else ""
        command = typed("groups", "list")
        if each.partitions:
            topic, partition = each.partitions[0]
            place = ("--partition", partition, "--from", -10, "--isolation", "read_uncommitted")
            is_like_option = topic.startswith("-")
            command = typed("consume", *place, name=topic) if is_like_option else typed("consume", topic, *place)
        yield Finding(
            "open-transaction",
            Severity.WARNING,
            f"the transaction of {each.transactional_id!r} (producer id {each.producer_id}) is open for"
            f" {show_duration(round(age))}{waits}{ends}",
            tuple(map(str, each.partitions)),
            command,
            each.transactional_id,
            None if each.since is None else each.since.timestamp(),
        )


def rebalances(seen: Snapshot, limits: Limits, since: Mapping[str, float]) -> Iterator[Finding]:
    """Groups that rebalance. `since` has when each was first seen doing so: it may have begun before."""
    for group in seen.groups:
        if group.state not in REBALANCING:
            continue
        began = since.get(group.name, seen.taken_at)
        lasted = seen.taken_at - began
        stuck = lasted >= limits.rebalance_seconds
        yield Finding(
            "group-rebalancing",
            Severity.WARNING if stuck else Severity.NOTE,
            f"group {group.name} is {'stuck in a rebalance' if stuck else 'rebalancing'} ({group.state})"
            + (f" for at least {show_duration(round(lasted))}" if lasted >= 1 else ""),
            (f"group {group.name}",),
            typed("groups", "describe", name=group.name),
            group.name,
            began if lasted else None,
        )
