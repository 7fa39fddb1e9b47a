"""`python -m sitegen FOLDER`: writes what the builder of the site reads, `mkdocs.yml` and a folder of pages."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from sitegen import commands, examples, pictures, sources

ROOT = Path(__file__).parent.parent
_HERE = Path(__file__).parent
_COMMANDS = "reference/commands"
_PYTHON = "reference/python/"
_ALONE = ("index.md", "tutorial.md", "benchmarks.md")
"""Pages that have no neighbours to show beside them."""
_TITLE = re.compile(r"^# (.+)$", re.M)
_NAME = re.compile(r"^::: \S+$", re.M)
_NAV = re.compile(r"^( *)- Commands: \[\].*$", re.M)


def main() -> int:
    """Write everything into the folder that is named. What an earlier run wrote there goes first."""
    folder = Path(sys.argv[1])
    if folder.exists():
        if not folder.joinpath("mkdocs.yml").is_file():
            print(f"error: {folder} is not from an earlier run: name another folder", file=sys.stderr)
            return 2
        shutil.rmtree(folder)
    pages = folder / "docs"
    shutil.copytree(ROOT / "docs", pages)
    shutil.copytree(ROOT / "bench" / "plots", pages / "bench" / "plots")
    shutil.copy(_HERE / "site.css", pages)
    themed = _draw(pages)
    made = {f"{_COMMANDS}/{name}.md": commands.page(name) for name in commands.names()}
    made[f"{_COMMANDS}/index.md"] = commands.overview()
    made |= {page: ROOT.joinpath(source).read_text(encoding="utf-8") for page, source in sources.ELSEWHERE.items()}
    made["examples.md"] = examples.page(ROOT / "examples")
    for path, text in made.items():
        pages.joinpath(path).parent.mkdir(parents=True, exist_ok=True)
        pages.joinpath(path).write_text(text, encoding="utf-8")
    titles = {
        page.relative_to(pages).as_posix(): title[1].replace("`", "")
        for page in pages.rglob("*.md")
        if (title := _TITLE.search(page.read_text(encoding="utf-8")))
    }
    for page in sorted(pages.rglob("*.md")):
        name = page.relative_to(pages).as_posix()
        text = page.read_text(encoding="utf-8")
        if name in _ALONE:
            text = "---\nhide: [navigation]\n---\n\n" + text
        if name.startswith(_PYTHON):
            text = _below_headings(text)
        page.write_text(sources.relinked(text, name, themed, titles), encoding="utf-8")
    settings = _with_commands(_HERE.joinpath("mkdocs.yml").read_text(encoding="utf-8"))
    folder.joinpath("mkdocs.yml").write_text(settings.replace("$ROOT", str(ROOT)), encoding="utf-8")
    return 0


def _draw(pages: Path) -> frozenset[str]:
    """Write each picture that follows the system for light and for dark. Returns which these are."""
    themed = set()
    for picture in sorted(pages.rglob("*.svg")):
        for theme, svg in pictures.themes(picture.read_text(encoding="utf-8")).items():
            picture.with_suffix(f".{theme}.svg").write_text(svg, encoding="utf-8")
            themed.add(picture.relative_to(pages).as_posix())
    return frozenset(themed)


def _below_headings(text: str) -> str:
    """Names of the reference that stand below a heading get headings of the next level."""
    before, heading, after = text.partition("\n## ")
    return before + heading + _NAME.sub(r"\g<0>\n    options:\n      heading_level: 3", after)


def _with_commands(text: str) -> str:
    """Add the pages of commands to the navigation."""

    def entries(match: re.Match[str]) -> str:
        pages = [f"{_COMMANDS}/index.md", *(f"ottla {name}: {_COMMANDS}/{name}.md" for name in commands.names())]
        return "\n".join([f"{match[1]}- Commands:", *(f"{match[1]}    - {page}" for page in pages)])

    return _NAV.sub(entries, text)


if __name__ == "__main__":
    sys.exit(main())
