"""What the reference shows beyond docstrings: defaults as values, members of enums, methods for asyncio.

An extension of griffe, which reads the source for the reference without importing it.
"""

from __future__ import annotations

from typing import Any

import griffe

_ENUMS = {"Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"}


class Names(griffe.Extension):
    """Completes what a package says about its names."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Look at everything in a package."""
        _complete(pkg)


def _complete(item: griffe.Module | griffe.Class) -> None:
    for member in item.members.values():
        if member.is_alias:
            continue
        if isinstance(member, griffe.Function):
            _show_defaults(member)
        elif isinstance(member, griffe.Attribute) and isinstance(item, griffe.Class) and member.docstring is None:
            _describe(member, item)
        elif isinstance(member, griffe.Module | griffe.Class):
            _complete(member)


def _show_defaults(function: griffe.Function) -> None:
    """A private name such as `_BUFFERING` says nothing to a reader: show what it is assigned."""
    for parameter in function.parameters:
        constant = function.module.members.get(str(parameter.default))
        if constant is not None and constant.name.startswith("_") and not constant.is_alias:
            parameter.default = getattr(constant, "value", None) or parameter.default


def _describe(attribute: griffe.Attribute, owner: griffe.Class) -> None:
    value = str(attribute.value)
    if value.startswith("awaitable("):
        text = f"`{value.removeprefix('awaitable(').split(',')[0].rstrip(')')}` for asyncio, with the same arguments."
    elif _ENUMS.intersection(map(str, owner.bases)) and not attribute.name.startswith("_"):
        text = f"`{value}`"
    else:
        return
    attribute.docstring = griffe.Docstring(text, parent=attribute)
