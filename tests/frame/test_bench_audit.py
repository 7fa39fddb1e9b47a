"""The audit benchmark runs on a real broker, checks what it moves, and judges its goals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.long]


@pytest.mark.usefixtures("quick_brokers_of_children")
def test_the_benchmark_counts_all_records_and_judges_every_goal() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "audit", "--quick", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["skipped"] == {}
    variants = {row["variant"] for row in result["rows"]}
    assert {"tables", "tables, counted", "count by headers", "count by records", "compare on Spark"} <= variants
    assert {goal["verdict"] for goal in result["goals"].values()} <= {"met", "missed"}
