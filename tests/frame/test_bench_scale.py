"""The scale benchmark runs on a real broker, checks its results, and prints what it promises."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_the_benchmark_moves_all_records_with_every_client_and_judges_every_goal() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "scale", "--quick", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert not result["skipped"]
    many = {(row["what"], row["peer"], row["variant"]) for row in result["rows"] if row["partitions"] > 1}
    assert {("produce", "ottla", "send_table"), ("produce", "confluent", "produce")} <= many
    assert {("read", "ottla", "read"), ("read", "ottla", "Consumer"), ("read", "confluent", "consume")} <= many
    assert {("group", "ottla", "group of two"), ("group", "confluent", "group of two")} <= many
    assert all(row["cpu_ns"] > 0 and row["records_per_second"] > 0 for row in result["rows"])
    assert {name.rpartition("_")[0] for name in result["goals"]} <= {
        name.rpartition("_")[0] for name in result["ratios"]
    }
    assert {goal["verdict"] for goal in result["goals"].values()} == {"not measured"}
