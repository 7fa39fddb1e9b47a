"""A histogram of durations with a bounded relative error: what an HDR histogram with three digits is.

Nanoseconds come in, one or an array at a time; percentiles go out. Up to 2,048 each value has a bucket of its own;
above, each power of two is divided into 1,024 buckets, so that a percentile is at most 0.1 % too high. Pure.

It is written here because a load generator records arrays: this takes 8 ns a value, the package `hdrhistogram`, which
has no call for arrays and no types, 600 ns, several times what producing a record costs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_BITS = 10
_HALF = 1 << _BITS
_MOST = (1 << 43) - 1
"""Longer durations, more than two hours, count as this one; `maximum` stays exact."""
_SIZE = (43 - _BITS - 1) * _HALF + 2 * _HALF

Nanoseconds = npt.NDArray[np.int64]


def _indices(values: Nanoseconds) -> Nanoseconds:
    """Return the bucket of each value."""
    # The exponent of a float is exact for whole numbers of this size: 2**(exponent - 1) <= value < 2**exponent.
    shifts = np.maximum(np.frexp(values.astype(np.float64))[1].astype(np.int64) - (_BITS + 1), 0)
    indices: Nanoseconds = shifts * _HALF + (values >> shifts)
    return indices


def _highest(index: int) -> int:
    """Return the highest value of a bucket."""
    if index < 2 * _HALF:
        return index
    shift = index // _HALF - 1
    return ((index - shift * _HALF + 1) << shift) - 1


class Histogram:
    """Counts durations by size. Not for several threads at once."""

    def __init__(self) -> None:
        self._counts = np.zeros(_SIZE, np.int64)
        self.count = 0
        self.total = 0
        """The sum of all values, in nanoseconds."""
        self.minimum = 0
        self.maximum = 0

    def record(self, value: int, count: int = 1) -> None:
        """Add a value, `count` times. A negative one counts as 0: clocks of two threads may differ by a little."""
        self._add(np.array([value], np.int64), np.array([count], np.int64))

    def record_all(self, values: Nanoseconds) -> None:
        """Add all values."""
        if len(values):
            self._add(values, None)

    def _add(self, values: Nanoseconds, counts: Nanoseconds | None) -> None:
        values = np.maximum(values, 0)
        low, high = int(values.min()), int(values.max())
        number = len(values) if counts is None else int(counts.sum())
        if not number:
            return
        self.minimum = low if not self.count else min(self.minimum, low)
        self.maximum = max(self.maximum, high)
        indices = _indices(np.minimum(values, _MOST))
        np.add.at(self._counts, indices, 1 if counts is None else counts)
        self.count += number
        self.total += int(values.sum() if counts is None else (values * counts).sum())

    def merge(self, other: Histogram) -> None:
        """Add what another histogram has."""
        if other.count:
            self.minimum = other.minimum if not self.count else min(self.minimum, other.minimum)
            self.maximum = max(self.maximum, other.maximum)
            self._counts += other._counts
            self.count += other.count
            self.total += other.total

    @property
    def mean(self) -> float:
        """The mean in nanoseconds, 0 if it is empty."""
        return self.total / self.count if self.count else 0.0

    def percentile(self, share: float) -> int:
        """Return the value in nanoseconds that `share` of all values do not exceed, 0 if it is empty."""
        return self.percentiles((share,))[0]

    def percentiles(self, shares: tuple[float, ...]) -> list[int]:
        """Return the percentiles of several shares, from 0 to 1."""
        if not self.count:
            return [0] * len(shares)
        sums = np.cumsum(self._counts)
        # Rounded up: the smallest value that at least this many values do not exceed.
        ranks = [min(self.count, max(1, int(np.ceil(share * self.count - 1e-9)))) for share in shares]
        found = np.searchsorted(sums, ranks)
        return [max(self.minimum, min(self.maximum, _highest(int(index)))) for index in found]
