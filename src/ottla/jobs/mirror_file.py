"""Reads links of a mirror from a TOML file: clusters, topics, rules and rates, with defaults for all of them.

A file comes in, checked `Link` values go out. Whatever is wrong is one `ConfigError` with its place in the file.
Secrets come from files, or from variables that the caller passes in; their values never show. It connects nowhere.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from ottla.config import OAuthBearer, Plain, Sasl, Scram, Security, Timeouts, Tls, parse_bootstrap
from ottla.errors import ConfigError, OttlaError
from ottla.fetch.bounds import Bound
from ottla.jobs.brokers import Brokers
from ottla.jobs.mirror_link import Link
from ottla.mirror.rules import Policy
from ottla.mirror.topics import Rename, check_link_name
from ottla.net.tokens import ClientCredentials, TokenFile

CLIENT = "ottla-mirror"
_T = TypeVar("_T")
_FILE_KEYS = ("defaults", "links")
_RULES = ("on_foreign", "on_lost", "on_target_lost")
_TABLES = ("source", "target", "rates", "priorities")
_LINK_KEYS = (
    *("topics", "rename", "start", "rate", "groups", "isolated", "replicas", "follow_settings", "journal", "patience"),
    *_RULES,
    *_TABLES,
)
_SIDE_KEYS = (
    *("bootstrap", "timeout", "tls", "ca_file", "cert_file", "key_file", "key_password_env", "check_hostname"),
    *("sasl_mechanism", "username", "password_file", "password_env"),
    *("oauth_token_file", "oauth_token_url", "oauth_client_id", "oauth_client_secret_file"),
    *("oauth_client_secret_env", "oauth_scope", "oauth_ca_file"),
)
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_RATE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kKMG]?)(i?)[bB]\s*(?:/s)?\s*")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3}
_RATES = "bytes per second as a number, or a text such as '10MB/s'"


def read_links(path: str | os.PathLike[str], *, environment: Mapping[str, str] | None = None) -> tuple[Link, ...]:
    """Return the links of a file. `environment` has the variables that its `*_env` keys may name.

    Raises `ConfigError` for a file that cannot be read, for unknown keys, wrong types and invalid settings.
    """
    root = _load(path)
    root.refuse_unknown(_FILE_KEYS)
    defaults = root.table("defaults")
    defaults.refuse_unknown(_LINK_KEYS)
    links = root.table("links")
    if not links.values:
        root.fail("has no links: write a table [links.NAME] with topics, source and target for each")
    variables = environment or {}
    return tuple(_link(name, links.table(name), defaults, variables) for name in links.values)


def read_side(
    path: str | os.PathLike[str], *, bootstrap: str | None = None, environment: Mapping[str, str] | None = None
) -> Brokers:
    """Return how to reach a cluster, from a file with the keys of a `source` or `target` table.

    `bootstrap` goes before the one in the file. Raises `ConfigError` as `read_links` does.
    """
    root = _load(path)
    if bootstrap is not None:
        root = root.over({"bootstrap": bootstrap})
    return _side(root, environment or {})


def parse_rate(text: str) -> float:
    """Return the bytes per second of `10MB/s`, `512KiB/s` or `100B/s`. Raises `ValueError` if it is no rate."""
    match = _RATE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a rate: write it with a unit, such as '10MB/s', '512KiB/s' or '100B/s'")
    factor: int = (1024 if match[3] else 1000) ** _POWERS[match[2].lower()]
    return float(match[1]) * factor


class _Table:
    """A table of the file, with its place for error messages."""

    def __init__(self, values: Mapping[str, Any], place: str, folder: Path) -> None:
        self.values = values
        self.place = place
        """The file, then the keys that lead here."""
        self.folder = folder

    def fail(self, text: str) -> NoReturn:
        """Raise the error for this place."""
        raise ConfigError(f"{self.place} {text}")

    def refuse_unknown(self, accepted: Collection[str]) -> None:
        """Raise `ConfigError` for the first key that is not accepted."""
        for key in self.values:
            if key not in accepted:
                close = difflib.get_close_matches(key, accepted, 1)
                hint = f"did you mean {close[0]!r}?" if close else f"accepted are {', '.join(sorted(accepted))}"
                self.fail(f"has an unknown key {key!r}: {hint}")

    def over(self, values: Mapping[str, Any]) -> _Table:
        """Return the table with these values instead of its own."""
        return _Table({**self.values, **values}, self.place, self.folder)

    def under(self, defaults: _Table) -> _Table:
        """Return the table with the values of `defaults` where it has none; tables in it are merged, too."""
        merged = {**defaults.values, **self.values}
        for key in _TABLES:
            if key in defaults.values and key in self.values:
                merged[key] = {**defaults.table(key).values, **self.table(key).values}
        return _Table(merged, self.place, self.folder)

    def table(self, key: str) -> _Table:
        """Return a table in this one; an empty one if it is missing."""
        value = self.values.get(key, {})
        place = f"{self.place[:-1]}.{key}]" if self.place.endswith("]") else f"{self.place}: [{key}]"
        if not isinstance(value, dict):
            raise ConfigError(f"{place} must be a table, got {_shown(value)}")
        return _Table(value, place, self.folder)

    def get(self, key: str, kind: type[_T], what: str) -> _T | None:
        """Return a value of this type, None if it is missing."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.fail(f"{key} must be {what}, got {_shown(value)}")
        return value

    def text(self, key: str) -> str | None:
        """Return a text."""
        return self.get(key, str, "a text")

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts, or one text as a list."""
        value = self.values.get(key, [])
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
            self.fail(f"{key} must be a list of texts, got {_shown(value)}")
        return tuple(items)

    def path(self, key: str) -> Path | None:
        """Return a path; a relative one is relative to the file."""
        text = self.text(key)
        return None if text is None else self.folder / text

    def secret(self, name: str, environment: Mapping[str, str]) -> str | None:
        """Return the first line of the file of `NAME_file`, or the variable that `NAME_env` names."""
        file, variable = self.path(f"{name}_file"), self.text(f"{name}_env")
        if file is not None and variable is not None:
            self.fail(f"has {name}_file and {name}_env: they are mutually exclusive")
        if variable is not None and variable not in environment:
            self.fail(f"{name}_env names the variable {variable}, which is not set")
        if file is None:
            return None if variable is None else environment[variable]
        try:
            return file.read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            self.fail(f"{name}_file: {file} cannot be read: {reason}")

    def checked(self, make: Callable[[], _T]) -> _T:
        """Return what `make` returns. Its errors get the place."""
        try:
            return make()
        except (OttlaError, ValueError) as error:
            self.fail(f"is invalid: {error}")


def _load(path: str | os.PathLike[str]) -> _Table:
    file = Path(path)
    try:
        with file.open("rb") as opened:
            values = tomllib.load(opened)
    except OSError as error:
        raise ConfigError(f"the file {file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        text = f"the file {file} is not TOML: {error}"
        if file.suffix == ".properties":
            text += "; docs/mirror.md says what the settings of MirrorMaker are called here"
        raise ConfigError(text) from error
    return _Table(values, f"the file {file}", file.parent)


def _link(name: str, given: _Table, defaults: _Table, environment: Mapping[str, str]) -> Link:
    given.refuse_unknown(_LINK_KEYS)
    table = given.under(defaults)
    for side in ("source", "target"):
        if not table.table(side).values:
            table.fail(f"has no {side}: write a table [links.{name}.{side}] with its bootstrap")
    table.checked(lambda: check_link_name(name))
    rename = table.checked(lambda: Rename(table.text("rename") or "{topic}"))

    def at_target(key: str) -> dict[str, Any]:
        """The names in a table of topics are those of the source; a link has those of the target."""
        topics = table.table(key)
        names = {topic: rename.apply(topic, link=name) for topic in topics.values}
        for topic, new_name in names.items():
            if new_name is None:
                topics.fail(f"{topic!r} is not the name of a topic")
        return {str(names[topic]): value for topic, value in topics.values.items()}

    rules = {key: value for key in _RULES if (value := table.text(key)) is not None}
    patience = _seconds(table, "patience")
    priorities = at_target("priorities")
    for topic, priority in priorities.items():
        if not isinstance(priority, int) or isinstance(priority, bool):
            table.table("priorities").fail(f"{topic} must be a whole number, got {_shown(priority)}")
    settings: dict[str, Any] = {
        "topics": table.texts("topics"),
        "groups": table.texts("groups"),
        "isolated": table.texts("isolated"),
        "start": _start(table),
        "journal": table.text("journal"),
        "rate": _rate(table, "rate", table.values.get("rate")),
        "rates": {topic: _rate(table.table("rates"), topic, value) for topic, value in at_target("rates").items()},
        "follow_settings": table.get("follow_settings", bool, "true or false"),
        "replicas": table.get("replicas", int, "a whole number"),
    }
    policy: dict[str, Any] = {**rules, "priorities": priorities, **({} if patience is None else {"patience": patience})}
    source, target = (_side(table.table(side), environment) for side in ("source", "target"))
    return table.checked(
        lambda: Link(
            source=source,
            target=target,
            name=name,
            rename=rename.rule,
            rules=Policy(**policy),
            **{key: value for key, value in settings.items() if value is not None},
        )
    )


def _side(table: _Table, environment: Mapping[str, str]) -> Brokers:
    table.refuse_unknown(_SIDE_KEYS)
    addresses = table.values.get("bootstrap")
    bootstrap = ",".join(table.texts("bootstrap"))
    if addresses is None:
        table.fail("has no bootstrap: write HOST:PORT,...")
    table.checked(lambda: parse_bootstrap(bootstrap))
    timeout = _seconds(table, "timeout")
    security = Security(tls=_tls(table, environment), sasl=_sasl(table, environment))
    timeouts = table.checked(lambda: Timeouts() if timeout is None else Timeouts(total=timeout))
    return Brokers(bootstrap=bootstrap, security=security, client_id=CLIENT, timeouts=timeouts)


def _tls(table: _Table, environment: Mapping[str, str]) -> Tls | None:
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


def _sasl(table: _Table, environment: Mapping[str, str]) -> Sasl | None:
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


def _tokens(table: _Table, environment: Mapping[str, str]) -> OAuthBearer | None:
    file = table.path("oauth_token_file")
    url, client = table.text("oauth_token_url"), table.text("oauth_client_id")
    if file is not None:
        if url is not None or client is not None:
            table.fail("has oauth_token_file and oauth_token_url: they are mutually exclusive")
        return OAuthBearer(TokenFile(file))
    if url is None and client is None:
        return None
    secret = table.secret("oauth_client_secret", environment)
    if url is None or client is None or secret is None:
        table.fail("needs oauth_token_url, oauth_client_id, and its secret in a file or a variable, all together")
    scope, ca_file = table.text("oauth_scope") or "", table.path("oauth_ca_file")
    return table.checked(lambda: OAuthBearer(ClientCredentials(url, client, secret, scope=scope, ca_file=ca_file)))


def _start(table: _Table) -> Bound:
    value = table.values.get("start", "earliest")
    if isinstance(value, str) and value not in ("earliest", "latest"):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            table.fail(f"start is {value!r}; accepted are 'earliest', 'latest', an offset and a time with a zone")
    if isinstance(value, datetime):
        if value.tzinfo is None:
            table.fail(f"start is the time {value.isoformat()} without a zone: add Z if it is UTC")
        return value
    if isinstance(value, bool) or not isinstance(value, str | int) or (isinstance(value, int) and value < 0):
        table.fail(f"start must be 'earliest', 'latest', an offset or a time, got {_shown(value)}")
    return value


def _seconds(table: _Table, key: str) -> float | None:
    value = table.values.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        table.fail(f"{key} must be seconds above 0, got {_shown(value)}")
    return float(value)


def _rate(table: _Table, key: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, str):
        return table.checked(lambda: parse_rate(value))
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        table.fail(f"{key} must be {_RATES}, got {_shown(value)}")
    return float(value)


def _shown(value: object) -> str:
    """Describe a wrong value; texts are not shown, since one may be a secret."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    return {str: "a text", dict: "a table", list: "a list", datetime: "a time"}.get(type(value), type(value).__name__)
