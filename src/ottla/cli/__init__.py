"""The `ottla` command: a module or package for each command, imported only when the command is used.

This is the only package that prints and reads environment variables. `root` has the command itself, `options` what
several commands take, `values` how texts become values, `output` and `terminal` how results and progress are shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.cli.root import cli, main

__all__ = ["cli", "main"]


def __getattr__(name: str) -> Any:
    # Not imported above: a package that imports its own modules forms an import cycle with them.
    if name in __all__:
        from ottla.cli import root

        return getattr(root, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
