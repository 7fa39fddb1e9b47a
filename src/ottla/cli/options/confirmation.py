"""`--yes` and `--dry-run` of commands that delete or reset: a terminal is asked, a script must pass `--yes`."""

from __future__ import annotations

import sys

import click

from ottla.cli.errors import CommandFailed, UsageError

yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation. Required without a terminal.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would happen; change nothing.")


def confirm(what: str, *, yes: bool, has_dry_run: bool = True) -> None:
    """Ask for confirmation of `what`, a sentence without its full stop: `this deletes ...`.

    Raises `UsageError` without a terminal and without `--yes`, and `CommandFailed` if the answer is no.
    """
    if yes:
        return
    if not (_is_terminal(sys.stdin) and _is_terminal(sys.stderr)):
        raise UsageError(f"{what}: pass --yes to confirm{', or --dry-run to look first' if has_dry_run else ''}")
    if not click.confirm(f"{what}. Continue?", err=True):
        raise CommandFailed("nothing was changed")


def _is_terminal(stream: object) -> bool:
    isatty = getattr(stream, "isatty", None)
    return isatty is not None and bool(isatty())
