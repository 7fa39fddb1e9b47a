"""The benchmark of datagrams and syslog lines runs, and the broker has every one of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_the_benchmark_prints_rates_and_ratios() -> None:
    command = [sys.executable, "-m", "bench.gateway_lines", "--quick", "--json"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    places = {(row["kind"], row["peer"]) for row in result["rows"]}
    kinds = ("datagram", "syslog", "syslog_stream")
    assert places == {(kind, peer) for kind in kinds for peer in ("ottla", "receive_only")}
    assert {f"{kind}_rate_vs_receive_only" for kind in kinds} == result["ratios"].keys()
    assert all(row["per_second"] > 0 for row in result["rows"])
