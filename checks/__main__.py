"""`python -m checks`: prints what is wrong and ends with 1, or says nothing."""

from __future__ import annotations

import sys

from checks import budgets, links, words

ROOMS = tuple(sorted(path.name for path in budgets.SOURCE.iterdir() if path.suffix in ("", ".py")))
PAGES = ("README.md", "DESIGN.md", *(f"docs/{page.name}" for page in sorted((words.ROOT / "docs").glob("*.md"))))
LINKING = tuple(
    page.relative_to(words.ROOT).as_posix()
    for pattern in ("*.md", "bench/*.md", "docs/**/*.md", "examples/**/*.md")
    for page in sorted(words.ROOT.glob(pattern))
)


def main() -> int:
    """Runs all checks."""
    problems = [*budgets.problems(), *words.problems(ROOMS, PAGES), *links.problems(words.ROOT, LINKING)]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
