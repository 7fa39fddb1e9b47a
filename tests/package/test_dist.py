"""`make dist`: what packages contain, and when it refuses to build them."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from checks import contents, release
from tests.package.environments import ROOT

from ottla import __version__
from ottla._lazy import EXTRAS

CHANGELOG = "# Changelog\n\n## {first}\n\n- something\n\n## 0.1.0 - 2026-01-31\n"


def _build(folder: Path, target: str, source: Path = ROOT) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=source, capture_output=True, check=True)
    return next(folder.glob("*.whl" if target == "wheel" else "*.tar.gz"))


def test_wheel_and_sdist_contain_what_they_need(tmp_path: Path) -> None:
    wheel, sdist = _build(tmp_path, "wheel"), _build(tmp_path, "sdist")
    assert list(contents.problems(tmp_path)) == []
    assert wheel.name == f"ottla-{__version__}-py3-none-any.whl"
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    again = _build(tmp_path / "again", "wheel", tmp_path / "unpacked" / sdist.name.removesuffix(".tar.gz"))
    with zipfile.ZipFile(wheel) as ours, zipfile.ZipFile(again) as theirs:
        assert {name: ours.read(name) for name in ours.namelist()} == {n: theirs.read(n) for n in theirs.namelist()}


def test_a_package_that_lacks_something_is_refused(tmp_path: Path) -> None:
    wheel = _build(tmp_path, "wheel")
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(tmp_path / "part.whl", "w") as part:
        for name in whole.namelist():
            if not name.endswith("py.typed"):
                part.writestr(name, whole.read(name))
        part.writestr("ottla/notes.txt", "")
    wheel.unlink()
    (tmp_path / "part.whl").rename(wheel)
    found = contents.wheel_problems(wheel)
    assert {problem.partition(": ")[2] for problem in found} == {
        "ottla/py.typed is missing",
        "pyspark_ottla/py.typed is missing",
        "ottla/notes.txt does not belong there",
    }


def test_version_and_changelog_of_this_checkout_agree() -> None:
    assert release.version((ROOT / "src/ottla/_version.py").read_text()) == __version__
    assert list(release.problems(__version__, (ROOT / "CHANGELOG.md").read_text(), tags=None)) == []


@pytest.mark.parametrize(
    ("version", "first", "tags"),
    [
        ("0.2.0.dev0", "Unreleased", []),
        ("0.2.0", "0.2.0 - 2026-02-28", ["v0.2.0"]),
        ("0.2.0", "0.2.0 - 2026-02-28", ["v0.2.0", "good"]),
        ("0.2.0", "0.2.0 - 2026-02-28", None),
    ],
)
def test_what_agrees(version: str, first: str, tags: list[str] | None) -> None:
    assert list(release.problems(version, CHANGELOG.format(first=first), tags)) == []


@pytest.mark.parametrize(
    ("version", "first", "tags", "problem"),
    [
        ("0.2.0.dev0", "0.2.0 - 2026-02-28", [], "CHANGELOG.md begins with '## Unreleased'"),
        ("0.1.0.dev3", "Unreleased", [], "has that release already"),
        ("0.2.0.dev0", "Unreleased", ["v0.2.0"], "has the tag v0.2.0"),
        ("0.2.0", "Unreleased", ["v0.2.0"], "CHANGELOG.md begins with '## 0.2.0 - YYYY-MM-DD'"),
        ("0.2.0", "0.2.0 - 2026-02-28", [], "the commit has the tag v0.2.0"),
        ("0.2.0", "0.2.0 - 2026-02-28", ["v0.3.0"], "the commit has the tag v0.2.0"),
        ("0.2.0", "0.2.0 - 2026-02-30", ["v0.2.0"], "is not '## X.Y.Z - YYYY-MM-DD'"),
        ("0.0.9", "0.0.9 - 2026-02-28", ["v0.0.9"], "newest first"),
    ],
)
def test_what_disagrees(version: str, first: str, tags: list[str], problem: str) -> None:
    assert problem in "\n".join(release.problems(version, CHANGELOG.format(first=first), tags))


def test_the_extra_all_is_all_extras_and_each_is_known_for_errors() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras.pop("all") == [f"ottla[{','.join(sorted(extras))}]"]
    assert set(EXTRAS) == set(extras)


def test_every_supported_python_is_in_the_workflow() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    pythons = [name.rpartition(" ")[2] for name in classifiers if ":: 3." in name]
    matrix = ", ".join(f'"{python}"' for python in pythons)
    assert f"python: [{matrix}]" in (ROOT / ".github/workflows/tests.yml").read_text()
