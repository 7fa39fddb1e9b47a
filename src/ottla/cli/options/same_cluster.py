"""Commands to type next: they ask the cluster of this command, by the options that its command line has.

Addresses from variables, the default profile or the local cluster that is running are found again without options.
Secrets are never on a command line, so each option can be repeated as it was given.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

import click
from click.core import ParameterSource

_KEY = "ottla.same_cluster"
_QUOTED = re.compile(r"'(ottla [^']+)'")


def note_options(context: click.Context, names: Sequence[str], *, profile: str | None) -> None:
    """Keep the options of the command line that lead to its cluster. Errors outlive the context of a command."""
    values = {**context.params, "profile": profile}
    words: list[str] = []
    for option in context.command.params:
        name = option.name or ""
        if name not in names or context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        words += option.opts[:1] if values[name] is True else [option.opts[0], str(values[name])]
    context.meta[_KEY] = words


def connection_words() -> list[str]:
    """Return the options of the running command that say which cluster it asks, and how it logs in."""
    context = click.get_current_context(silent=True)
    return [] if context is None else list(context.meta.get(_KEY, []))


def same_cluster(text: str) -> str:
    """Return a text whose quoted commands, such as 'ottla groups list', have these options if they take them."""
    words = connection_words()
    if not words or "'ottla " not in text:
        return text
    return _QUOTED.sub(lambda found: f"'{found[1]} {shlex.join(words)}'" if _connects(found[1]) else found[0], text)


def _connects(line: str) -> bool:
    """Return whether the command takes an address."""
    context = click.get_current_context().find_root()
    command = context.command
    for word in line.split()[1:]:
        if not isinstance(command, click.Group):
            break
        below = command.get_command(context, word) if word in command.list_commands(context) else None
        if below is None:
            return False
        command = below
    return any(param.name == "bootstrap" for param in command.params)
