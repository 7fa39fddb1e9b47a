"""The table of a fleet's settings in docs/fleet.md, from the code: `python -m tests.engines.fleet.settings_table`."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from pathlib import Path

from ottla.engines.fleet.planning import Units
from ottla.engines.fleet.units import Charter

PAGE = Path(__file__).parents[3] / "docs" / "fleet.md"
BEGIN, END = "<!-- settings -->\n", "<!-- end of settings -->"


def table() -> str:
    """A row for each field that a user sets, with what stands below it in the code."""
    rows = ["| setting | default | |", "| --- | --- | --- |"]
    for kind in (Units, Charter):
        said = _said(kind)
        rows += [
            f"| `{kind.__name__}({field.name}=...)` | `{field.default!r}` | {said[field.name]} |"
            for field in dataclasses.fields(kind)
            if field.name in said
        ]
    return "\n".join(rows) + "\n"


def _said(kind: type) -> dict[str, str]:
    (definition,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    said = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(field.target, ast.Name):
            assert isinstance(text.value, ast.Constant)
            said[field.target.id] = " ".join(str(text.value.value).split())
    return said


def written() -> str:
    """What the page has."""
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0].strip() + "\n"


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}")
