"""Reads how to reach a cluster from a table of a TOML file: addresses, TLS, SASL.

A table comes in, a `ClusterAccess` goes out; whatever is wrong is one `ConfigError` with its place. Links of a mirror,
gateways and profiles share these keys. Secrets come from files, or from variables that the caller passes in, and never
from the table itself. It connects nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.config import OAuthBearer, Plain, Sasl, Scram, Security, Timeouts, Tls, parse_bootstrap
from ottla.net.access import ClusterAccess
from ottla.settings_table import Table

if TYPE_CHECKING:
    from ottla.net.tokens import ClientCredentials, TokenFile

TLS_KEYS = ("tls", "ca_file", "cert_file", "key_file", "key_password_env", "check_hostname")
LOGIN_KEYS = ("sasl_mechanism", "username", "password_file", "password_env")
TOKEN_KEYS = (
    *("oauth_token_file", "oauth_token_url", "oauth_client_id", "oauth_client_secret_file"),
    *("oauth_client_secret_env", "oauth_scope", "oauth_ca_file"),
)
SECURITY_KEYS = (*TLS_KEYS, *LOGIN_KEYS, *TOKEN_KEYS)
KEYS = ("bootstrap", "timeout", *SECURITY_KEYS)
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_SECRETS = {
    "password": "password_file or password_env",
    "sasl_password": "password_file or password_env",
    "key_password": "key_password_env",
    "oauth_client_secret": "oauth_client_secret_file or oauth_client_secret_env",
    "oauth_token": "oauth_token_file",
}
"""Keys that would hold a secret, and those that name a place for it."""


def access_of(table: Table, environment: Mapping[str, str]) -> ClusterAccess:
    """Return how to reach a cluster, from a table with `bootstrap`, TLS and SASL. Raises `ConfigError`."""
    refuse_secrets(table)
    table.refuse_unknown(KEYS)
    bootstrap = bootstrap_of(table)
    timeout = table.seconds("timeout")
    timeouts = table.checked(lambda: Timeouts() if timeout is None else Timeouts(total=timeout))
    return ClusterAccess(bootstrap=bootstrap, security=security_of(table, environment), timeouts=timeouts)


def refuse_secrets(table: Table) -> None:
    """Raise `ConfigError` for a key that holds a secret itself."""
    for key, instead in _SECRETS.items():
        if key in table.values:
            table.fail(f"has a secret in {key}: write {instead}, which say where it is")


def bootstrap_of(table: Table) -> str:
    """Return the addresses. Raises `ConfigError` if there are none, or one is no address."""
    if table.values.get("bootstrap") is None:
        table.fail("has no bootstrap: write HOST:PORT,...")
    bootstrap = ",".join(table.texts("bootstrap"))
    table.checked(lambda: parse_bootstrap(bootstrap))
    return bootstrap


def security_of(table: Table, environment: Mapping[str, str]) -> Security:
    """Return how connections are protected. Raises `ConfigError`."""
    return Security(tls=_tls(table, environment), sasl=_sasl(table, environment))


def _tls(table: Table, environment: Mapping[str, str]) -> Tls | None:
    ca_file, cert_file, key_file = (table.path(key) for key in ("ca_file", "cert_file", "key_file"))
    is_wanted = table.get("tls", bool, "true or false")
    check_hostname = table.get("check_hostname", bool, "true or false")
    files = [path for path in (ca_file, cert_file, key_file) if path is not None]
    if is_wanted is False and files:
        table.fail("has tls = false and a file for TLS")
    if not is_wanted and not files:
        return None
    for path in files:
        if not path.is_file():
            table.fail(f"names the file {path}, which does not exist")
    key_password = table.secret("key_password", environment)
    return table.checked(
        lambda: Tls(
            ca_file=ca_file,
            cert_file=cert_file,
            key_file=key_file,
            key_password=key_password,
            check_hostname=check_hostname is not False,
        )
    )


def _sasl(table: Table, environment: Mapping[str, str]) -> Sasl | None:
    mechanism = table.text("sasl_mechanism")
    if mechanism is not None and mechanism.upper() not in _MECHANISMS:
        table.fail(f"sasl_mechanism is {mechanism!r}; accepted are {', '.join(_MECHANISMS)}")
    tokens = _tokens(table, environment)
    username = table.text("username")
    if tokens is not None:
        if username is not None or (mechanism or "OAUTHBEARER").upper() != "OAUTHBEARER":
            table.fail("has a token and a user name: they are mutually exclusive")
        return tokens
    if mechanism is not None and mechanism.upper() == "OAUTHBEARER":
        table.fail("has OAUTHBEARER without oauth_token_file, or oauth_token_url and oauth_client_id")
    password = table.secret("password", environment)
    if username is None:
        if mechanism is not None or password is not None:
            table.fail("has no username for its SASL mechanism or password")
        return None
    if password is None:
        table.fail("has a username and no password: write password_file or password_env")
    if mechanism is not None and mechanism.upper() == "PLAIN":
        return table.checked(lambda: Plain(username, password))
    is_short = mechanism is not None and mechanism.upper() == "SCRAM-SHA-256"
    return table.checked(lambda: Scram(username, password, "SCRAM-SHA-256" if is_short else "SCRAM-SHA-512"))


def _tokens(table: Table, environment: Mapping[str, str]) -> OAuthBearer | None:
    file = table.path("oauth_token_file")
    url, client = table.text("oauth_token_url"), table.text("oauth_client_id")
    if file is not None:
        if url is not None or client is not None:
            table.fail("has oauth_token_file and oauth_token_url: they are mutually exclusive")
        return OAuthBearer(_token_file(file))
    if url is None and client is None:
        return None
    secret = table.secret("oauth_client_secret", environment)
    if url is None or client is None or secret is None:
        table.fail("needs oauth_token_url, oauth_client_id, and its secret in a file or a variable, all together")
    return OAuthBearer(_client_credentials(table, url, client, secret))


def _token_file(path: Path) -> TokenFile:
    from ottla.net.tokens import TokenFile  # imports an HTTP client, which most tables do not need

    return TokenFile(path)


def _client_credentials(table: Table, url: str, client: str, secret: str) -> ClientCredentials:
    from ottla.net.tokens import ClientCredentials

    scope, ca_file = table.text("oauth_scope") or "", table.path("oauth_ca_file")
    return table.checked(lambda: ClientCredentials(url, client, secret, scope=scope, ca_file=ca_file))
