"""`ottla gateway check`: what a settings file would run."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ottla.cli.options.common import json_option
from ottla.cli.output.json_text import json_text
from ottla.text import printable


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path))
@json_option
def check(file: Path, *, as_json: bool) -> None:
    """Say what FILE would run: listeners, spool, who may log in, rules. Nothing is started, and nothing connects.

    Files that it names are read. Exit codes: 0 if a gateway can run with it, 2 for the first thing that is wrong.

    \b
    Examples:
      ottla gateway check gateway.toml
    """
    from ottla.gateway.settings_file import read_settings

    settings = read_settings(file, environment=os.environ)
    if settings.tls is not None:
        settings.tls.context()
    access = settings.access
    report = {
        "name": settings.name,
        "bootstrap": settings.cluster.bootstrap,
        "http": None if settings.http is None else str(settings.http),
        "ops": None if settings.ops is None else str(settings.ops),
        "socket": [] if settings.socket is None else list(settings.socket.places),
        "syslog": [] if settings.syslog is None else list(settings.syslog.places),
        "tls": settings.tls is not None,
        "login": access.needs_login,
        "secrets": sorted(access.secrets),
        "rules": len(access.rules),
        "spool": None if settings.spool is None else str(settings.spool),
        "compat": sorted(settings.compat),
    }
    if as_json:
        click.echo(json_text(report))
        return
    for name, value in report.items():
        click.echo(printable(f"{name:10} {_shown(value)}"))


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return "-" if value is None else str(value)
