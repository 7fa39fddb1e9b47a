"""`ottla mirror check`: what the links of a file would do. It asks both sides and writes nothing."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ottla.cli.errors import UsageError
from ottla.cli.mirror.sides import FILE, brief_timeout_option
from ottla.cli.mirror.view import check_text
from ottla.cli.options.common import json_option
from ottla.cli.output.json_text import json_text
from ottla.cli.output.tables import terminal_width


@click.command()
@click.argument("file", type=FILE)
@click.option("--link", "chosen", multiple=True, metavar="NAME", help="Only this link. Repeatable.")
@brief_timeout_option
@json_option
@click.pass_context
def check(context: click.Context, /, file: Path, *, chosen: tuple[str, ...], timeout: float, as_json: bool) -> None:
    """Say what each link of FILE would do: topics, their names at the target, what is created or changed.

    Reads the file, connects to both sides of each link, and has brokers validate what they would create. Reports what
    would be refused: a link into itself or in a circle, two links that write to one topic, rights that are missing.
    Nothing is written. Exit codes: 0 if all links can run, 1 if something would be refused, 2 for an invalid file.

    \b
    Examples:
      ottla mirror check links.toml
      ottla mirror check links.toml --link oslo --json
    """
    from ottla.jobs.mirror_check import check_links
    from ottla.jobs.mirror_file import read_links

    links = read_links(file, environment=os.environ)
    for name in chosen:
        if name not in {link.name for link in links}:
            raise UsageError(f"the file {file} has no link {name!r}: it has {', '.join(link.name for link in links)}")
    checks = check_links(links, timeout=timeout)  # all of them: links may be in each other's way
    shown = [each for each in checks if not chosen or each.link.name in chosen]
    if as_json:
        click.echo(json_text([each.to_json() for each in shown]))
    else:
        for each in shown:
            click.echo(check_text(each, width=terminal_width()))
    context.exit(1 if any(each.problems for each in shown) else 0)
