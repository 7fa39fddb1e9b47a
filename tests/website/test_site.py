"""The documentation site: it builds strictly, nothing in it leads nowhere, and its reference has everything public."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from html import unescape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest
from sitegen import commands, pictures, sources
from sitegen.built import Page, problems

import ottla
from ottla.cli import cli

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
MADE_ELSEWHERE = {
    *("BulkDelivery", "Transaction", "Unit", "Lake", "ArchiveQuery", "Attempts", "Connection", "Pending", "Store"),
    *("RunFiles", "GroupAdmin"),
}
"""Classes whose objects users get from other calls."""
SPARKS_OWN = ("ottla.spark.OttlaSource.", "ottla.spark.LagListener.")
"""What Spark calls, with its own arguments."""
INTERNAL = ("ottla.cli", "ottla.plan")
"""Packages with names of their own that are not for users."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_spec("mkdocs") is None or find_spec("mkdocstrings") is None:
        pytest.skip("what builds the site is not installed: `uv sync --group docs`, or `make docs`")
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    _run([sys.executable, "-m", "sitegen", str(folder / "source")], environment)
    settings = ["--config-file", str(folder / "source/mkdocs.yml"), "--site-dir", str(folder / "site")]
    _run([sys.executable, "-m", "mkdocs", "build", "--strict", *settings], environment)
    return folder / "site"


def _run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_link_leads_somewhere_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    assert list(problems(site)) == []


def test_the_check_finds_what_is_wrong(tmp_path: Path) -> None:
    page = """<h1 id="top"></h1><a href="#top">1</a><a href="#none">2</a><a href="gone.html">3</a>
    <a href="https://example.org">4</a><img src="//cdn.example.org/a.png"><script src="https://example.org/a.js"></script>
    <style>@import "https://example.org/a.css"; b { background: url(data:x) }</style>"""
    tmp_path.joinpath("index.html").write_text(page)
    tmp_path.joinpath("a.css").write_text("@font-face { src: url('https://example.org/font') }")
    assert list(problems(tmp_path)) == [
        "index.html: loads //cdn.example.org/a.png",
        "index.html: loads https://example.org/a.js",
        "index.html: loads https://example.org/a.css",
        "index.html: #none leads to a page without that anchor",
        "index.html: gone.html leads nowhere",
        "a.css: loads https://example.org/font",
    ]


def test_every_public_name_is_on_the_reference(site: Path) -> None:
    shown = _anchors(site)
    named = {name: _value(name) for name in shown if name.startswith("ottla.")}
    values = [id(value) for value in named.values() if not isinstance(value, int | str | tuple)]
    missing = [name for name in _public() if name not in shown and id(_value(name)) not in values]
    assert missing == []


def test_every_name_that_a_page_imports_is_on_the_reference(site: Path) -> None:
    shown = _anchors(site)
    values = {id(_value(name)) for name in shown if name.startswith("ottla.")}
    imported = {name for page in _pages() for name in _imported(page.read_text(encoding="utf-8"))}
    assert len(imported) > 30
    assert [name for name in sorted(imported) if name not in shown and id(_value(name)) not in values] == []


def test_every_command_is_on_the_reference_with_all_of_its_options(site: Path) -> None:
    count = 0
    for name in commands.names():
        text = unescape(re.sub(r"<[^>]+>", "", (site / f"reference/commands/{name}.html").read_text(encoding="utf-8")))
        for path, command in _commands(name):
            assert path in text
            for parameter in command.params:
                if not getattr(parameter, "hidden", False) and isinstance(parameter, click.Option):
                    assert parameter.opts[0] in text, (path, parameter.opts)
                    count += 1
    assert count > 300


def test_every_argument_of_a_public_name_is_explained() -> None:
    """In the docstring, beside a field, or with the arguments that many calls share."""
    shared = _shared()
    assert {"bootstrap", "timeout", "security"} <= shared
    unexplained = []
    for name in _public():
        value = _value(name)
        if inspect.isclass(value) and not issubclass(value, BaseException) and not name.startswith("ottla.events."):
            methods = [(method, getattr(value, method)) for method in vars(value) if not method.startswith("_")]
            # `acommit` takes what `commit` takes, and has its name.
            for method in [each for own, each in methods if inspect.isfunction(each) and each.__name__ == own]:
                unexplained += _unexplained(f"{name}.{method.__name__}", method, _doc(method) + _doc(value), shared)
            is_made_here = value.__name__ not in MADE_ELSEWHERE and not hasattr(value, "__dataclass_fields__")
            if "__init__" in vars(value) and is_made_here:
                texts = _doc(value) + _doc(value.__init__)
                unexplained += _unexplained(name, value.__init__, texts, shared)
        elif inspect.isfunction(value):
            unexplained += _unexplained(name, value, _doc(value), shared)
    assert [argument for argument in unexplained if not argument.startswith(SPARKS_OWN)] == []


