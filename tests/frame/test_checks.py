"""`python -m checks` holds the source against budgets of size and against words that do not come back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_source_and_the_documents_pass() -> None:
    result = run("-m", "checks")
    assert (result.returncode, result.stderr) == (0, "")


def test_a_banned_word_is_reported_with_its_place() -> None:
    program = (
        "from checks import words; print(*words._found(words.ROOT / 'x.md', 7, 'Nobody reads it anew'), sep='\\n')"
    )
    assert run("-c", program).stdout.splitlines() == [
        "x.md:7: 'nobody': say who does not",
        "x.md:7: 'anew': again",
    ]


def test_a_class_that_is_too_wide_is_reported() -> None:
    program = (
        "import pathlib, tempfile; from checks import budgets\n"
        "folder = pathlib.Path(tempfile.mkdtemp())\n"
        "methods = ''.join(f'    def m{n}(self): ...\\n' for n in range(budgets.CLASS_METHODS + 1))\n"
        "(folder / 'wide.py').write_text('class Wide:\\n' + methods)\n"
        "print(*budgets.sizes(folder))\n"
    )
    assert "class:wide:Wide" in run("-c", program).stdout
