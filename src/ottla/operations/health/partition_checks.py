"""Checks of partitions: offline, under min-ISR, at min-ISR, under-replicated, leaders that are not the preferred ones.

A `Snapshot` comes in, findings go out. A partition counts for the worst of these only: one cause is one line. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ottla.model import TopicPartition
from ottla.net.metadata import Partition, Topic
from ottla.operations.health.findings import Finding, Severity, counted, named, typed
from ottla.operations.health.snapshot import PROBE_TOPIC, Limits, Snapshot

_Row = tuple[Topic, Partition]


def offline(seen: Snapshot, limits: Limits) -> Iterator[Finding]:
    """Partitions without a leader: they can be neither read nor written."""
    rows = [row for row in seen.partitions() if is_offline(seen, row[1])]
    if rows:
        yield _finding(
            "offline-partitions",
            Severity.CRITICAL,
            rows,
            lambda count: f"{count} {_have(rows)} no leader and can be neither read nor written",
            missing=sorted({node for _, part in rows for node in part.replicas if node not in seen.brokers}),
        )


def under_min_isr(seen: Snapshot, limits: Limits) -> Iterator[Finding]:
    """Partitions that refuse writes with acks=all."""
    rows = [row for row in seen.partitions() if is_under_min_isr(seen, *row)]
    if rows:
        yield _finding(
            "under-min-isr",
            Severity.CRITICAL,
            rows,
            lambda count: f"{count} {_have(rows)} too few replicas in sync: writes with acks=all are refused",
            missing=_missing(rows),
        )


def at_min_isr(seen: Snapshot, limits: Limits) -> Iterator[Finding]:
    """Partitions that refuse writes with acks=all after one more loss."""
    rows = [row for row in seen.partitions() if is_at_min_isr(seen, *row)]
    if rows:
        yield _finding(
            "at-min-isr",
            Severity.WARNING,
            rows,
            lambda count: f"{count} {_have(rows)} as few replicas in sync as writes need: one more loss stops them",
            missing=_missing(rows),
        )


def under_replicated(seen: Snapshot, limits: Limits) -> Iterator[Finding]:
    """Partitions with replicas out of sync, except those that only wait for replicas that a reassignment adds."""
    adding = {each.partition: {*each.adding} for each in seen.reassignments or ()}
    rows = [
        (topic, part)
        for topic, part in seen.partitions()
        if is_under_replicated(seen, part)
        and not is_under_min_isr(seen, topic, part)
        and not is_at_min_isr(seen, topic, part)
        and not {*part.replicas} - {*part.isr} <= adding.get(TopicPartition(topic.name, part.index), set())
    ]
    if rows:
        yield _finding(
            "under-replicated",
            Severity.WARNING,
            rows,
            lambda count: f"{count} {_have(rows)} replicas that are not in sync",
            missing=_missing(rows),
        )


def leaders(seen: Snapshot, limits: Limits) -> Iterator[Finding]:
    """Partitions led by another replica than the preferred one, which is back and in sync."""
    rows = [
        (topic, part)
        for topic, part in seen.partitions()
        if part.leader >= 0 and part.replicas and part.leader != part.replicas[0] and part.replicas[0] in part.isr
    ]
    if rows:
        waiting = sorted({part.replicas[0] for _, part in rows})
        brokers = named([str(number) for number in waiting])
        owner = f"broker{'s' if len(waiting) > 1 else ''} {brokers} could lead {'them' if len(rows) > 1 else 'it'}"
        yield Finding(
            "leaders-not-preferred",
            Severity.NOTE,
            f"{_named(rows)} {_is(rows)} not led by the preferred replica: {owner}",
            _names(rows),
            typed("leaders", "elect"),
        )


def replicas(seen: Snapshot, limits: Limits) -> Iterator[Finding]:
    """Topics with a single replica, and topics that ask for more replicas in sync than they have."""
    single: list[str] = []
    beyond: list[str] = []
    tight: list[str] = []
    for topic in (each for each in seen.topics.values() if each.partitions and each.name != PROBE_TOPIC):
        count = min(len(part.replicas) for part in topic.partitions)
        least = seen.min_insync(topic)
        if count == 1:
            single.append(topic.name)
        elif least > count:
            beyond.append(topic.name)
        elif least == count:
            tight.append(topic.name)
    if single and len(seen.brokers) > 1:
        yield _about_topics(
            "single-replica",
            Severity.NOTE,
            single,
            "a single replica: they are lost or away with one broker",
            typed("topics", "list", "--long"),
        )
    if beyond:
        yield _about_topics(
            "min-isr-above-replicas",
            Severity.WARNING,
            beyond,
            "min.insync.replicas above their replicas: older brokers refuse writes with acks=all",
            typed("topics", "describe", name=beyond[0]),
        )
    if tight:
        yield _about_topics(
            "min-isr-equals-replicas",
            Severity.NOTE,
            tight,
            "min.insync.replicas equal to their replicas: a restart of any of these brokers stops writes with acks=all",
            typed("topics", "describe", name=tight[0]),
        )


def is_offline(seen: Snapshot, part: Partition) -> bool:
    """Whether the partition has no leader that is up."""
    return part.leader not in seen.brokers


def effective_min_isr(seen: Snapshot, topic: Topic, part: Partition) -> int:
    """Return how many replicas in sync a write with acks=all needs: never more than there are."""
    return min(seen.min_insync(topic), len(part.replicas))


def is_under_min_isr(seen: Snapshot, topic: Topic, part: Partition) -> bool:
    """Whether the partition has a leader, and refuses writes with acks=all."""
    return not is_offline(seen, part) and len(part.isr) < effective_min_isr(seen, topic, part)


def is_at_min_isr(seen: Snapshot, topic: Topic, part: Partition) -> bool:
    """Whether replicas are missing, and the partition refuses writes with acks=all after one more loss."""
    return is_under_replicated(seen, part) and 1 < effective_min_isr(seen, topic, part) == len(part.isr)


def is_under_replicated(seen: Snapshot, part: Partition) -> bool:
    """Whether the partition has a leader, and replicas that are not in sync."""
    return not is_offline(seen, part) and len(part.isr) < len(part.replicas)


def _finding(
    check: str, severity: Severity, rows: Sequence[_Row], say: Callable[[str], str], *, missing: Sequence[int]
) -> Finding:
    brokers = ", ".join(map(str, missing))
    because = f" (broker{'s' if len(missing) > 1 else ''} {brokers})" if missing else ""
    command = typed("topics", "describe", name=rows[0][0].name)
    return Finding(check, severity, say(_named(rows)) + because, _names(rows), command)


def _about_topics(check: str, severity: Severity, names: Sequence[str], what: str, command: str) -> Finding:
    has = "has" if len(names) == 1 else "have"
    return Finding(check, severity, f"{counted(len(names), 'topic')} ({named(names)}) {has} {what}", (*names,), command)


def _missing(rows: Sequence[_Row]) -> list[int]:
    return sorted({node for _, part in rows for node in part.replicas if node not in part.isr})


def _names(rows: Sequence[_Row]) -> tuple[str, ...]:
    return tuple(f"{topic.name}-{part.index}" for topic, part in rows)


def _named(rows: Sequence[_Row]) -> str:
    return f"{counted(len(rows), 'partition')} ({named(_names(rows))})"


def _have(rows: Sequence[_Row]) -> str:
    return "has" if len(rows) == 1 else "have"


def _is(rows: Sequence[_Row]) -> str:
    return "is" if len(rows) == 1 else "are"
