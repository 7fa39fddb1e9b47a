"""`python -m checks`: prints what is wrong and ends with 1, or says nothing."""

from __future__ import annotations

import itertools
import sys

from checks import budgets, words

ROOMS: tuple[str, ...] = ()
"""Rooms of `src/ottla` whose texts were edited and stay so."""
PAGES: tuple[str, ...] = ()


def main() -> int:
    """Runs all checks."""
    count = 0
    for count, problem in enumerate(itertools.chain(budgets.problems(), words.problems(ROOMS, PAGES)), 1):
        print(problem, file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
