"""The gateway's kernels under 100,000 hostile inputs: no stray access, and the same result however they are run."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.fuzz.layers import ROOT, SOURCE, environment

_SEED = 20261118


def _checksum(layer: str, inputs: int) -> str:
    command = [sys.executable, "-m", "tests.gateway.parser_fuzz", "--seed", str(_SEED), "--inputs", str(inputs)]
    run = subprocess.run(
        command, cwd=ROOT, env=environment(layer, SOURCE), capture_output=True, text=True, timeout=250, check=False
    )
    assert run.returncode == 0, f"{layer} ended with {run.returncode}: {run.stderr[-3000:]}"
    return run.stdout.strip()


def test_a_hundred_thousand_inputs_touch_no_memory_but_their_own() -> None:
    assert _checksum("walled", 100_000)


@pytest.mark.parametrize(("layer", "inputs"), [("checked", 10_000), ("python", 1_200)])
def test_compiled_checked_and_interpreted_kernels_say_the_same(layer: str, inputs: int) -> None:
    with ThreadPoolExecutor(2) as pool:
        compiled, other = pool.map(_checksum, ("walled", layer), (inputs, inputs))
    assert compiled == other
