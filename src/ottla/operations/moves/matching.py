"""Which item of a pool gets which broker, so that no item gets one twice: matching with augmenting paths. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet


def match(counts: Sequence[int], taken: Sequence[AbstractSet[int]], slots: Mapping[int, int]) -> list[list[int]] | None:
    """Return the brokers of each item, or None if that is impossible.

    Item i needs `counts[i]` different brokers, none of which is in `taken[i]`. A broker is used as often as `slots`
    says.
    """
    free = {broker: count for broker, count in sorted(slots.items()) if count}
    holders: dict[int, list[int]] = {broker: [] for broker in free}
    given: list[list[int]] = [[] for _ in counts]
    # The most constrained first: fewer paths to change later.
    order = sorted(range(len(counts)), key=lambda item: (-counts[item], -len(taken[item]), item))
    for item in order:
        for _ in range(counts[item]):
            if not _give(item, given, holders, free, taken):
                return None
    return given


def _give(
    item: int,
    given: list[list[int]],
    holders: dict[int, list[int]],
    free: dict[int, int],
    taken: Sequence[AbstractSet[int]],
) -> bool:
    """Give the item one more broker, changing what others have if necessary. Breadth first: the shortest change."""
    came_from: dict[int, tuple[int, int | None]] = {}  # broker -> item that wants it, broker that it gives up
    queue: list[tuple[int, int | None]] = [(item, None)]
    for wanting, gives_up in queue:
        # What has most room first: it spreads the items, and leaves choice to those that follow.
        for broker in sorted(holders, key=lambda broker: -free[broker]):
            if broker in came_from or broker in taken[wanting] or broker in given[wanting]:
                continue
            came_from[broker] = (wanting, gives_up)
            if free[broker]:
                free[broker] -= 1
                _change(broker, came_from, given, holders)
                return True
            queue += [(holder, broker) for holder in holders[broker]]
    return False


def _change(
    broker: int, came_from: dict[int, tuple[int, int | None]], given: list[list[int]], holders: dict[int, list[int]]
) -> None:
    at: int | None = broker
    while at is not None:
        wanting, gives_up = came_from[at]
        given[wanting].append(at)
        holders[at].append(wanting)
        if gives_up is not None:
            given[wanting].remove(gives_up)
            holders[gives_up].remove(wanting)
        at = gives_up