def test_a_picture_becomes_one_for_each_theme() -> None:
    dark = "@media (prefers-color-scheme:dark){.a{fill:#000}.b{fill:#111}}"
    assert pictures.themes(f"<style>.a{{fill:#fff}}{dark}</style>") == {
        "light": "<style>.a{fill:#fff}</style>",
        "dark": "<style>.a{fill:#fff}.a{fill:#000}.b{fill:#111}</style>",
    }
    assert pictures.themes("<svg/>") == {}


def test_links_out_of_the_pages_lead_to_the_site_or_become_text() -> None:
    text = "[a](../bench/README.md#x) [b](../tests/brokers.py) ![c](pictures/flow.svg) `[d](e)`\n```\n[f](g.md)\n```"
    assert sources.relinked(text, "index.md", frozenset({"pictures/flow.svg"})) == (
        "[a](benchmarks.md#x) b ![c](pictures/flow.light.svg#only-light)![c](pictures/flow.dark.svg#only-dark)"
        " `[d](e)`\n```\n[f](g.md)\n```"
    )
    programs = "[i](../examples/etl.py) [j](../examples/data/orders.csv) [k](../examples)"
    assert sources.relinked(programs, "fleet.md", frozenset()) == (
        "[i](examples.md#etl-py) [j](examples.md) [k](examples.md)"
    )
    assert sources.relinked("[h](docs/trust.md)", "project/security.md", frozenset()) == "[h](../trust.md)"
    titles = {"trust.md": "What to trust"}
    assert sources.relinked("[trust.md](trust.md#x)", "fleet.md", frozenset(), titles) == "[What to trust](trust.md#x)"


@cache
def _anchors(site: Path) -> set[str]:
    pages = (site / "reference/python").glob("*.html")
    return {anchor for page in pages for anchor in Page(page.read_text(encoding="utf-8")).ids}


@cache
def _public() -> list[str]:
    """Every name in `__all__` of a package."""
    found = []
    source = Path(ottla.__file__).parent
    for path in sorted(source.rglob("__init__.py")):
        package = ".".join(("ottla", *path.parent.relative_to(source).parts))
        if package not in INTERNAL and "__all__" in path.read_text(encoding="utf-8"):
            found += [f"{package}.{name}" for name in importlib.import_module(package).__all__]
    assert len(found) > 200
    return found


def _value(name: str) -> Any:
    """What a dotted name of a module, a class or one of its members stands for; None if it is a field."""
    module, parts = name, list[str]()
    while True:
        try:
            value: Any = importlib.import_module(module)
            break
        except ModuleNotFoundError:
            module, _, part = module.rpartition(".")
            parts.insert(0, part)
    for part in parts:
        value = getattr(value, part, None)
    return value


def _pages() -> Iterator[Path]:
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))


def _imported(text: str) -> Iterator[str]:
    for module, names in re.findall(r"^ *from (ottla[\w.]*) import \(?([\w, ]+)", text, re.M):
        yield from (f"{module}.{name.split(' as ')[0].strip()}" for name in names.split(",") if name.strip())


def _commands(name: str) -> Iterator[tuple[str, click.Command]]:
    def below(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
        yield path, command
        if isinstance(command, click.Group):
            for each in command.list_commands(click.Context(command)):
                subcommand = command.get_command(click.Context(command), each)
                if subcommand and not subcommand.hidden:
                    yield from below(subcommand, f"{path} {each}")

    command = cli.get_command(click.Context(cli), name)
    assert command
    yield from below(command, f"ottla {name}")


def _shared() -> set[str]:
    page = (ROOT / "docs/reference/python/index.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?`) \|", page[page.index("## Arguments") :], re.M)
    return {name for row in rows for name in re.findall(r"\w+", row)}


def _doc(value: Any) -> str:
    return inspect.getdoc(value) or ""


def _unexplained(name: str, call: Any, doc: str, shared: set[str]) -> list[str]:
    """The arguments that a docstring does not name, with their own name or in plain words: `max_bytes`, "max bytes"."""
    parameters = [
        parameter.name
        for parameter in inspect.signature(call).parameters.values()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    said = {word.rstrip("s") for word in re.findall(r"[a-z]+", doc.lower())}
    return [
        f"{name}({each})"
        for each in parameters
        if each not in {"self", "cls", *shared} and not said.issuperset(word.rstrip("s") for word in each.split("_"))
    ]
