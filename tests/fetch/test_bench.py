"""The consumer benchmark runs with every peer on a real broker, checks its results and prints all figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench.consume_figures import GOALS

ROOT = Path(__file__).parent.parent.parent
WAYS = {
    "wire_limit": {"one connection", "two connections"},
    "ottla": {"read", "read value", "read value, as bytes", "count", "Consumer", "Consumer.records"},
    "confluent": {"consume", "consume, 10,000 at once"},
    "aiokafka": {"getmany"},
    "kafka_python": {"poll"},
    "java": {"default fetches", "large fetches"},
}


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.usefixtures("quick_brokers_of_children")
def test_the_benchmark_measures_every_peer_and_judges_every_goal() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "bench", "consume", "--quick", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert result["bench"] == "consume"
    assert not result["skipped"]
    assert {"cpu", "cores", "load_before"} <= result["machine"].keys()
    assert {"ottla", "confluent-kafka", "librdkafka", "aiokafka", "kafka-python", "kafka"} <= result["versions"].keys()
    for size in (100, 1000):
        rows = [
            row for row in result["rows"] if (row["partitions"], row["record_bytes"], row["codec"]) == (1, size, "none")
        ]
        assert {(row["peer"], row["variant"]) for row in rows} == {(p, way) for p, ways in WAYS.items() for way in ways}
        assert all(row["records_per_second"] > 0 and row["records"] > 0 for row in rows)
        assert all(row["cpu_ns"] > 0 for row in rows if row["peer"] != "java")
    assert {row["variant"] for row in result["latency"]} == {
        "Consumer",
        "Consumer, busy program",
        "Reader, following",
        "poll",
        "poll, busy program",
    }
    assert all(0 < row["p50_ms"] <= row["p99_ms"] <= row["max_ms"] for row in result["latency"])
    assert result["goals"].keys() == GOALS.keys()
    assert all(goal["verdict"] in ("met", "missed") for goal in result["goals"].values())
    both = [result["ratios"][f"read_rate_vs_java_100_{place}"] for place in ("one_partition", "six_partitions")]
    assert result["ratios"]["read_rate_vs_java_100"] == min(both)
    stored = result["stored_bytes"]["100 B, 1 partition, zstd, 64 kB"]
    assert 2.5 < stored["records"] * 100 / stored["bytes"] < 5
