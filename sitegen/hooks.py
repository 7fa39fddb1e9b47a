"""What mkdocs calls while it builds the site: see `mkdocs.yml`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from sitegen import commands, pictures, sources

ROOT = Path(__file__).parent.parent
_COMMANDS = "reference/commands"
_PYTHON = "reference/python/"
_NAME = re.compile(r"^::: \S+$", re.M)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages of commands to the navigation."""
    pages = [f"{_COMMANDS}/index.md", *({f"ottla {name}": f"{_COMMANDS}/{name}.md"} for name in commands.names())]
    _fill(config.nav, "Commands", pages)
    return config


def _fill(nav: Any, title: str, pages: list[Any]) -> None:
    for entry in nav:
        for name, below in entry.items() if isinstance(entry, dict) else ():
            if name == title:
                entry[name] = pages
            elif isinstance(below, list):
                _fill(below, title, pages)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is no file of `docs/`."""

    def add(path: str, content: str) -> None:
        files.append(File.generated(config, path, content=content))

    add("site.css", ROOT.joinpath("sitegen", "site.css").read_text(encoding="utf-8"))
    add(f"{_COMMANDS}/index.md", commands.overview())
    for name in commands.names():
        add(f"{_COMMANDS}/{name}.md", commands.page(name))
    for page, source in sources.ELSEWHERE.items():
        add(page, ROOT.joinpath(source).read_text(encoding="utf-8"))
    drawn = {file.src_uri: file.content_string for file in files if file.src_uri.endswith(".svg")}
    for path in sorted((ROOT / "bench" / "plots").glob("*.svg")):
        drawn[f"bench/plots/{path.name}"] = path.read_text(encoding="utf-8")
        add(f"bench/plots/{path.name}", drawn[f"bench/plots/{path.name}"])
    themed = set()
    for name, svg in drawn.items():
        for theme, picture in pictures.themes(svg).items():
            add(name.replace(".svg", f".{theme}.svg"), picture)
            themed.add(name)
    config.extra["themed"] = frozenset(themed)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Make links and pictures work in the site."""
    path = page.file.src_uri
    if path.startswith(_PYTHON):
        markdown = _below_headings(markdown)
    return sources.relinked(markdown, path, config.extra["themed"])


def _below_headings(markdown: str) -> str:
    """Names of the reference that stand below a heading get headings of the next level."""
    before, heading, after = markdown.partition("\n## ")
    return before + heading + _NAME.sub(r"\g<0>\n    options:\n      heading_level: 3", after)
