"""The operations benchmark runs on real brokers, and every way to look comes to the same lag."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.long]


@pytest.mark.usefixtures("quick_brokers_of_children")
def test_the_benchmark_looks_in_every_way_and_asks_far_less() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "operations", "--quick", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    rows = {row["way"]: row for row in result["rows"]}
    assert rows.keys() == {"lag", "without_times", "one_by_one"}
    assert {row["rows"] for row in rows.values()} == {result["partitions"]}
    assert rows["lag"]["requests"] <= 60
    assert rows["one_by_one"]["requests"] > result["groups"]
    assert result["goals"]["lag_seconds"]["verdict"] == "not measured"
