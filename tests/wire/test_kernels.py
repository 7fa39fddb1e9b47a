"""The compiled kernels do what their Python source does, however they are run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .interpreted import COUNT, results

TESTS = Path(__file__).parent.parent


@pytest.mark.parametrize("variable", ["NUMBA_DISABLE_JIT", "NUMBA_BOUNDSCHECK"])
def test_native_kernels_say_the_same_as_interpreted_and_as_checked_ones(variable: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "wire.interpreted"],
        cwd=TESTS,
        env=os.environ | {variable: "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    compiled = list(results())
    assert run.stdout.splitlines() == compiled
    assert len(compiled) == 3 * COUNT
    readings = compiled[1::3]
    refused = sum(line.startswith("corrupt") for line in readings)
    assert COUNT // 4 < refused < COUNT * 3 // 4, "both outcomes must be among the inputs"
