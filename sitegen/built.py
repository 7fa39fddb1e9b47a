"""Whether the built site is whole: `python -m sitegen.built site`, the last step of `make docs`.

A folder of HTML comes in, what is wrong goes out: links and anchors that lead nowhere, and whatever a browser would
load from elsewhere.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADS = {
    ("script", "src"),
    ("link", "href"),
    ("img", "src"),
    ("img", "srcset"),
    ("source", "src"),
    ("source", "srcset"),
    ("iframe", "src"),
    ("video", "src"),
    ("audio", "src"),
    ("object", "data"),
    ("embed", "src"),
}
_STYLE_URL = re.compile(r"""(?:url\(\s*["']?|@import\s+["'])([^"')]+)""")


class Page(HTMLParser):
    """What a page refers to, and what can be referred to in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self._in_style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note ids, links and what is loaded."""
        self._in_style = tag == "style"
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (tag == "a" and name == "name"):
                self.ids.add(value)
            elif tag == "a" and name == "href":
                self.links.append(value)
            elif (tag, name) in _LOADS:
                self.loads.append(value)
            elif name == "style":
                self.loads += _STYLE_URL.findall(value)

    def handle_data(self, data: str) -> None:
        """Note what styles load."""
        if self._in_style:
            self.loads += _STYLE_URL.findall(data)

    def handle_endtag(self, tag: str) -> None:
        """Note the end of a style."""
        self._in_style = False


def problems(site: Path) -> Iterator[str]:
    """What is wrong with the site in a folder."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    if not pages:
        yield f"{site}: no pages"
    for path, page in pages.items():
        place = path.relative_to(site)
        if place.name == "404.html":
            continue  # its links are absolute, because it may be shown in any folder
        yield from (f"{place}: loads {load}" for load in page.loads if _is_elsewhere(load))
        for link in [*page.links, *page.loads]:
            if not urlsplit(link).scheme and not link.startswith("//"):
                yield from (f"{place}: {reason}" for reason in _dead(link, path, pages))
    for style in sorted(site.rglob("*.css")):
        for load in _STYLE_URL.findall(style.read_text(encoding="utf-8")):
            if _is_elsewhere(load):
                yield f"{style.relative_to(site)}: loads {load}"


def _is_elsewhere(load: str) -> bool:
    return load.startswith("//") or urlsplit(load).scheme not in ("", "data")


def _dead(link: str, path: Path, pages: dict[Path, Page]) -> Iterator[str]:
    parts = urlsplit(link)
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.exists():
        yield f"{link} leads nowhere"
    elif (
        parts.fragment
        and target in pages
        and unquote(parts.fragment) not in {*pages[target].ids, "only-light", "only-dark"}
    ):
        yield f"{link} leads to a page without that anchor"


def main() -> int:
    """Check the site that is named."""
    found = list(problems(Path(sys.argv[1]).resolve()))
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
