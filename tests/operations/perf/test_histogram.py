"""The histogram: percentiles within a thousandth of the true ones, however the values are spread and added."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.operations.perf.histogram import Histogram

values = st.lists(st.integers(0, 1 << 40), min_size=1, max_size=300)
shares = st.floats(0.0, 1.0)


def _exact(numbers: list[int], share: float) -> int:
    rank = max(1, int(np.ceil(share * len(numbers) - 1e-9)))
    return sorted(numbers)[rank - 1]


@given(values, shares)
def test_a_percentile_is_at_most_a_thousandth_too_high(numbers: list[int], share: float) -> None:
    histogram = Histogram()
    histogram.record_all(np.array(numbers, np.int64))
    exact = _exact(numbers, share)
    assert exact <= histogram.percentile(share) <= exact * (1 + 1 / 1024) + 1
    assert (histogram.count, histogram.total) == (len(numbers), sum(numbers))
    assert (histogram.minimum, histogram.maximum) == (min(numbers), max(numbers))


@given(values, values, shares)
def test_parts_add_up_to_the_whole(left: list[int], right: list[int], share: float) -> None:
    whole, first, second = Histogram(), Histogram(), Histogram()
    whole.record_all(np.array(left + right, np.int64))
    for number in left:
        first.record(number)
    second.record_all(np.array(right, np.int64))
    first.merge(second)
    assert first.percentile(share) == whole.percentile(share)
    assert (first.count, first.minimum, first.maximum, first.mean) == (
        whole.count,
        whole.minimum,
        whole.maximum,
        whole.mean,
    )


def test_a_value_can_count_for_many_records() -> None:
    histogram = Histogram()
    histogram.record(1000, 99)
    histogram.record(5000)
    assert [histogram.percentile(share) for share in (0.5, 0.99, 1.0)] == [1000, 1000, 5000]
    assert histogram.mean == 1040


def test_extremes() -> None:
    histogram = Histogram()
    assert (histogram.percentile(0.5), histogram.mean, histogram.count) == (0, 0.0, 0)
    histogram.record_all(np.array([], np.int64))
    histogram.record(-5)  # clocks of two threads
    histogram.record(1 << 50)
    assert histogram.minimum == 0
    assert histogram.maximum == 1 << 50
    assert histogram.percentile(0.5) == 0
    assert histogram.percentile(1.0) == pytest.approx((1 << 43) - 1, rel=1e-3)
