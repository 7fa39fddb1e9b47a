"""Options beside a profile: which keys of its table each one replaces.

The table of a profile and the options of a command line come in, a table goes out. An option replaces its own key, and
takes with it what belongs to the old value: a certificate its key, a user name its password, one kind of login the
other. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ottla.net.access_table import LOGIN_KEYS, TOKEN_KEYS
from ottla.settings_table import Table

_OAUTHBEARER = "OAUTHBEARER"
_USER = ("username", "password_file", "password_env")
_PASSWORD = ("password_file", "password_env")
_CLIENT_SECRET = ("oauth_client_secret_file", "oauth_client_secret_env")
_BELONGS: Mapping[str, tuple[str, ...]] = {
    "cert_file": ("key_file", "key_password_env"),
    "key_file": ("key_password_env",),
    "username": (*_PASSWORD, *TOKEN_KEYS),
    "password_file": (*_PASSWORD, *TOKEN_KEYS),
    "oauth_token_file": (*LOGIN_KEYS, *TOKEN_KEYS),
    "oauth_token_url": (*LOGIN_KEYS, "oauth_token_file"),
    "oauth_client_id": (*LOGIN_KEYS, "oauth_token_file", *_CLIENT_SECRET),
    "oauth_client_secret_file": _CLIENT_SECRET,
}
"""What goes with the old value of a key."""


def overridden(table: Table, given: Mapping[str, object], variables: Mapping[str, str]) -> Table:
    """Return the table with the options that are given: values by key, None or False for those that are not.

    `variables` has the keys `password_env`, `key_password_env` and `oauth_client_secret_env` of the secrets that are in
    the environment for options; each is used only with the option that needs it.
    """
    options = {key: _as_value(value) for key, value in given.items() if value is not None and value is not False}
    gone = {key for option in options for key in _BELONGS.get(option, ())}
    mechanism = str(options.get("sasl_mechanism", ""))
    if mechanism:
        gone |= {*(_USER if mechanism == _OAUTHBEARER else TOKEN_KEYS)}
    if "username" in options and str(table.values.get("sasl_mechanism")).upper() == _OAUTHBEARER:
        gone.add("sasl_mechanism")
    for owner, key, other in (
        ("username", "password_env", "password_file"),
        ("key_file", "key_password_env", ""),
        ("oauth_client_id", "oauth_client_secret_env", "oauth_client_secret_file"),
    ):
        if owner in options and key in variables and other not in options:
            options[key] = variables[key]
    if {"tls", "ca_file", "cert_file"} & options.keys():
        options["tls"] = True
    kept = {key: value for key, value in table.values.items() if key not in gone}
    return Table({**kept, **options}, table.place, table.folder)


def _as_value(value: object) -> object:
    # A path on the command line is relative to where the command runs, one in the file to the file.
    return str(value.absolute()) if isinstance(value, Path) else value
