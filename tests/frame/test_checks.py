"""`python -m checks` holds the source against budgets of size and a list of words, and follows links of documents."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from checks import links

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


def test_a_link_leads_to_a_file_and_to_a_heading_of_it(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.md").write_text(
        '# A `cluster` & more\n\n## Twice\n\n## Twice\n\n<a id="y"></a>\n\n```sh\n# No heading\n```\n'
    )
    (tmp_path / "page.md").write_text(
        "[a](docs/a.md), [folder](docs), [elsewhere](https://example.org/no.md), `[code](no.md)`\n"
        "[b](docs/a.md#a-cluster--more) [c](docs/a.md#twice-1) [d](docs/a.md#y) [e](#here)\n\n# Here\n"
        "```text\n[fenced](no.md)\n```\n"
        '[f](docs/b.md) [g](docs/a.md#twice-2) ![h](no.svg) <img src="none.png">\n'
        "[i](docs/a.md#no-heading) [j](#there)\n"
    )
    assert list(links.problems(tmp_path, ["page.md"])) == [
        "page.md:8: there is no docs/b.md",
        "page.md:8: a.md has no heading #twice-2",
        "page.md:8: there is no no.svg",
        "page.md:8: there is no none.png",
        "page.md:9: a.md has no heading #no-heading",
        "page.md:9: page.md has no heading #there",
    ]
