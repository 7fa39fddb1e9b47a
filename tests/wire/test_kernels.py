"""The compiled kernels do what their Python says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from .interpreted import COUNT, results

TESTS = Path(__file__).parent.parent


def test_compiled_and_interpreted_kernels_say_the_same() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "wire.interpreted"],
        cwd=TESTS,
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    compiled = list(results())
    assert run.stdout.splitlines() == compiled
    assert len(compiled) == 3 * COUNT
    readings = compiled[1::3]
    refused = sum(line.startswith("corrupt") for line in readings)
    assert COUNT // 4 < refused < COUNT * 3 // 4, "both outcomes must be among the inputs"
