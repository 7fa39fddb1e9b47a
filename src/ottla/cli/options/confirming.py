"""Options of commands that destroy something: a person at a terminal is asked, a script says `--yes`."""

from __future__ import annotations

import sys

import click

from ottla.cli import Failure, Misuse

yes_option = click.option("--yes", is_flag=True, help="Do not ask. Scripts need it: there is nobody to ask.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")


def confirm(what: str, *, yes: bool) -> None:
    """Returns if it may be done; `what` is a sentence without its end: `this deletes ...`."""
    if yes:
        return
    if not (_is_terminal(sys.stdin) and _is_terminal(sys.stderr)):
        raise Misuse(f"{what}: give --yes if that is meant, or --dry-run to look first")
    if not click.confirm(f"{what}. Go on?", err=True):
        raise Failure("nothing was done")


def _is_terminal(stream: object) -> bool:
    isatty = getattr(stream, "isatty", None)
    return isatty is not None and bool(isatty())
