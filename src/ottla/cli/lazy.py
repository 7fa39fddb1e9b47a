"""Groups of commands that import a command's module only when the command runs or shows its help.

A command's module imports at its top what its options need, and inside its functions what they work with. So help and
usage errors cost next to nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import click

from ottla.cli.errors import CommandFailed, UsageError

CLUSTER_PACKAGES = ("filelock", "jgo", "psutil", "trustme")


def is_installed(packages: Collection[str]) -> bool:
    """Return whether all of these packages can be imported."""
    return all(importlib.util.find_spec(package) is not None for package in packages)


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a command lives, its line in the overview, and the extra of the package that it needs."""

    module: str
    """Has a click command under the name of the entry."""
    summary: str
    extra: str = ""
    packages: tuple[str, ...] = ()


class LazyGroup(click.Group):
    """A group that knows its commands by name and summary."""

    def __init__(self, *args: Any, entries: Mapping[str, Entry], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command. Raises `CommandFailed` if its extra is not installed."""
        entry = self.entries.get(cmd_name)
        if entry is None:
            suggest(ctx, cmd_name, self.entries)
            return None
        if not is_installed(entry.packages):
            raise CommandFailed(
                f"'{ctx.command_path} {cmd_name}' needs extra packages: pip install 'ottla[{entry.extra}]'"
            )
        command = getattr(importlib.import_module(entry.module), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview from the summaries alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in sorted(self.entries.items())])


def suggest(context: click.Context, name: str, commands: Collection[str]) -> None:
    """Raise `UsageError` that names the closest command, if one is close."""
    import difflib

    close = difflib.get_close_matches(name, commands, 1)
    if close:
        raise UsageError(f"no such command {name!r}: did you mean '{context.command_path} {close[0]}'?")
