"""TLS and SASL options of every command that connects; the command gets `security: Security`.

Beside a profile, each option replaces one of its settings. Passwords come from environment variables or files, never
from the command line, which every user of the machine can read.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from ottla.cli.errors import UsageError
from ottla.cli.options.profile import chosen_profile, profile_name
from ottla.cli.options.same_cluster import note_options
from ottla.small_files import read_line

if TYPE_CHECKING:
    from ottla.cli.profiles.file import Profile
    from ottla.config import OAuthBearer, Sasl, Security, Tls
    from ottla.errors import BrokerError

PASSWORD_VARIABLE = "OTTLA_PASSWORD"  # noqa: S105 - the name of a variable
KEY_PASSWORD_VARIABLE = "OTTLA_KEY_PASSWORD"  # noqa: S105
CLIENT_SECRET_VARIABLE = "OTTLA_OAUTH_CLIENT_SECRET"  # noqa: S105

_Command = TypeVar("_Command", bound=Callable[..., Any])
_FILE = click.Path(exists=True, dir_okay=False, readable=True, path_type=Path)

_OPTIONS = (
    click.option(
        "--tls", is_flag=True, help="Use TLS; trust the system's certificate authorities unless --ca-file is given."
    ),
    click.option("--ca-file", type=_FILE, help="Certificate authorities to trust (PEM). Implies --tls."),
    click.option("--cert-file", type=_FILE, help="Certificate of this client (PEM). Implies --tls."),
    click.option(
        "--key-file",
        type=_FILE,
        help=f"Private key of --cert-file (PEM); its password is read from {KEY_PASSWORD_VARIABLE}.",
    ),
    click.option(
        "--sasl-mechanism",
        type=click.Choice(["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"], case_sensitive=False),
        help="SASL mechanism.  [default with --username: SCRAM-SHA-512]",
    ),
    click.option("--username", help=f"SASL user; the password is read from {PASSWORD_VARIABLE} or --password-file."),
    click.option("--password-file", type=_FILE, help="File with the password in its first line."),
    click.option("--oauth-token-file", type=_FILE, help="OAUTHBEARER: file with the token in its first line."),
    click.option("--oauth-token-url", metavar="URL", help="OAUTHBEARER: endpoint for client credentials."),
    click.option(
        "--oauth-client-id",
        metavar="ID",
        help=f"With --oauth-token-url; the secret is read from {CLIENT_SECRET_VARIABLE} or --oauth-client-secret-file.",
    ),
    click.option("--oauth-client-secret-file", type=_FILE, help="File with the client secret in its first line."),
    click.option("--oauth-scope", metavar="SCOPE", help="With --oauth-token-url: scope of the token."),
    click.option("--oauth-ca-file", type=_FILE, help="With --oauth-token-url: certificate authorities to trust (PEM)."),
)
_TLS = ("tls", "ca_file", "cert_file", "key_file")
_VARIABLES = {
    "password_env": PASSWORD_VARIABLE,
    "key_password_env": KEY_PASSWORD_VARIABLE,
    "oauth_client_secret_env": CLIENT_SECRET_VARIABLE,
}
_NEEDS_PASSWORD = "--username needs a password"  # noqa: S105
_NEEDS_CLIENT_SECRET = "--oauth-client-id needs its secret"  # noqa: S105
_LOGIN = ("sasl_mechanism", "username", "password_file")
_ENDPOINT = ("oauth_token_url", "oauth_client_id", "oauth_client_secret_file", "oauth_scope", "oauth_ca_file")
_NAMES = (*_TLS, *_LOGIN, "oauth_token_file", *_ENDPOINT)


def security_options(command: _Command) -> _Command:
    """Give a command the options and the argument `security: Security`."""

    @functools.wraps(command)
    def secured(*args: Any, **given: Any) -> Any:
        options = {name: given.pop(name) for name in _NAMES}
        context = click.get_current_context()
        if "bootstrap" in context.params:
            note_options(context, ("bootstrap", "profile", *_NAMES), profile=profile_name(context))
        security = security_of(context, options)
        try:
            return command(*args, security=security, **given)
        except Exception as error:
            if type(error).__name__ != "BrokerError" or "bootstrap" not in context.params:
                raise  # nothing more needs to be imported for it
            from ottla.cli.options.near_topics import with_near_topic

            raise with_near_topic(cast("BrokerError", error), context.params["bootstrap"], security) from error

    wrapped: Any = secured
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    decorated: _Command = wrapped
    return decorated


def security_of(context: click.Context, options: Mapping[str, Any]) -> Security:
    """Return the security of a command from the values of its options and its profile.

    Raises `UsageError`, and `ConfigError` for what is wrong with the profile.
    """
    profile = chosen_profile(context)
    if profile is None:
        return options_security(options)
    options = {name: options.get(name) for name in _NAMES}
    _refuse_conflicts(options)
    return _over(profile, options)


def options_security(options: Mapping[str, Any]) -> Security:
    """Return what the options say, whatever the profile is: for another cluster than that of the profile.

    Raises `UsageError`.
    """
    from ottla.config import PLAINTEXT, Security

    options = {name: options.get(name) for name in _NAMES}
    _refuse_conflicts(options)
    if not any(options.values()):
        return PLAINTEXT
    tls, login, endpoint = ({name: options[name] for name in names} for names in (_TLS, _LOGIN, _ENDPOINT))
    tokens = _tokens(options["oauth_token_file"], endpoint)
    return Security(tls=_tls(**tls), sasl=_sasl(tokens=tokens, **login))


def _refuse_conflicts(options: Mapping[str, Any]) -> None:
    endpoint = [_spelled(name) for name in _ENDPOINT if options[name] is not None]
    if options["oauth_token_file"] is not None and endpoint:
        raise UsageError(f"--oauth-token-file and {endpoint[0]} are mutually exclusive")
    if options["oauth_token_file"] is None and not endpoint:
        return
    is_other = options["sasl_mechanism"] not in (None, "OAUTHBEARER")
    if is_other or options["username"] is not None or options["password_file"] is not None:
        raise UsageError("a token is for --sasl-mechanism OAUTHBEARER alone, without --username and --password-file")


def _over(profile: Profile, options: Mapping[str, Any]) -> Security:
    """Return the security of a profile, with the options in place of its settings."""
    from dataclasses import replace

    from ottla.cli.profiles.overriding import overridden

    variables = {key: name for key, name in _VARIABLES.items() if name in os.environ}
    for owner, key, file, need in (
        ("username", "password_env", "password_file", _NEEDS_PASSWORD),
        ("oauth_client_id", "oauth_client_secret_env", "oauth_client_secret_file", _NEEDS_CLIENT_SECRET),
    ):
        if options[owner] is not None and options[file] is None and key not in variables:
            raise UsageError(f"{need}: set {_VARIABLES[key]}, or pass {_spelled(file)}")
    table = overridden(profile.table, options, variables)
    endpoint = [_spelled(name) for name in _ENDPOINT if options[name] is not None]
    if endpoint and "oauth_token_url" not in table.values:
        raise UsageError(f"{endpoint[0]} needs --oauth-token-url")
    return replace(profile, table=table).security(os.environ)


def _spelled(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _tls(*, tls: bool, ca_file: Path | None, cert_file: Path | None, key_file: Path | None) -> Tls | None:
    from ottla.config import Tls

    if not (tls or ca_file or cert_file or key_file):
        return None
    if key_file is not None and cert_file is None:
        raise UsageError("--key-file needs --cert-file: the certificate of the key")
    key_password = os.environ.get(KEY_PASSWORD_VARIABLE)
    return Tls(ca_file=ca_file, cert_file=cert_file, key_file=key_file, key_password=key_password)


def _sasl(
    *, sasl_mechanism: str | None, username: str | None, password_file: Path | None, tokens: OAuthBearer | None
) -> Sasl | None:
    from ottla.config import Plain, Scram

    if tokens is not None:
        return tokens
    if sasl_mechanism == "OAUTHBEARER":
        raise UsageError("OAUTHBEARER needs --oauth-token-file, or --oauth-token-url and --oauth-client-id")
    if username is None:
        for option, value in (("--sasl-mechanism", sasl_mechanism), ("--password-file", password_file)):
            if value is not None:
                raise UsageError(f"{option} needs --username")
        return None
    password = _secret(password_file, PASSWORD_VARIABLE, _NEEDS_PASSWORD, "--password-file")
    if sasl_mechanism == "PLAIN":
        return Plain(username, password)
    return Scram(username, password, "SCRAM-SHA-256" if sasl_mechanism == "SCRAM-SHA-256" else "SCRAM-SHA-512")


def _tokens(file: Path | None, endpoint: dict[str, Any]) -> OAuthBearer | None:
    if file is None and not any(endpoint.values()):
        return None
    from ottla.config import OAuthBearer
    from ottla.net.tokens import ClientCredentials, TokenFile

    if file is not None:
        return OAuthBearer(TokenFile(file))
    given = [_spelled(name) for name, value in endpoint.items() if value is not None]
    url, client = endpoint["oauth_token_url"], endpoint["oauth_client_id"]
    if url is None or client is None:
        raise UsageError(f"{given[0]} needs {'--oauth-token-url' if url is None else '--oauth-client-id'}")
    secret_file = endpoint["oauth_client_secret_file"]
    secret = _secret(secret_file, CLIENT_SECRET_VARIABLE, _NEEDS_CLIENT_SECRET, "--oauth-client-secret-file")
    scope, ca_file = endpoint["oauth_scope"] or "", endpoint["oauth_ca_file"]
    return OAuthBearer(ClientCredentials(url, client, secret, scope=scope, ca_file=ca_file))


def _secret(file: Path | None, variable: str, need: str, option: str) -> str:
    if file is not None:
        try:
            return read_line(file)
        except OSError as error:
            raise UsageError(f"the file {file} of {option} cannot be read: {error.strerror}") from error
    secret = os.environ.get(variable)
    if secret is None:
        raise UsageError(f"{need}: set {variable}, or pass {option}")
    return secret
