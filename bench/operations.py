"""The operations benchmark: one look at the lag of thousands of groups, against asking group by group.

Comes in: a real cluster with 2,000 groups that have committed offsets in 20,000 partitions. Goes out: how long a look
takes, its requests and bytes, and the memory of the process. Every way to look is a process of its own, and all must
come to the same lag. See README.md.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import harness
from bench.figures import Goals, heading_lines, ratio_lines, rotated, verdicts
from bench.harness import Effort
from bench.stage import versions
from ottla.admin import Admin, NewTopic
from ottla.cluster import LocalCluster
from ottla.model import TopicPartition
from ottla.produce.producer import Producer

GOALS: Goals = {
    "lag_seconds": ("<=", 2.0),
    "lag_memory_mb": ("<=", 150.0),
    "lag_requests": ("<=", 60.0),
}
MODULE = "bench.peers.operations"
_WAYS = ("lag", "without_times", "one_by_one")
_GROUPS, _TOPICS, _PARTITIONS = 2_000, 2_000, 10
_LEAST = 40
_RECORDS = 5
"""In each partition; a group has read two of them."""
_READ = 2
_LOOKS = 5
_BROKERS = 3
_HEAP_BYTES = 1 << 30
_SETTINGS = {
    # Two files for each partition are mapped, and take this much each.
    "log.index.size.max.bytes": str(1 << 12),
    "log.flush.offset.checkpoint.interval.ms": "600000",
    "log.flush.start.offset.checkpoint.interval.ms": "600000",
    "offsets.topic.replication.factor": "1",
}


def run(effort: Effort) -> dict[str, Any]:
    """Measure everything; about five minutes with full effort, most of them to create topics."""
    machine = harness.machine()
    topics = max(_LEAST, round(_TOPICS * effort.scale))
    groups = max(_LEAST, round(_GROUPS * effort.scale))
    answers: dict[str, list[dict[str, Any]]] = {}
    with _cluster(topics, groups) as bootstrap:
        for turn in range(effort.rounds):
            for way in rotated(_WAYS, turn):
                harness.progress(f"round {turn + 1} of {effort.rounds}: {way}")
                request = {"bootstrap": bootstrap, "way": way, "looks": _LOOKS, "peer": way}
                answers.setdefault(way, []).append(harness.in_own_process(MODULE, request))
    _require_equal(answers)
    rows = [_row(way, found) for way, found in answers.items()]
    quoted = ratios(rows)
    goals = verdicts(quoted if effort.scale >= 1 else {}, GOALS)
    return {"bench": "operations", "date": harness.today(), "machine": machine} | {
        "versions": versions(),
        "effort": asdict(effort),
        "groups": groups,
        "partitions": topics * _PARTITIONS,
        "rows": rows,
        "ratios": quoted,
        "goals": goals,
        "skipped": {},
    }


def ratios(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The figures that are quoted."""
    by_way = {row["way"]: row for row in rows}
    lag, single = by_way["lag"], by_way["one_by_one"]
    return {
        "lag_seconds": lag["seconds"],
        "lag_first_seconds": lag["first_seconds"],
        "lag_memory_mb": lag["memory_mb"],
        "lag_requests": lag["requests"],
        "lag_mb": lag["mb"],
        "seconds_vs_one_by_one": round(lag["seconds"] / single["seconds"], 3),
        "seconds_without_times_vs_one_by_one": round(by_way["without_times"]["seconds"] / single["seconds"], 3),
        "requests_vs_one_by_one": round(lag["requests"] / single["requests"], 4),
    }


def table(result: dict[str, Any]) -> str:
    """For people: each way to look, and the ratios with their goals."""
    lines = [*heading_lines(result), f"{result['groups']:,} groups, {result['partitions']:,} partitions"]
    lines.append(f"{'way':<16}{'seconds':>10}{'first':>10}{'CPU s':>10}{'requests':>10}{'MB':>8}{'memory MB':>12}")
    lines += [
        f"{row['way']:<16}{row['seconds']:>10.3f}{row['first_seconds']:>10.3f}{row['cpu_seconds']:>10.3f}"
        f"{row['requests']:>10,}{row['mb']:>8.2f}{row['memory_mb']:>12.0f}"
        for row in result["rows"]
    ]
    return "\n".join([*lines, *ratio_lines(result, "one look")])


@contextmanager
def _cluster(topics: int, groups: int) -> Iterator[str]:
    """Run a cluster in which every group lags in every partition of its topic."""
    with (
        tempfile.TemporaryDirectory(prefix="ottla-bench-", ignore_cleanup_errors=True) as name,
        LocalCluster(
            "bench",
            brokers=_BROKERS,
            dir=Path(name) / "clusters",
            settings=_SETTINGS,
            heap_bytes=_HEAP_BYTES,
        ) as cluster,
        Admin(cluster.bootstrap) as admin,
    ):
        harness.progress(f"creating {topics:,} topics")
        names = [f"bench-{number:05}" for number in range(topics)]
        for first in range(0, topics, 100):
            new = [NewTopic(name=name, partitions=_PARTITIONS, replicas=1) for name in names[first : first + 100]]
            admin.create_topics(new, timeout=300)
        harness.progress("writing records")
        with Producer(cluster.bootstrap) as producer:
            for name in names:
                for partition in range(_PARTITIONS):
                    for _ in range(_RECORDS):
                        producer.send(name, b"x" * 100, partition=partition)
            producer.flush(300)
        harness.progress(f"committing for {groups:,} groups")
        for number in range(groups):
            topic = names[number % topics]
            offsets = {TopicPartition(topic, partition): _READ for partition in range(_PARTITIONS)}
            admin.groups.set_offsets(f"bench-group-{number:05}", offsets)
        yield cluster.bootstrap


def _require_equal(answers: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Raise if ways to look come to different lags."""
    found = {(look["rows"], look["records"]) for runs in answers.values() for run in runs for look in run["looks"]}
    if len(found) != 1:
        raise RuntimeError(f"ways to look come to different lags: {found}")


def _row(way: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    looks = [look for run in runs for look in run["looks"]]
    seconds = [look["seconds"] for look in looks]
    return {
        "way": way,
        "samples": len(looks),
        "rows": looks[0]["rows"],
        "seconds": round(statistics.median(seconds), 4),
        "seconds_spread": {"min": round(min(seconds), 4), "max": round(max(seconds), 4)},
        "first_seconds": round(statistics.median(run["first"]["seconds"] for run in runs), 4),
        "cpu_seconds": round(statistics.median(look["cpu_seconds"] for look in looks), 4),
        "requests": round(statistics.median(look["requests"] for look in looks)),
        "mb": round(statistics.median(look["size_bytes"] for look in looks) / 1e6, 3),
        "memory_mb": round(max(run["memory_bytes"] for run in runs) / 1e6, 1),
    }
