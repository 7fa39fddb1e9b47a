"""Groups of commands that import a command's module only when the command runs or shows its help.

A command's module imports at its top what its options need, and inside its functions what they work with. So help and
usage errors cost next to nothing.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.errors import CommandFailed, UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

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
        """Import the command. Without its extra it shows its help, and raises `CommandFailed` when it is to run."""
        entry = self.entries.get(cmd_name)
        if entry is None and ctx.resilient_parsing:  # a shell completes the line
            return None
        if entry is None:
            suggest(ctx, cmd_name, self.entries)
            return None
        command = getattr(importlib.import_module(entry.module), cmd_name)
        assert isinstance(command, click.Command)
        return command if is_installed(entry.packages) else _without_extra(command, entry)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Return the commands that begin so, from the summaries alone, and the options."""
        from click.shell_completion import CompletionItem

        commands = [
            CompletionItem(name, help=entry.summary)
            for name, entry in sorted(self.entries.items())
            if name.startswith(incomplete)
        ]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview from the summaries alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in sorted(self.entries.items())])


def _without_extra(command: click.Command, entry: Entry) -> click.Command:
    """A copy that, like every command below it, says which extra is missing instead of running."""
    command = copy.copy(command)
    if isinstance(command, LazyGroup):
        command.entries = {
            name: replace(below, extra=entry.extra, packages=entry.packages) for name, below in command.entries.items()
        }
    elif isinstance(command, click.Group):
        command.commands = {name: _without_extra(below, entry) for name, below in command.commands.items()}
    else:
        parse = command.parse_args

        def parse_args(ctx: click.Context, args: list[str]) -> list[str]:
            # Options may need the extra as well, to check what they are given.
            if ctx.resilient_parsing or not {*ctx.help_option_names}.isdisjoint(args):
                return parse(ctx, args)
            raise CommandFailed(f"{ctx.command_path!r} needs extra packages: pip install 'ottla[{entry.extra}]'")

        command.parse_args = parse_args  # type: ignore[method-assign]
    return command


def suggest(context: click.Context, name: str, commands: Collection[str]) -> None:
    """Raise `UsageError` that names the command that is meant, if that is known."""
    from ottla.cli.other_tools import command_advice

    meant = command_advice(context.command_path, name, commands)
    if meant:
        raise UsageError(f"no such command {name!r}{meant}")
