"""The producer benchmark runs with every peer on a real broker, checks its results and prints what it promises."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench.produce_figures import GOALS

ROOT = Path(__file__).parent.parent.parent
WAYS = {
    "wire_limit": {"same batch"},
    "ottla": {"send", "send_many", "send_table", "send_table, 1,000 rows", "send_table, write-ahead"},
    "confluent": {"produce", "produce, on_delivery", "produce_batch"},
    "aiokafka": {"send", "send_batch"},
    "kafka_python": {"send"},
    "java": {"default batches", "large batches"},
}


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.usefixtures("quick_brokers_of_children")
def test_the_benchmark_measures_every_peer_and_judges_every_goal() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "bench", "produce", "--quick", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert result["bench"] == "produce"
    assert not result["skipped"]
    assert {"cpu", "cores", "load_before"} <= result["machine"].keys()
    assert {"ottla", "confluent-kafka", "librdkafka", "aiokafka", "kafka-python", "kafka"} <= result["versions"].keys()
    for size in (100, 1000):
        rows = [
            row for row in result["rows"] if (row["record_bytes"], row["acks"], row["codec"]) == (size, "all", "none")
        ]
        assert {(row["peer"], row["variant"]) for row in rows} == {(p, way) for p, ways in WAYS.items() for way in ways}
        assert all(row["records_per_second"] > 0 and row["records"] > 0 for row in rows)
        assert all(row["cpu_ns"] > 0 for row in rows if row["peer"] != "java")
    assert {row["peer"] for row in result["latency"]} == {"ottla", "confluent", "wire_limit"}
    assert all(0 < row["p50_ms"] <= row["p99_ms"] <= row["max_ms"] for row in result["latency"])
    assert result["goals"].keys() == GOALS.keys()
    assert all(goal["verdict"] in ("met", "missed") for goal in result["goals"].values())
    assert result["ratios_by_cell"]["100 B, acks=1, zstd"]["table_rate_vs_java"] > 0
