"""The README tells the truth: its programs run and print what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text()
PROGRAM_AND_OUTPUT = re.compile(r"```python\n(.*?)```\n+```\n(.*?)```", re.S)


def _run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_STATE_HOME": str(folder)}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)


def test_there_are_two_programs_with_their_output() -> None:
    assert len(PROGRAM_AND_OUTPUT.findall(README)) == 2


@pytest.mark.broker
def test_the_example_prints_what_the_readme_says(tmp_path: Path) -> None:
    program, output = PROGRAM_AND_OUTPUT.findall(README)[0]
    done = _run(program, tmp_path)
    assert done.stderr == ""
    assert done.stdout == output


def test_the_failing_example_fails_as_the_readme_says(tmp_path: Path) -> None:
    program, output = PROGRAM_AND_OUTPUT.findall(README)[1]
    done = _run(program, tmp_path)
    assert done.returncode == 1
    assert _without_numbers(done.stderr).endswith(_without_numbers(output))


def _without_numbers(text: str) -> str:
    """Times and tries differ from run to run; addresses, reasons and advice do not."""
    return re.sub(r"\d+\.\d s|tried \d+ times", "?", text)


def test_every_page_that_is_linked_exists() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (Path(__file__).parents[2] / target).exists(), target
