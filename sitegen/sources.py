"""Where pages of the site come from that are no files of `docs/`, and what their links lead to.

Paths of the repository and of the site come in, Markdown goes out. It reads no file and knows nothing of mkdocs.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping

from sitegen import examples

ELSEWHERE = {
    "benchmarks.md": "bench/README.md",
    "examples.md": "examples/README.md",
    "project/changes.md": "CHANGELOG.md",
    "project/contributing.md": "CONTRIBUTING.md",
    "project/design.md": "DESIGN.md",
    "project/security.md": "SECURITY.md",
}
"""Pages of the site whose source is outside of `docs/`, with their sources."""

_PAGES = {source: page for page, source in ELSEWHERE.items()}
_PAGES["README.md"] = "index.md"
_PAGES["src/ottla/cli"] = "reference/commands/index.md"  # the pages that are made from it
_FENCE = re.compile(r"^ {0,3}(```+|~~~+)")
_CODE = re.compile(r"(`+[^`]*`+)")
_LINK = re.compile(r"(!?)\[((?:[^\]\[]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FILE = re.compile(r"[\w./-]+\.md")
_EXTERNAL = re.compile(r"[a-z]+:|#|/")


def source_of(page: str) -> str:
    """Return the path in the repository of a page of the site."""
    return ELSEWHERE.get(page, f"docs/{page}")


def site_path(source: str) -> str | None:
    """Return the path in the site of a file of the repository, with its place on a page; None if it is not there."""
    if source in _PAGES:
        return _PAGES[source]
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    if source.startswith("bench/plots/"):
        return source
    if source.startswith("examples"):
        return f"examples.md#{examples.anchor(source)}" if examples.is_shown(source) else "examples.md"
    return None


def relinked(markdown: str, page: str, themed: frozenset[str], titles: Mapping[str, str] | None = None) -> str:
    """Return the page with links that work in the site.

    A link to a file that is not in the site becomes its text. A picture of `themed`, paths in the site, becomes two of
    which the page shows one: that for light or that for dark. The name of a file as the text of a link becomes the
    title of its page; `titles` has them by paths in the site.
    """
    folder = posixpath.dirname(source_of(page))

    def relinked_link(match: re.Match[str]) -> str:
        is_picture, text, target = match.groups()
        if _EXTERNAL.match(target):
            return match[0]
        path, hash_mark, anchor = target.partition("#")
        destination = site_path(posixpath.normpath(posixpath.join(folder, path)))
        if destination is None:
            return text
        destination, added, place = destination.partition("#")
        hash_mark, anchor = (added, place) if added else (hash_mark, anchor)
        if _FILE.fullmatch(text):
            text = (titles or {}).get(destination, text)
        relative = posixpath.relpath(destination, posixpath.dirname(page) or ".")
        if is_picture and destination in themed:
            light, dark = (relative.replace(".svg", f".{theme}.svg") for theme in ("light", "dark"))
            return f"![{text}]({light}#only-light)![{text}]({dark}#only-dark)"
        return f"{is_picture}[{text}]({relative}{hash_mark}{anchor})"

    def changed(line: str) -> str:
        if line.startswith("|"):  # a pipe in code is escaped for tables of GitHub, but not for those of Python-Markdown
            line = _CODE.sub(lambda match: match[0].replace(r"\|", "|"), line)
        return _LINK.sub(relinked_link, line)

    return "\n".join(changed(line) if is_prose else line for line, is_prose in _lines(markdown))


def _lines(markdown: str) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it is outside of code blocks."""
    fence = ""
    for line in markdown.split("\n"):
        match = _FENCE.match(line)
        if match and (not fence or match[1].startswith(fence)):
            fence = "" if fence else match[1]
            yield line, False
        else:
            yield line, not fence
