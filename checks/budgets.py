"""How large a module, a class, a function and a constructor may be, and which ones may be larger, and why.

A budget is a sign, not a crime: whoever exceeds it looks for the second idea first. What stays larger is listed here
with its reason, and with its size: it may shrink, and then the row must follow.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parent.parent / "src" / "ottla"
MODULE_LINES = 450
CLASS_METHODS = 20
FUNCTION_LINES = 80
CONSTRUCTOR_PARAMETERS = 12


class Size(NamedTuple):
    """Something that is larger than its budget."""

    what: str
    """`module:NAME`, `class:MODULE:NAME`, ..., as in `EXCEPTIONS`."""
    size: int
    budget: int


EXCEPTIONS: dict[str, str] = {}
"""What may exceed its budget, and why."""


def sizes(root: Path = SOURCE) -> Iterator[Size]:
    """Everything that exceeds its budget."""
    for path in sorted(root.rglob("*.py")):
        module = path.relative_to(root).with_suffix("").as_posix().replace("/", ".")
        text = path.read_text(encoding="utf-8")
        yield from _over(f"module:{module}", text.count("\n"), MODULE_LINES)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                yield from _class(module, node)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                yield from _over(f"function:{module}:{node.name}", lines, FUNCTION_LINES)


def _class(module: str, node: ast.ClassDef) -> Iterator[Size]:
    methods = [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
    yield from _over(f"class:{module}:{node.name}", len(methods), CLASS_METHODS)
    for method in methods:
        if method.name == "__init__":
            parameters = len(method.args.args) + len(method.args.kwonlyargs) - 1
            yield from _over(f"constructor:{module}:{node.name}", parameters, CONSTRUCTOR_PARAMETERS)


def _over(what: str, size: int, budget: int) -> Iterator[Size]:
    if size > budget:
        yield Size(what, size, budget)


def problems() -> Iterator[str]:
    """What exceeds its budget and is not listed, and what is listed and does not."""
    seen = set()
    for what, size, budget in sizes():
        seen.add(what)
        if what not in EXCEPTIONS:
            yield f"{what} has {size}, the budget is {budget}: look for the second idea in it, or list it in {__file__}"
    for what in sorted(EXCEPTIONS.keys() - seen):
        yield f"{what} is within its budget now: remove it from EXCEPTIONS in {__file__}"
