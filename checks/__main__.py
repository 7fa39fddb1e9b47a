"""`python -m checks`: prints what is wrong and ends with 1, or says nothing."""

from __future__ import annotations

import sys

from checks import budgets, links, words

ROOMS = tuple(sorted(path.name for path in budgets.SOURCE.iterdir() if path.suffix in ("", ".py")))


def _pages(*patterns: str) -> tuple[str, ...]:
    found = (page for pattern in patterns for page in sorted(words.ROOT.glob(pattern)))
    return tuple(page.relative_to(words.ROOT).as_posix() for page in found)


PAGES = _pages("README.md", "DESIGN.md", "docs/**/*.md")
LINKING = _pages("*.md", "bench/*.md", "docs/**/*.md", "examples/**/*.md")


def main() -> int:
    """Runs all checks."""
    problems = [*budgets.problems(), *words.problems(ROOMS, PAGES), *links.problems(words.ROOT, LINKING)]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
