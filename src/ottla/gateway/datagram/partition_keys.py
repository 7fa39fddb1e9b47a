"""Which partition a message with a partition key goes to, as dory decides it.

The key, taken as unsigned, chooses among all partitions of the topic, by number. If the chosen one has no leader, the
next one that has takes its place. Pure.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ottla.produce.route import Partitions


def chosen_partitions(keys: npt.NDArray[np.int64], partitions: Partitions) -> npt.NDArray[np.int32]:
    """Return a partition for each key."""
    return _places(partitions)[keys % partitions.count]


def _places(partitions: Partitions) -> npt.NDArray[np.int32]:
    """Return for each partition the one that takes its messages now."""
    numbers = np.arange(partitions.count, dtype=np.int32)
    if not partitions.available:
        return numbers  # all are down: they wait for theirs
    available = np.array(partitions.available, np.int32)
    following = np.searchsorted(available, numbers)
    return np.asarray(available[following % len(available)], np.int32)
