"""A page with all programs of `examples/`: its introduction, then each file as code.

A folder comes in, Markdown goes out. Data and notebooks are named and not shown.
"""

from __future__ import annotations

from pathlib import Path

_LANGUAGES = {".py": "python", ".sh": "sh", ".toml": "toml", ".c": "c", ".service": "ini", ".socket": "ini"}


def page(folder: Path) -> str:
    """Return the page. Links in the introduction lead to the code below it."""
    parts = [folder.joinpath("README.md").read_text(encoding="utf-8")]
    for path in sorted(folder.rglob("*")):
        if language := _LANGUAGES.get(path.suffix):
            name = path.relative_to(folder).as_posix()
            code = path.read_text(encoding="utf-8")
            parts.append(f"## {name} {{: #{anchor(f'examples/{name}')} }}\n\n````{language}\n{code}````\n")
    return "\n".join(parts)


def anchor(source: str) -> str:
    """Return the place of a file of `examples/` on the page."""
    return source.removeprefix("examples/").replace("/", "-").replace(".", "-")


def is_shown(source: str) -> bool:
    """Whether a file of `examples/` is on the page."""
    return Path(source).suffix in _LANGUAGES
