"""`ottla gateway secret`: a hashed secret for an identity, as a line of the file of secrets."""

from __future__ import annotations

import sys

import click

from ottla.cli.errors import UsageError


@click.command()
@click.argument("name")
@click.option("--token", is_flag=True, help="Make a random token for Authorization: Bearer; it goes to stderr, once.")
def secret(name: str, *, token: bool) -> None:
    """Print a line for the file of secrets: NAME and a hash of its secret.

    The secret is asked for, or read from standard input; with --token it is made. A gateway reads the file when it
    starts. Exit codes: 0 success, 2 usage error.

    \b
    Examples:
      ottla gateway secret billing >> secrets.txt
      ottla gateway secret billing --token >> secrets.txt
    """
    from ottla.errors import ConfigError
    from ottla.gateway.access.secrets import LEAST_SECRET, check_identity, hash_secret, line_of, new_token

    try:
        check_identity(name)
    except ConfigError as error:
        raise UsageError(f"NAME: {error}") from error
    if token:
        text = new_token(name)
        click.echo(f"token of {name}, which is shown only now: {text}", err=True)
    elif sys.stdin.isatty():
        text = click.prompt("Secret", hide_input=True, confirmation_prompt=True, err=True)
    else:
        text = sys.stdin.readline().rstrip("\r\n")
    if len(text) < LEAST_SECRET:
        raise UsageError(f"the secret has fewer than {LEAST_SECRET} characters")
    click.echo(line_of(name, hash_secret(text.encode())))
