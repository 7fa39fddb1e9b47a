"""`ottla profiles`: the clusters that the settings file of the user names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.options.common import json_option
from ottla.cli.options.profile import PROFILE_VARIABLE
from ottla.cli.output.json_text import json_text
from ottla.cli.output.styles import Style, Styled, paint
from ottla.cli.output.tables import table, terminal_width
from ottla.text import printable

if TYPE_CHECKING:
    from ottla.cli.profiles.file import Profile, Profiles
    from ottla.config import Sasl


@click.command()
@json_option
def profiles(*, as_json: bool) -> None:
    """List the clusters that your settings file names, for --profile NAME.

    The file is config.toml in the settings folder of the user, or the one that OTTLA_CONFIG names. Secrets are never
    shown. A profile whose files or variables are missing is listed with what is wrong.

    \b
    Examples:
      ottla profiles
      ottla profiles --json | jq -r '.profiles[].name'
      ottla topics list --profile prod
    """
    from ottla.cli.profiles.file import read_profiles

    read = read_profiles(os.environ)
    rows = [_row(read, profile) for profile in read.by_name.values()]
    if as_json:
        default = None if read.default is None else read.default.name
        click.echo(json_text({"file": str(read.file), "default": default, "profiles": rows}))
        return
    if not rows:
        missing = "" if read.file.exists() else ": it does not exist"
        click.echo(f"no profiles in {read.file}{missing}", err=True)
        return
    click.echo(table(_HEADINGS, [_cells(row) for row in rows], width=terminal_width()))
    for row in rows:
        if row["problem"]:
            click.echo(f"{paint(row['name'], Style.BAD)}: {printable(row['problem'])}")
    click.echo(f"from {read.file}", err=True)


_HEADINGS = ("profile", "brokers", "protocol", "login", "used")


def _row(read: Profiles, profile: Profile) -> dict[str, Any]:
    from ottla.config import Security
    from ottla.errors import ConfigError

    problem, security = None, Security()
    try:
        security = profile.security(os.environ)
    except ConfigError as error:
        problem = str(error).removeprefix(profile.table.place).strip()
    return {
        "name": profile.name,
        "bootstrap": profile.bootstrap,
        "protocol": None if problem else security.protocol,
        "login": None if problem else _login(security.sasl),
        "is_default": profile is read.default,
        "is_chosen": os.environ.get(PROFILE_VARIABLE) == profile.name,
        "problem": problem,
    }


def _login(sasl: Sasl | None) -> str | None:
    from ottla.config import OAuthBearer, Plain

    if sasl is None:
        return None
    if isinstance(sasl, OAuthBearer):
        return "token"
    return f"{sasl.username} ({'PLAIN' if isinstance(sasl, Plain) else sasl.mechanism})"


def _cells(row: dict[str, Any]) -> list[str]:
    used = PROFILE_VARIABLE if row["is_chosen"] else "default" if row["is_default"] else ""
    return [
        row["name"],
        row["bootstrap"],
        row["protocol"] or Styled("?", Style.BAD),
        row["login"] or "",
        Styled(used, Style.GOOD) if used else "",
    ]
