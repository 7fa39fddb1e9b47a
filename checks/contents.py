"""Whether wheel and sdist contain what they need: `python -m checks.contents FOLDER`, the last step of `make dist`.

A wheel has the two packages and nothing else, an sdist what a distributor builds, tests and documents from. The readme
in their metadata has no link that is dead outside of a checkout.
"""

from __future__ import annotations

import email.parser
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SDIST = (
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "DESIGN.md", "LICENSE", "SECURITY.md", "Makefile", "uv.lock"),
    *("pyproject.toml", "PKG-INFO", "src/ottla/py.typed", "src/pyspark_ottla/py.typed", "tests/conftest.py"),
    *("bench/README.md", "bench/__main__.py", "checks/__main__.py", "screens/__main__.py", "sitegen/mkdocs.yml"),
    "docs/pictures/flow.svg",
)
_RELATIVE = re.compile(r"\]\((?!https?:|#)")


def problems(folder: Path) -> Iterator[str]:
    """What is wrong with the one wheel and the one sdist in a folder."""
    wheels, sdists = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    if len(wheels) != 1 or len(sdists) != 1:
        yield f"{folder}: one wheel and one sdist are expected, not {len(wheels)} and {len(sdists)}"
        return
    yield from wheel_problems(wheels[0])
    yield from _sdist(sdists[0])


def wheel_problems(path: Path) -> Iterator[str]:
    """What a wheel lacks, and what it has too much."""
    with zipfile.ZipFile(path) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        information = next(name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(information).decode()
    folder = information.partition("/")[0]
    source = {
        file.relative_to(ROOT / "src").as_posix()
        for file in (ROOT / "src").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    expected = source | {f"{folder}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt")}
    expected.add(f"{folder}/licenses/LICENSE")
    yield from (f"{path.name}: {name} is missing" for name in sorted(expected - names))
    yield from (f"{path.name}: {name} does not belong there" for name in sorted(names - expected))
    yield from _metadata(path, metadata)


def _sdist(path: Path) -> Iterator[str]:
    with tarfile.open(path) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
        top = path.name.removesuffix(".tar.gz")
        stream = archive.extractfile(f"{top}/PKG-INFO")
        metadata = stream.read().decode() if stream else ""
    expected = {*SDIST, *(page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").rglob("*.md"))}
    yield from (f"{path.name}: {name} is missing" for name in sorted(expected - names))
    unwanted = re.compile(r"(^|/)(\.venv|\.git|__pycache__|\.hypothesis|dist)/|\.py[co]$")
    yield from (f"{path.name}: {name} does not belong there" for name in sorted(names) if unwanted.search(name))
    yield from _metadata(path, metadata)


def _metadata(path: Path, text: str) -> Iterator[str]:
    message = email.parser.Parser().parsestr(text)
    if f"-{message['Version']}" not in path.name:
        yield f"{path.name}: the metadata says version {message['Version']}"
    if "fingerprint" not in message.get_payload():
        yield f"{path.name}: the metadata has no readme"
    if _RELATIVE.search(str(message.get_payload())):
        yield f"{path.name}: the readme has links that are dead on a package index"


def main() -> int:
    """Check the folder that is named."""
    found = list(problems(Path(sys.argv[1])))
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
