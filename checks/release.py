"""Whether version, tag and changelog agree: `python -m checks.release`, the first step of `make dist`.

The version is in `src/ottla/_version.py` and nowhere else. A version with `.dev` belongs to an `Unreleased` heading and
no tag, any other to a heading with its number and a day, and to its tag on the commit that is built.
"""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
_VERSION = re.compile(r'^VERSION = "(\d+\.\d+\.\d+(?:\.dev\d+)?)"$', re.M)
_HEADING = re.compile(r"^## (.+)$", re.M)
_RELEASE = re.compile(r"(\d+\.\d+\.\d+) - (\d{4}-\d\d-\d\d)")


def version(source: str) -> str:
    """The version in the text of `_version.py`."""
    match = _VERSION.search(source)
    if match is None:
        raise SystemExit('src/ottla/_version.py: there is no line VERSION = "X.Y.Z" or "X.Y.Z.devN"')
    return match[1]


def problems(version: str, changelog: str, tags: Sequence[str] | None) -> Iterator[str]:
    """What disagrees. `tags` are those of the commit, or None outside of a repository."""
    headings = _HEADING.findall(changelog)
    releases = [heading for heading in headings if heading != "Unreleased"]
    days = []
    for heading in releases:
        match = _RELEASE.fullmatch(heading)
        if match is None or not _is_day(match[2]):
            yield f"CHANGELOG.md: '## {heading}' is not '## X.Y.Z - YYYY-MM-DD'"
        else:
            days.append((tuple(map(int, match[1].split("."))), match[2]))
    if days != sorted(days, reverse=True):
        yield "CHANGELOG.md: releases stand newest first"
    versions = {tag.removeprefix("v") for tag in tags or () if re.fullmatch(r"v\d.*", tag)}
    if ".dev" in version:
        if headings[:1] != ["Unreleased"]:
            yield f"{version} is not a release: CHANGELOG.md begins with '## Unreleased'"
        if any(heading.startswith(version.partition(".dev")[0] + " ") for heading in releases):
            yield f"{version}: CHANGELOG.md has that release already; raise the version in src/ottla/_version.py"
        if versions:
            yield f"the commit has the tag v{min(versions)}, but src/ottla/_version.py says {version}"
    else:
        if not headings or not headings[0].startswith(f"{version} - "):
            yield f"{version} is a release: CHANGELOG.md begins with '## {version} - YYYY-MM-DD'"
        if tags is not None and versions != {version}:
            yield f"{version} is a release: the commit has the tag v{version} and no other (git tag v{version})"


def _is_day(text: str) -> bool:
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _tags() -> list[str] | None:
    if not (ROOT / ".git").exists():
        return None
    command = ["git", "tag", "--points-at", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()  # noqa: S603


def main() -> int:
    """Print what disagrees."""
    here = version((ROOT / "src/ottla/_version.py").read_text(encoding="utf-8"))
    found = list(problems(here, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), _tags()))
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
