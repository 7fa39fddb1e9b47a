"""Health and probe as metrics for Prometheus, in its text format, without a library.

A verdict, the snapshot that it judged and the reports of a probe come in, text goes out. Names are those that existing
dashboards ask for: `kafka_*` as kafka_exporter has them, `kminion_end_to_end_*` as kminion has them; `ottla_health_*`
has the rest. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ottla.operations.health.findings import Severity, State, Verdict
from ottla.operations.health.partition_checks import is_under_replicated
from ottla.operations.health.probe_tally import BUCKETS, BrokerReport, LatencyReport
from ottla.operations.health.snapshot import Snapshot

Kind = Literal["gauge", "counter", "histogram"]
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


@dataclass(slots=True)
class Family:
    """All samples of one name."""

    name: str
    kind: Kind
    help: str
    samples: list[str] = field(default_factory=list)

    def add(self, value: float, suffix: str = "", /, **labels: object) -> None:
        """Add a sample."""
        shown = ",".join(f'{name}="{str(text).translate(_ESCAPES)}"' for name, text in labels.items())
        labeled = f"{{{shown}}}" if shown else ""
        self.samples.append(f"{self.name}{suffix}{labeled} {_number(value)}")

    def add_histogram(self, latencies: LatencyReport, **labels: object) -> None:
        """Add the samples of a histogram."""
        total = 0
        for bound, count in zip((*BUCKETS, "+Inf"), latencies.counts, strict=True):
            total += count
            self.add(total, "_bucket", **labels, le=bound)
        self.add(latencies.total, "_sum", **labels)
        self.add(total, "_count", **labels)


def render(families: Iterable[Family]) -> str:
    """Return the text of families that have samples."""
    lines: list[str] = []
    for family in families:
        if family.samples:
            lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}", *family.samples]
    return "\n".join(lines) + "\n" if lines else ""


def health_families(seen: Snapshot, verdict: Verdict, *, now: float) -> list[Family]:
    """Return the metrics of the last look. `now` is the time of the scrape, in seconds since 1970."""
    state = Family("ottla_health_state", "gauge", "0 healthy, 1 degraded, 2 unhealthy.")
    state.add(verdict.state)
    reached = Family("ottla_health_reachable", "gauge", "Whether any broker answered at the last look.")
    reached.add(0 if seen.error is not None else 1)
    age = Family("ottla_health_look_age_seconds", "gauge", "Seconds since the last look at the cluster.")
    age.add(max(0.0, now - seen.taken_at))
    counts = Family("ottla_health_findings", "gauge", "Findings of the last look by severity.")
    for severity in Severity:
        counts.add(verdict.count(severity), severity=severity.name.lower())
    present = Family("ottla_health_finding", "gauge", "1 for each finding of the last look.")
    for finding in verdict.findings:
        present.add(1, check=finding.check, subject=finding.subject, severity=finding.severity.name.lower())
    unseen = Family("ottla_health_unseen", "gauge", "Parts of the cluster that could not be looked at.")
    unseen.add(len(seen.unseen))
    families = [state, reached, age, counts, present, unseen]
    return families if seen.error is not None else [*families, *_brokers(seen), *_partitions(seen), *_disks(seen)]


def _brokers(seen: Snapshot) -> list[Family]:
    brokers = Family("kafka_brokers", "gauge", "Number of brokers in the cluster.")
    brokers.add(len(seen.brokers))
    info = Family("kafka_broker_info", "gauge", "Brokers with their addresses.")
    for number, broker in sorted(seen.brokers.items()):
        info.add(1, id=number, address=broker.address)
    up = Family("ottla_health_broker_up", "gauge", "Whether a broker is up and answers.")
    for number in sorted({*seen.brokers, *(seen.registered or {})}):
        up.add(1 if number in seen.brokers and number not in seen.silent else 0, broker=number)
    return [brokers, info, up]


def _partitions(seen: Snapshot) -> list[Family]:
    under = Family(
        "kafka_topic_partition_under_replicated_partition", "gauge", "1 if the partition has replicas out of sync."
    )
    leader = Family("kafka_topic_partition_leader", "gauge", "The id of the leader, -1 for none.")
    preferred = Family("kafka_topic_partition_leader_is_preferred", "gauge", "1 if the preferred replica leads.")
    replicas = Family("kafka_topic_partition_replicas", "gauge", "Number of replicas.")
    in_sync = Family("kafka_topic_partition_in_sync_replica", "gauge", "Number of replicas in sync.")
    for topic, part in seen.partitions():
        labels: dict[str, object] = {"topic": topic.name, "partition": part.index}
        under.add(1 if is_under_replicated(seen, part) else 0, **labels)
        leader.add(part.leader if part.leader in seen.brokers else -1, **labels)
        preferred.add(1 if part.replicas and part.leader == part.replicas[0] else 0, **labels)
        replicas.add(len(part.replicas), **labels)
        in_sync.add(len(part.isr), **labels)
    return [under, leader, preferred, replicas, in_sync]


def _disks(seen: Snapshot) -> list[Family]:
    total = Family("ottla_health_disk_total_bytes", "gauge", "Size of the disk of a log directory.")
    usable = Family("ottla_health_disk_usable_bytes", "gauge", "Bytes that the broker may still write to it.")
    for number, dirs in sorted(seen.log_dirs.dirs.items()):
        for each in dirs:
            if each.total_bytes is not None and each.usable_bytes is not None:
                total.add(each.total_bytes, broker=number, path=each.path)
                usable.add(each.usable_bytes, broker=number, path=each.path)
    return [total, usable]


def probe_families(reports: Sequence[BrokerReport]) -> list[Family]:
    """Return the metrics of a probe."""
    prefix = "kminion_end_to_end"
    produce = Family(f"{prefix}_produce_latency_seconds", "histogram", "From sending a record to its acknowledgement.")
    round_trip = Family(f"{prefix}_roundtrip_latency_seconds", "histogram", "From sending a record to reading it.")
    counters = [
        (Family(f"{prefix}_messages_produced_total", "counter", "Records sent."), "sent"),
        (Family(f"{prefix}_messages_acknowledged_total", "counter", "Records acknowledged."), "acknowledged"),
        (Family(f"{prefix}_messages_produced_failed_total", "counter", "Records not acknowledged in time."), "failed"),
        (Family(f"{prefix}_messages_received_total", "counter", "Records read back."), "received"),
        (Family(f"{prefix}_messages_lost_total", "counter", "Records acknowledged and not read."), "lost"),
        (Family(f"{prefix}_messages_duplicated_total", "counter", "Records read twice."), "duplicates"),
    ]
    up = Family("ottla_health_probe_up", "gauge", "Whether the last record went through the broker in time.")
    for report in reports:
        labels: dict[str, object] = {
            "broker": report.broker,
            "partition_id": -1 if report.partition is None else report.partition,
        }
        for family, name in counters:
            family.add(getattr(report, name), **labels)
        for family, latencies in ((produce, report.produce), (round_trip, report.round_trip)):
            if latencies is not None:
                family.add_histogram(latencies, **labels)
        up.add(1 if report.is_up else 0, **labels)
    return [up, *(family for family, _ in counters), produce, round_trip]


def http_status(verdict: Verdict | None) -> int:
    """Return 200 while the cluster serves, 503 if it is unhealthy or not looked at yet."""
    return 503 if verdict is None or verdict.state is State.UNHEALTHY else 200


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
