"""The wire benchmark runs, checks its results and prints what it promises."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.long
def test_the_benchmark_prints_rows_and_ratios() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "bench", "wire", "--quick", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert result["bench"] == "wire"
    assert {"cpu", "cores", "load_before"} <= result["machine"].keys()
    assert {"python", "ottla", "aiokafka", "kafka-python"} <= result["versions"].keys()
    peers = {(row["peer"], row["operation"]) for row in result["rows"]}
    assert peers == {(p, o) for p in ("ottla", "aiokafka", "kafka_python", "memcpy") for o in ("decode", "encode")}
    for row in result["rows"]:
        assert "skipped" in row or row["ns_spread"]["min"] <= row["ns"] <= row["ns_spread"]["max"]
    promised = ["decode_ns_100", "decode_vs_aiokafka_100", "encode_vs_aiokafka_100", "decode_vs_memcpy_100"]
    for name in (*promised, *(name.replace("100", "1000") for name in promised)):
        assert result["ratios"][name] > 0
        assert result["ratios_of_wall_time"][name] > 0
