"""Options for TLS and SASL of every command that connects; the command gets one `security: Security`.

A password comes from an environment variable or a file, never from the command line, where every user of the machine
could read it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ottla.cli import Misuse
from ottla.config import Plain, Sasl, Scram, Security, Tls

PASSWORD_VARIABLE = "OTTLA_PASSWORD"  # noqa: S105 - the name of a variable
KEY_PASSWORD_VARIABLE = "OTTLA_KEY_PASSWORD"  # noqa: S105

_Command = TypeVar("_Command", bound=Callable[..., Any])
_FILE = click.Path(exists=True, dir_okay=False, readable=True, path_type=Path)

_OPTIONS = (
    click.option("--tls", is_flag=True, help="Encrypt; trust the system's authorities unless --ca-file is given."),
    click.option("--ca-file", type=_FILE, help="Certificate authorities to trust (PEM). Means --tls."),
    click.option("--cert-file", type=_FILE, help="Certificate of this client (PEM). Means --tls."),
    click.option(
        "--key-file",
        type=_FILE,
        help=f"Its private key (PEM); the key's password is read from {KEY_PASSWORD_VARIABLE}.",
    ),
    click.option(
        "--sasl-mechanism",
        type=click.Choice(["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"], case_sensitive=False),
        help="How to log in.  [default with --username: SCRAM-SHA-512]",
    ),
    click.option("--username", help=f"Who logs in; the password is read from {PASSWORD_VARIABLE} or --password-file."),
    click.option("--password-file", type=_FILE, help="A file whose first line is the password."),
)
_NAMES = ("tls", "ca_file", "cert_file", "key_file", "sasl_mechanism", "username", "password_file")


def security_options(command: _Command) -> _Command:
    """Give a command the options and the argument `security: Security`."""

    @functools.wraps(command)
    def secured(*args: Any, **given: Any) -> Any:
        options = {name: given.pop(name) for name in _NAMES}
        return command(*args, security=_security(**options), **given)

    wrapped: Any = secured
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    found: _Command = wrapped
    return found


def _security(
    *,
    tls: bool,
    ca_file: Path | None,
    cert_file: Path | None,
    key_file: Path | None,
    sasl_mechanism: str | None,
    username: str | None,
    password_file: Path | None,
) -> Security:
    encrypted = tls or any((ca_file, cert_file, key_file))
    chosen = None
    if encrypted:
        key_password = os.environ.get(KEY_PASSWORD_VARIABLE)
        chosen = Tls(ca_file=ca_file, cert_file=cert_file, key_file=key_file, key_password=key_password)
    return Security(tls=chosen, sasl=_sasl(sasl_mechanism, username, password_file, encrypted=encrypted))


def _sasl(mechanism: str | None, username: str | None, password_file: Path | None, *, encrypted: bool) -> Sasl | None:
    if username is None:
        for option, value in (("--sasl-mechanism", mechanism), ("--password-file", password_file)):
            if value is not None:
                raise Misuse(f"{option} needs --username")
        return None
    password = _password(password_file)
    if mechanism == "PLAIN":
        if not encrypted:
            click.echo("warning: PLAIN without --tls sends the password readable for everybody on the way", err=True)
        return Plain(username, password)
    return Scram(username, password, "SCRAM-SHA-256" if mechanism == "SCRAM-SHA-256" else "SCRAM-SHA-512")


def _password(file: Path | None) -> str:
    if file is not None:
        try:
            return file.read_text().partition("\n")[0].rstrip("\r")
        except (OSError, UnicodeDecodeError) as error:
            raise Misuse(f"the password file {file} cannot be read: {error}") from error
    password = os.environ.get(PASSWORD_VARIABLE)
    if password is None:
        raise Misuse(f"--username needs a password: set {PASSWORD_VARIABLE}, or give --password-file")
    return password
