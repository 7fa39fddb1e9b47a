"""Which pages are run, and which are not converted to the convention yet."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = tuple(
    path.relative_to(ROOT).as_posix()
    for path in (
        ROOT / "README.md",
        ROOT / "SECURITY.md",
        ROOT / "bench/README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "examples").rglob("README.md")),
    )
)
MOST_NOT_RUN = 20
"""How many blocks of all pages together may be marked as not run."""
