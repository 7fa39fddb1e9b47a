"""The README is true: its programs run and print what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text()
PROGRAM_AND_OUTPUT = re.compile(r"```python\n((?:(?!```).)*)```\n+```\n(.*?)```", re.S)


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
    expected = _without_chance(output)
    assert _without_chance("\n".join(done.stderr.splitlines()[-len(expected) :])) == expected


def _without_chance(text: str) -> list[str]:
    """Times, tries and the order of addresses differ from run to run; addresses, reasons and advice do not."""
    return sorted(re.sub(r"\d+\.\d s|tried \d+ times", "?", text).splitlines())


def test_every_page_that_is_linked_exists() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (Path(__file__).parents[2] / target).exists(), target
