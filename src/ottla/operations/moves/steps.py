"""Fair shares: how many replicas each broker of a rack should have, and what it costs to have more or fewer.

Pure. Racks limit how even a cluster can be: with as many racks as replicas, each rack has one replica of each
partition, however many brokers it has. So shares are those of a rack's brokers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

_STEPS = 12
"""Steps of cost on each side of the fair share; each is twice as wide as the one before."""
FAR = _STEPS
"""The cost of the last step, in units of imbalance."""


def fair_levels(total: int, *, brokers: Sequence[int], most: Sequence[int]) -> list[float]:
    """Return the load of a broker in each rack: equal everywhere, except where a rack cannot have that much.

    `brokers` counts those of each rack, `most` is what each rack can have in total.
    """
    levels = [0.0] * len(brokers)
    open_racks = [rack for rack, count in enumerate(brokers) if count]
    left = float(total)
    while open_racks:
        level = left / sum(brokers[rack] for rack in open_racks)
        full = [rack for rack in open_racks if most[rack] < level * brokers[rack]]
        if not full:
            for rack in open_racks:
                levels[rack] = level
            break
        for rack in full:
            levels[rack] = most[rack] / brokers[rack]
            left -= most[rack]
        open_racks = [rack for rack in open_racks if rack not in full]
    return levels


def bounds(level: float) -> tuple[int, int]:
    """Return the whole numbers around a share."""
    near = round(level)
    if abs(level - near) < 1e-6:  # levels are quotients
        return near, near
    return math.floor(level), math.ceil(level)


def load_steps(level: float, *, present: int, room: int) -> Iterator[tuple[int, int]]:
    """Yield (units, cost of each) for up to `room` more units on a broker that has `present`, in rising order.

    Costs are negative below the fair share and positive above. They rise with the distance: one unit and one cost at
    first, then in steps that double. Cheapest in total is what is most even.
    """
    floor, ceiling = bounds(level)
    start, stop = present, present + room
    edges = [floor - width for width in _widths()][::-1]
    costs = [*range(-_STEPS, 0), 0, *range(1, _STEPS + 1)]
    uppers = [*edges, floor, ceiling, *(ceiling + width for width in _widths())]
    # A segment ends at each upper bound; the last one has no end.
    segments = list(zip([*uppers[1:-1], stop + 1], costs, strict=True))
    at = start
    for upper, cost in segments:
        units = min(upper, stop) - at
        if units > 0:
            yield units, cost
            at += units


def _widths() -> list[int]:
    """Return the distances from the fair share at which steps end."""
    distances, width = [], 0
    for step in range(_STEPS):
        width += 1 << max(0, step - 3)
        distances.append(width)
    return distances
