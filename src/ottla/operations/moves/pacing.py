"""How fast a run goes: which moves begin next, the rate of the throttle, and the time that is left. Pure.

Comes in: moves and measurements. Goes out: decisions. The driver measures and carries them out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from ottla.model import TopicPartition
from ottla.operations.moves.values import Move

FLOOR = 10_000_000
"""The lowest rate that is chosen automatically, in bytes per second: less hardly ends."""
START = 25_000_000
_STEP = 10_000_000
_MOST = 10_000_000_000
_LAG_RECORDS = 50_000
_SLOW_SECONDS = 0.2
_USED = 0.6
_FREE_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may happen at the same time."""

    in_per_broker: int = 5
    out_per_broker: int = 5


@dataclass(frozen=True, slots=True)
class Signs:
    """How a cluster takes the load, over one interval."""

    under_replicated: int = 0
    """Partitions whose replicas are out of sync although they do not move."""
    lag_records: int = 0
    """The records that replicas which do not move lack of their leaders', together, on the brokers of the plan."""
    latency: float = 0.0
    """Seconds that the slowest broker took to answer a small request."""
    copied_bytes: int = 0
    seconds: float = 1.0
    senders: int = 1
    """The brokers that send: each may do so at the rate of the throttle."""


def next_moves(
    pending: Sequence[Move],
    moving: Collection[Move],
    *,
    leaders: Mapping[TopicPartition, int],
    unsafe: Collection[TopicPartition] = (),
    limits: Limits,
) -> list[Move]:
    """Return the moves to begin now: those with the fewest in-sync replicas first, then small ones.

    What copies no data is not limited.
    """
    incoming = Counter(broker for move in moving for broker in move.added)
    outgoing = Counter(leaders.get(move.partition, -1) for move in moving if move.added)
    chosen: list[Move] = []
    free = 0
    for move in sorted(pending, key=lambda move: (move.partition not in unsafe, move.moved_bytes, move.partition)):
        if not move.added:
            free += 1
            if free <= _FREE_AT_ONCE:
                chosen.append(move)
            continue
        leader = leaders.get(move.partition, -1)
        if outgoing[leader] >= limits.out_per_broker:
            continue
        if any(incoming[broker] >= limits.in_per_broker for broker in move.added):
            continue
        chosen.append(move)
        outgoing[leader] += 1
        incoming.update(move.added)
    return chosen


def next_rate(rate: int, now: Signs, *, calm: Signs) -> int:
    """Return the rate for the next interval: half if the cluster suffers, else a step more. `calm` was before the run.

    A rate that is not used does not rise. One at which nothing moves is below what brokers receive from producers
    anyway, so it doubles.
    """
    if (
        now.under_replicated > calm.under_replicated
        or now.lag_records > 4 * calm.lag_records + _LAG_RECORDS
        or now.latency > 4 * calm.latency + _SLOW_SECONDS
    ):
        return max(FLOOR, rate // 2)
    if now.copied_bytes <= 0:
        return min(_MOST, rate * 2)
    used = now.copied_bytes / max(now.seconds, 1e-9) / max(1, now.senders)
    return min(_MOST, rate + _STEP) if used >= _USED * rate else rate


def busiest_bytes(left: Mapping[TopicPartition, Mapping[int, int]], leaders: Mapping[TopicPartition, int]) -> int:
    """Return the bytes that the busiest broker has to receive or send. `left` has them by partition and target."""
    received: Counter[int] = Counter()
    sent: Counter[int] = Counter()
    for partition, targets in left.items():
        for broker, size in targets.items():
            received[broker] += size
            sent[leaders.get(partition, -1)] += size
    return max(chain(received.values(), sent.values()), default=0)


def seconds_left(*, left_bytes: int, busiest: int, measured: float, rate: int | None) -> float | None:
    """Return the time that is left: by the measured rate, or before there is one by the throttle. None if unknown."""
    if left_bytes <= 0:
        return 0.0
    if measured > 0:
        return left_bytes / measured
    return busiest / rate if rate else None
