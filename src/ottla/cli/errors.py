"""Errors of commands: one text on stderr, no traceback, and an exit code."""

from __future__ import annotations

import re
from typing import Any

import click

from ottla.cli.output.styles import Style, paint
from ottla.cli.terminal.screen import has_colors
from ottla.text import printable

_LINE_END = "\n"
_QUOTE = "'"
_NO_COMMAND = re.compile(r"No such command '(.*)'\.")
_FULL_STOP = re.compile(r"(?<=[\w'\")])\.$")
"""The end of a sentence, unlike the dots in "not . or .."."""


class CommandFailed(click.ClickException):
    """The command failed; exit code 1."""

    exit_code = 1

    def show(self, file: Any = None) -> None:
        """Print the error with the prefix that all errors of `ottla` share."""
        prefix = paint("error:", Style.BAD)
        click.echo(f"{prefix} {printable(self.message, keep=_LINE_END)}", file=file, err=True, color=_color())


class UsageError(CommandFailed):
    """The command line is wrong; exit code 2."""

    exit_code = 2


class Alert(CommandFailed):
    """The command ran and found something that is certainly wrong; exit code 3."""

    exit_code = 3


class Incomplete(CommandFailed):
    """The command ran, found nothing wrong, and could not look at everything; exit code 4."""

    exit_code = 4


def _color() -> bool | None:
    """Errors are shown when the context has gone, which knows whether styles are wanted."""
    return None if has_colors() else False


def from_click(error: click.UsageError) -> UsageError:
    """Return click's error in the form of our own: without the usage line, and with one prefix."""
    see = "" if error.ctx is None else f"; see '{error.ctx.command_path} --help'"
    if isinstance(error, click.NoSuchOption):
        from ottla.cli.other_tools import advice

        return UsageError(f"no such option {error.option_name}{advice(error.option_name, error.ctx)}{see}")
    unknown = _NO_COMMAND.match(error.message)
    if unknown is not None and error.ctx is not None and isinstance(error.ctx.command, click.Group):
        from ottla.cli.other_tools import command_advice

        known = error.ctx.command.list_commands(error.ctx)
        return UsageError(
            f"no such command {unknown[1]!r}{command_advice(error.ctx.command_path, unknown[1], known)}{see}"
        )
    if isinstance(error, click.MissingParameter) or not isinstance(error, click.BadParameter):
        text = re.sub(r"\s+", " ", _FULL_STOP.sub("", error.format_message()).replace("\\t", ""))
        return UsageError(text[:1].lower() + text[1:] + see)
    hint = error.param_hint
    if hint is None and error.param is not None and error.ctx is not None:
        hint = error.param.get_error_hint(error.ctx)
    names = hint if isinstance(hint, str) or hint is None else " / ".join(hint)
    message = _FULL_STOP.sub("", error.message)
    return UsageError(f"{names.replace(_QUOTE, '')}: {message}" if names else message)
