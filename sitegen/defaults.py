"""Defaults of arguments as values, for the reference: a private name such as `_BUFFERING` says nothing to a reader.

An extension of griffe, which reads the source for the reference without importing it.
"""

from __future__ import annotations

from typing import Any

import griffe


class PublicDefaults(griffe.Extension):
    """Replaces private names of constants by what they are assigned."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Look at every function of a package."""
        for function in _functions(pkg):
            for parameter in function.parameters:
                name = str(parameter.default)
                if name.startswith("_") and name in function.module.members:
                    value = getattr(function.module.members[name], "value", None)
                    parameter.default = parameter.default if value is None else value


def _functions(item: griffe.Module | griffe.Class) -> list[griffe.Function]:
    found = []
    for member in item.members.values():
        if member.is_alias:
            continue
        if isinstance(member, griffe.Function):
            found.append(member)
        elif isinstance(member, griffe.Module | griffe.Class):
            found += _functions(member)
    return found
