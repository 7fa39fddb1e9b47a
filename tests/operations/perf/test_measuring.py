"""The meter, the pace and the workload, without a cluster: seconds, due times, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import ConfigError
from ottla.model import OffsetRange
from ottla.operations.perf.consume import divided
from ottla.operations.perf.histogram import Histogram
from ottla.operations.perf.latency import Arrivals, stamps_in
from ottla.operations.perf.meter import Measured, Meter, latencies_of
from ottla.operations.perf.pace import Pace
from ottla.operations.perf.report import Report
from ottla.operations.perf.running import Progress, together
from ottla.operations.perf.workload import Workload


def test_a_meter_counts_by_the_second() -> None:
    meter = Meter(100.0, cpu=1.0)
    meter.add(100.2, 10, 1000, latencies=5_000_000)
    meter.add(100.9, 10, 1000, latencies=np.array([1_000_000] * 10))
    meter.add(103.5, 4, 400)
    measured = meter.measured("ottla", cpu=3.0)
    assert [(second.at, second.records, second.size_bytes) for second in measured.series] == [
        (0.0, 20, 2000),
        (1.0, 0, 0),
        (2.0, 0, 0),
        (3.0, 4, 400),
    ]
    assert measured.series[0].p50 == pytest.approx(0.001, rel=2e-3)
    assert measured.series[0].maximum == pytest.approx(0.005)
    assert measured.series[1].p99 is None
    assert measured.series[3].seconds == pytest.approx(0.5)
    assert (measured.records, measured.seconds, measured.cpu_seconds) == (24, 3.5, 2.0)
    assert measured.histogram is not None
    assert measured.histogram.count == 20
    assert measured.latencies["p99"] == pytest.approx(0.005, rel=2e-3)


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(1, 50)), max_size=50))
def test_seconds_add_up_to_the_run(additions: list[tuple[float, int]]) -> None:
    meter = Meter(50.0)
    for at, records in sorted(additions):
        meter.add(50.0 + at, records, records * 7, latencies=1000)
    measured = meter.measured("ottla")
    assert sum(second.records for second in measured.series) == measured.records == sum(n for _, n in additions)
    assert sum(second.size_bytes for second in measured.series) == measured.size_bytes
    assert measured.histogram is not None
    assert measured.histogram.count == measured.records


@given(st.floats(0.1, 1e6), st.floats(0, 1e6), st.floats(0, 60))
def test_a_record_is_due_when_its_time_has_come(rate: float, began: float, after: float) -> None:
    pace, now = Pace(rate, began), began + after
    due = pace.due(now)
    moments = pace.intended(max(0, due - 2), due + 2) / 1e9
    for number, moment in zip(range(max(0, due - 2), due + 2), moments, strict=True):
        # Within what a float can say about clocks that run for days.
        assert (moment <= now + 1e-6) == (number < due) or abs(moment - now) < 1e-5
    assert pace.due(began - 1) == 0


def test_a_stall_counts_for_every_record_that_it_delayed() -> None:
    # 100 records per second; the client stands still for a second and then sends all of them in no time.
    pace, histogram = Pace(100.0, 0.0), Histogram()
    histogram.record_all(np.int64(1_000_000_000) - pace.intended(0, 100))
    assert latencies_of(histogram)["p50"] == pytest.approx(0.5, rel=0.03)
    assert latencies_of(histogram)["max"] == pytest.approx(1.0)


def test_arrivals_are_counted_once() -> None:
    arrivals = Arrivals(run=7, seen=np.zeros(2, np.bool_))
    due, late = arrivals.take(np.array([[7, 0, 100], [7, 5, 200], [8, 1, 100], [7, 0, 100]], np.int64), 1100)
    assert sorted(due.tolist()) == [100, 200]
    assert sorted(late.tolist()) == [900, 1000]
    assert (arrivals.count, arrivals.repeated) == (2, 1)
    assert arrivals.take(np.array([[7, 5, 200]], np.int64), 1200)[0].tolist() == []
    assert (arrivals.count, arrivals.repeated) == (2, 2)


def test_stamps_are_found_among_other_records() -> None:
    stamp = np.array([7, 3, 500], np.int64).tobytes()
    values = pa.array([b"other", stamp + b"x" * 6, None, stamp + b"y" * 6], pa.binary())
    assert stamps_in(values, 30).tolist() == [[7, 3, 500], [7, 3, 500]]
    assert stamps_in(values.slice(2), 30).tolist() == [[7, 3, 500]]
    assert stamps_in(values, 31).tolist() == []
    assert stamps_in(pa.array([None], pa.binary()), 30).tolist() == []


def test_partitions_are_divided_by_their_records() -> None:
    ranges = [OffsetRange("a", number, 0, size) for number, size in enumerate((10, 1, 9, 2))]
    parts = divided(ranges, 2)
    assert sorted(sum(map(len, part)) for part in parts) == [11, 11]
    with pytest.raises(ConfigError, match="5 threads for 4 partitions"):
        divided(ranges, 5)


def test_the_first_error_of_a_thread_ends_the_others_and_is_raised() -> None:
    ended = []

    def fails(_: Any) -> None:
        raise ConfigError("no")

    def waits(is_stopped: Any) -> None:
        while not is_stopped():
            pass
        ended.append(True)

    with pytest.raises(ConfigError, match="no"):
        together([fails, waits], name="test", is_stopped=lambda: False)
    assert ended == [True]


def test_progress_is_that_of_what_ends_first() -> None:
    progress = Progress(seconds=10.0, records=100)
    assert progress.share(5.0) == 0.0
    progress.meter = Meter(0.0)
    progress.meter.add(1.0, 80, 0)
    assert progress.share(2.0) == 0.8
    assert progress.share(50.0) == 1.0


def test_the_pool_is_the_same_each_time_and_as_random_as_asked() -> None:
    work = Workload(topics=("a",), record_bytes=100, random_share=0.2)
    pool = work.pool()
    assert pool == work.pool()
    assert {len(value) for value in pool} == {100}
    assert len({value[:20] for value in pool}) == len(pool)
    assert len({value[20:] for value in pool}) == 1


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"record_bytes": 0}, "a record of 0 bytes"),
        ({"record_bytes": 2_000_000}, "1 to 1,000,000 are accepted"),
        ({"records": 0}, "0 records"),
        ({"seconds": 0}, "longer than 0"),
        ({"rate": -1.0}, "a rate of -1.0"),
        ({"rate": float("inf")}, "a rate of inf"),
        ({"threads": 0}, "0 threads"),
        ({"acks": "2"}, "acks '2'"),
        ({"codec": "rar"}, "codec 'rar'"),
        ({"record_bytes": 1000, "batch_bytes": 1000}, "cannot hold a record of 1,000"),
        ({"topics": ()}, "needs a topic"),
    ],
)
def test_a_workload_that_cannot_be_is_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Workload(**{"topics": ("a",), **settings})


def test_ratios_are_ours_divided_by_theirs() -> None:
    def run(client: str, seconds: float, cpu: float | None) -> Measured:
        return Measured(
            client=client, records=100, size_bytes=1000, seconds=seconds, cpu_seconds=cpu, latencies={"p50": seconds}
        )

    report = Report(
        kind="produce",
        date="2026-01-01",
        settings={"record_bytes": 10},
        machine={},
        versions={},
        runs=[run("ottla", 1.0, 2.0), run("confluent", 4.0, 4.0), run("java", 2.0, None)],
        latency="",
    )
    assert report.ratios() == {
        "confluent": {"rate": 4.0, "cpu_per_record": 0.5, "p50": 0.25},
        "java": {"rate": 2.0, "p50": 0.5},
    }
    assert report.to_json()["runs"][2]["cpu_microseconds_per_record"] is None
