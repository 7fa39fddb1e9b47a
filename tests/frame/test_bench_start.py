"""The start benchmark runs on a real broker, checks the results of its programs, and prints what it promises."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.mark.usefixtures("quick_brokers_of_children")
def test_the_benchmark_starts_every_program_and_judges_every_goal() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "start", "--quick", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    names = {row["name"] for row in result["rows"]}
    assert {"import numpy, pyarrow", "ottla, read a record", "confluent, read a record"} <= names
    assert {"ottla consume --help", "import click", "ottla, send a record", "confluent, send a record"} <= names
    assert all(row["seconds"] > 0 for row in result["rows"])
    verdicts = {name: goal["verdict"] for name, goal in result["goals"].items()}
    assert verdicts.pop("first_query_vs_jvm") == "not measured"
    assert set(verdicts.values()) <= {"met", "missed"}
