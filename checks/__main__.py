"""`python -m checks`: prints what is wrong and ends with 1, or says nothing."""

from __future__ import annotations

import sys

from checks import budgets, words

ROOMS: tuple[str, ...] = ()
"""Rooms of `src/ottla` whose texts were edited and stay so."""
PAGES: tuple[str, ...] = ()


def main() -> int:
    """Runs all checks."""
    problems = [*budgets.problems(), *words.problems(ROOMS, PAGES)]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
