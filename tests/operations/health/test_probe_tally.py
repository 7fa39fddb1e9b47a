"""What a probe counts, and the text of its metrics."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.net.metadata import Topic
from ottla.operations.health import probe_topic
from ottla.operations.health.disk_checks import seconds_to_full
from ottla.operations.health.findings import Finding, Severity, Verdict
from ottla.operations.health.looking import grown
from ottla.operations.health.metrics import health_families, http_status, probe_families, render
from ottla.operations.health.probe_records import probe_batch, probe_records
from ottla.operations.health.probe_tally import Latencies, ProbeTally
from ottla.operations.health.snapshot import Growth, Snapshot

from .clusters import NOW, part, seen

RUN = b"r" * 16


@given(
    st.lists(st.sampled_from(["ok", "refused", "lost", "twice"]), max_size=40),
    st.integers(min_value=0),
)
def test_every_record_counts_once_for_what_happened_to_it(fates: list[str], seed: int) -> None:
    tally, offset = ProbeTally(1), 100
    order = random.Random(seed)
    for number, fate in enumerate(fates):
        tally.sent(number, float(number))
        if fate == "refused":
            tally.write_failed(number, "no", NOW)
            continue
        early = fate != "lost" and order.random() < 0.3
        if early:
            tally.read(number, offset, number + 0.2)  # the reader may be faster than the acknowledgement
        tally.acknowledged(number, offset, number + 0.1)
        if fate != "lost" and not early:
            tally.read(number, offset, number + 0.2)
        if fate == "twice":
            tally.read(number, offset + 1, number + 0.3)
            offset += 1
        offset += 1
        tally.read_up_to(offset)
    report = tally.report()
    assert report.sent == len(fates)
    assert report.failed == fates.count("refused")
    assert report.acknowledged == len(fates) - report.failed
    assert report.lost == fates.count("lost")
    assert report.duplicates == fates.count("twice")
    assert report.received == report.acknowledged - report.lost
    assert report.availability == (report.acknowledged / len(fates) if fates else None)


def test_what_is_not_read_yet_is_not_lost() -> None:
    tally = ProbeTally(1)
    tally.sent(0, 0.0)
    tally.acknowledged(0, 5, 0.1)
    tally.read_up_to(5)
    assert tally.report().lost == 0
    tally.read_up_to(6)
    assert tally.report().lost == 1


def test_a_broker_is_down_from_its_first_failure_to_its_next_success() -> None:
    tally = ProbeTally(1)
    tally.write_failed(0, "first", NOW)
    tally.write_failed(1, "second", NOW + 1)
    report = tally.report()
    assert (report.is_up, report.error, report.down_since) == (False, "second", NOW)
    tally.works()
    report = tally.report()
    assert (report.is_up, report.error, report.down_since, report.failed) == (True, None, None, 2)


def test_a_record_that_came_too_early_for_a_new_partition_does_not_count() -> None:
    tally = ProbeTally(1)
    tally.sent(0, 0.0)
    tally.withdrawn(0)
    report = tally.report()
    assert (report.sent, report.failed, report.is_up, report.availability) == (0, 0, True, None)


@given(st.lists(st.floats(0, 20), min_size=1, max_size=300))
def test_percentiles_are_latencies_that_happened(values: list[float]) -> None:
    latencies = Latencies()
    for value in values:
        latencies.add(value)
    ordered = sorted(values)
    assert latencies.percentile(1.0) == ordered[-1]
    p50 = latencies.percentile(0.5)
    assert p50 is not None
    assert sum(value <= p50 for value in values) >= len(values) / 2
    assert sum(latencies.counts) == len(values)


def test_memory_is_bounded_however_long_it_runs() -> None:
    tally = ProbeTally(1)
    for number in range(30_000):
        tally.sent(number, float(number))
        tally.acknowledged(number, number, float(number))
        if number % 2:
            tally.read(number, number, float(number))
    sizes = [len(memory) for memory in (tally._sent_at, tally._awaited, tally._seen)]
    assert max(sizes) <= 10_000
    assert len(tally.produce._latest) == 10_000


@given(st.integers(0, 1 << 62), st.integers(0, 1 << 40))
def test_a_record_of_the_probe_comes_back_and_others_are_passed_over(number: int, now_ms: int) -> None:
    ours, other = probe_batch(RUN, number, now_ms=now_ms), probe_batch(b"x" * 16, number, now_ms=now_ms)
    found = [record for _, record in probe_records(memoryview(bytes(ours) + bytes(other)), RUN)]
    assert found[1] is None
    assert found[0] is not None
    assert found[0].number == number
    damaged = bytearray(bytes(ours))
    damaged[-3] ^= 1
    [(end, record)] = probe_records(memoryview(bytes(damaged)), RUN)
    assert end == 1
    assert record is not None
    assert record.number is None


def test_each_broker_has_the_first_partition_that_is_its_own() -> None:
    topic = Topic("p", partitions=(part(0, 1, (1,)), part(1, 2, (2,)), part(2, 1, (1,)), part(3, 1, (1, 3))))
    assert probe_topic.homes_of(topic) == {1: 0, 2: 1}
    assert probe_topic.missing(topic, {1, 2, 3, 4}) == [3, 4]
    assert probe_topic.missing(None, {2, 1}) == [1, 2]


def test_metrics_have_the_names_that_dashboards_ask_for() -> None:
    tally = ProbeTally(2)
    tally.partition = 4
    tally.sent(0, 0.0)
    tally.acknowledged(0, 0, 0.004)
    tally.read(0, 0, 0.03)
    snapshot = seen(part(0, 1, (1, 2, 3), (1, 2)), part(1, 3, (2, 3)))
    finding = Finding("at-min-isr", Severity.WARNING, "x", subject='a "b"\n')
    verdict = Verdict((finding,), taken_at=NOW)
    text = render([*health_families(snapshot, verdict, now=NOW + 7), *probe_families([tally.report()])])
    lines = text.splitlines()
    for line in (
        "kafka_brokers 3",
        'kafka_topic_partition_under_replicated_partition{topic="clicks",partition="0"} 1',
        'kafka_topic_partition_under_replicated_partition{topic="clicks",partition="1"} 0',
        'kafka_topic_partition_leader_is_preferred{topic="clicks",partition="1"} 0',
        'kafka_topic_partition_in_sync_replica{topic="clicks",partition="0"} 2',
        "ottla_health_state 1",
        "ottla_health_look_age_seconds 7",
        'ottla_health_finding{check="at-min-isr",subject="a \\"b\\"\\n",severity="warning"} 1',
        'ottla_health_probe_up{broker="2",partition_id="4"} 1',
        'kminion_end_to_end_messages_lost_total{broker="2",partition_id="4"} 0',
        'kminion_end_to_end_produce_latency_seconds_bucket{broker="2",partition_id="4",le="0.0025"} 0',
        'kminion_end_to_end_produce_latency_seconds_bucket{broker="2",partition_id="4",le="0.005"} 1',
        'kminion_end_to_end_roundtrip_latency_seconds_bucket{broker="2",partition_id="4",le="+Inf"} 1',
        'kminion_end_to_end_roundtrip_latency_seconds_sum{broker="2",partition_id="4"} 0.03',
    ):
        assert line in lines


def test_prometheus_reads_the_metrics() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    text = render(health_families(seen(part(0, 1, (1, 2, 3))), Verdict(taken_at=NOW), now=NOW))
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    assert families["kafka_brokers"].samples[0].value == 3
    away = render(health_families(Snapshot(NOW, error="refused"), Verdict(taken_at=NOW), now=NOW))
    assert "ottla_health_reachable 0" in away
    assert "kafka_brokers" not in away, "nothing stale is told as if it were known"


def test_the_http_status_says_whether_the_cluster_serves() -> None:
    critical = Verdict((Finding("x", Severity.CRITICAL, "y"),))
    warning = Verdict((Finding("x", Severity.WARNING, "y"),))
    assert [http_status(each) for each in (None, critical, warning, Verdict())] == [503, 503, 200, 200]


@given(st.lists(st.tuples(st.floats(0.001, 1e6), st.floats(0, 1e12)), max_size=5), st.integers(1, 10**12))
def test_a_disk_is_full_when_what_grows_has_used_it(growth: list[tuple[float, float]], usable: int) -> None:
    parts = [Growth(*each) for each in growth]
    within = 7 * 86_400.0
    seconds = seconds_to_full(usable, parts, within=within)

    def grown_by(after: float) -> float:
        return sum(min(each.rate * after, each.most_bytes) for each in parts)

    if seconds is None:
        assert grown_by(within) < usable
    else:
        assert grown_by(seconds) >= usable
        assert grown_by(seconds * 0.999 - 0.01) <= usable


def test_a_partition_grows_until_its_retention() -> None:
    day = {"retention.ms": str(86_400_000), "retention.bytes": "-1", "cleanup.policy": "delete"}
    assert grown(10.0, 64_000, day) == Growth(10.0, 800_000.0)
    assert grown(10.0, 64_000, {**day, "retention.bytes": "70000"}) == Growth(10.0, 6_000.0)
    assert grown(10.0, 64_000, {**day, "cleanup.policy": "compact"}) == Growth(10.0)
