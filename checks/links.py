"""Links between documents: whether the file and the heading that a link names are there.

Reads Markdown as text. Links to other sites are not followed; what stands in code is no link.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import unquote

_FENCE = re.compile(r"^ *(`{3,}|~{3,})")
_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
_LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|^ {0,3}\[[^\]]+\]:\s+<?(\S+?)>?(?:\s|$)")
_HTML = re.compile(r"<(?:a|img|source)\b[^>]*\b(?:href|src|srcset)=\"([^\"]+)\"")
_HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.*?)\s*#*\s*$")
_NAMED = re.compile(r"<[a-z]+\b[^>]*\b(?:id|name)=\"([^\"]+)\"")
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)


def problems(root: Path, pages: Iterable[str]) -> Iterator[str]:
    """Each dead link of the pages, which are paths from the root, with its line."""
    anchors: dict[Path, frozenset[str]] = {}
    for page in pages:
        path = root / page
        for number, line in _text_lines(path.read_text(encoding="utf-8")):
            for target in _targets(line):
                if problem := _problem(path, target, anchors):
                    yield f"{page}:{number}: {problem}"


def _problem(page: Path, target: str, anchors: dict[Path, frozenset[str]]) -> str | None:
    if _ELSEWHERE.match(target):
        return None
    name, _, anchor = target.partition("#")
    path = (page.parent / unquote(name)).resolve() if name else page.resolve()
    if not path.exists():
        return f"there is no {name}"
    if anchor and path.suffix == ".md":
        if path not in anchors:
            anchors[path] = frozenset(headings(path.read_text(encoding="utf-8")))
        if unquote(anchor) not in anchors[path]:
            return f"{path.name} has no heading #{anchor}"
    return None


def headings(text: str) -> Iterator[str]:
    """The names under which the headings of a page are linked to, as GitHub makes them."""
    seen: dict[str, int] = {}
    for _, line in _text_lines(text, with_code=True):
        yield from _NAMED.findall(line)
        if heading := _HEADING.match(line):
            shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading[1])
            slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
            seen[slug] = seen.get(slug, -1) + 1
            yield f"{slug}-{seen[slug]}" if seen[slug] else slug


def _targets(line: str) -> Iterator[str]:
    for inline, reference in _LINK.findall(line):
        yield inline or reference
    yield from _HTML.findall(line)


def _text_lines(text: str, *, with_code: bool = False) -> Iterator[tuple[int, str]]:
    """Lines outside of fenced blocks, and without the code in them."""
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not line.strip(" `~"):
                fence = ""
        elif mark:
            fence = mark[1]
        else:
            yield number, line if with_code else _CODE.sub("", line)
