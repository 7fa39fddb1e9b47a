"""What the programs of a page import is installed by a line of the page: its reader has only what it says."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from tests.docs.pages import blocks
from tests.docs.selection import PAGES, ROOT

_INSTALL = re.compile(r"pip install ([^`\n#]+)")
_OTTLA = re.compile(r"ottla(?:\[(?P<extras>[a-z,]+)\])?")
_NAME = re.compile(r"[a-z0-9-]+")
_EXAMPLES = tuple(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "examples").rglob("*.py")))


def _imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


@cache
def _owners() -> Mapping[str, list[str]]:
    """The distributions of each top-level module. Looking through all of them takes half a second."""
    return packages_distributions()


def _brought(extras: set[str]) -> set[str]:
    """The distributions that `ottla` with these extras brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    chosen = extras - {"all"} if "all" not in extras else optional.keys() - {"all"}
    required = [*project["dependencies"], *(line for extra in chosen for line in optional[extra])]
    return {found[0] for line in required if (found := _NAME.match(line))}


def _installed(text: str) -> set[str]:
    words = {word.strip("'\"") for line in _INSTALL.findall(text) for word in line.split()}
    ottlas = [found for word in words if (found := _OTTLA.fullmatch(word))]
    return words | _brought({extra for found in ottlas for extra in (found["extras"] or "").split(",") if extra})


def _missing(sources: list[str], text: str, own: set[str]) -> set[str]:
    """The top-level modules that are imported and not installed."""
    names = {name.partition(".")[0] for source in sources for name in _imported(source)}
    names -= sys.stdlib_module_names | own | {"ottla"}
    installed, owners = _installed(text), _owners()
    return {name for name in names if installed.isdisjoint(each.replace("_", "-") for each in owners.get(name, [name]))}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_how_to_install_what_its_programs_import(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    found = blocks(text)
    sources = [each.text for each in found if each.language == "python" or each.title.endswith(".py")]
    assert _missing(sources, text, {Path(each.title).stem for each in found}) == set()


@pytest.mark.parametrize("example", _EXAMPLES)
def test_an_example_says_how_to_install_what_it_imports(example: str) -> None:
    text = (ROOT / example).read_text(encoding="utf-8")
    beside = {path.stem for path in (ROOT / example).parent.glob("*.py")}
    assert _missing([text], text, beside) == set()
