"""Addresses of Redis: a single server, a master behind Sentinel, or a cluster.

Text comes in, a `Place` goes out, or a `ConfigError` that says what is accepted. No error and no `repr` shows a
password. An address that cannot be parsed is not quoted at all, because the password may be anywhere in it. Nothing is
opened or connected here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from ottla.config import Address, Tls
from ottla.errors import ConfigError


class Kind(Enum):
    """How the server of a group is found."""

    ALONE = "the one at the address"
    SENTINEL = "the master that sentinels name"
    CLUSTER = "the node that has the slot of the group"


_KINDS = {
    "redis": Kind.ALONE,
    "rediss": Kind.ALONE,
    "redis+sentinel": Kind.SENTINEL,
    "redis+cluster": Kind.CLUSTER,
}
_PORTS = {Kind.ALONE: 6379, Kind.SENTINEL: 26379, Kind.CLUSTER: 6379}
_HOST = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\s:/\[\]@]+))(?::(?P<port>\d{1,5}))?", re.ASCII)
_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_FILES = {"ca": "ca_file", "cert": "cert_file", "key": "key_file"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a group is kept. `str()` gives the address without user and password."""

    scheme: str
    kind: Kind
    addresses: tuple[Address, ...]
    """The server, the sentinels, or some nodes of the cluster."""
    master: str = ""
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: str | None = None
    """A file whose first line is the password. It is read for every connection."""
    tls: Tls | None = None

    @property
    def has_password(self) -> bool:
        """Whether connections authenticate."""
        return self.password is not None or self.password_file is not None

    def __str__(self) -> str:
        path = [self.master] if self.master else []
        path += [str(self.db)] if self.db else []
        return f"{self.scheme}://{','.join(map(str, self.addresses))}{''.join(f'/{part}' for part in path)}"


def parse(url: str) -> Place:
    """Parse an address. Raises `ConfigError` if it is invalid."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _invalid(url, "it is not a URL") from None  # the text of the cause may contain the password
    kind = _KINDS.get(parts.scheme)
    if kind is None or not url.startswith(f"{parts.scheme}://"):
        raise _invalid(url, "it does not begin with redis://, rediss://, redis+sentinel:// or redis+cluster://")
    if parts.fragment or "#" in url:
        raise _invalid(url, "it contains a #; write it as %23 in a password")
    username, password = _credentials(url, parts)
    hosts = parts.netloc.rpartition("@")[2].split(",")
    addresses = tuple(_address(url, number, text, kind) for number, text in enumerate(hosts, start=1))
    if kind is Kind.ALONE and len(addresses) > 1:
        raise _invalid(url, "for several servers use redis+sentinel:// or redis+cluster://")
    master, db = _path(url, parts.path, kind)
    options = _options(url, parts)
    password_file = options.pop("password_file", None)
    if password_file is not None and password is not None:
        raise _invalid(url, "it has both a password and a password_file")
    return Place(
        scheme=parts.scheme,
        kind=kind,
        addresses=addresses,
        master=master,
        db=db,
        username=username,
        password=password,
        password_file=password_file,
        tls=_tls(url, parts.scheme, options),
    )


def _invalid(url: str, reason: str) -> ConfigError:
    """The error for an address, which quotes nothing of it except a known scheme."""
    scheme = next((f"{name}://... " for name in _KINDS if url.startswith(f"{name}://")), "")
    return ConfigError(
        f"the store's address {scheme}is invalid: {reason}. Accepted are redis://[USER:PASSWORD@]HOST[:PORT][/DB],"
        " rediss://... (TLS, with ?ca=FILE&cert=FILE&key=FILE&check_hostname=no), redis+sentinel://HOST:PORT,HOST:PORT"
        "/MASTER[/DB] and redis+cluster://HOST:PORT,HOST:PORT, both with ?tls=yes for TLS; all of them with"
        " ?password_file=FILE instead of a password"
    )


def _credentials(url: str, parts: SplitResult) -> tuple[str | None, str | None]:
    """Return user and password, both optional."""
    user_info, at, _ = parts.netloc.rpartition("@")
    if not at:
        if "@" in parts.path + parts.query:
            reason = (
                "it has an @ after a / or a ?; write those as %2F and %3F in a password, and @ as %40 in a file name"
            )
            raise _invalid(url, reason)
        return None, None
    username, colon, password = user_info.partition(":")
    if not colon and username and "password_file=" in parts.query:
        return unquote(username), None
    if not colon or not password:
        raise _invalid(url, "it has a user without a password; for a password without a user write :PASSWORD@")
    return unquote(username) or None, unquote(password)


def _address(url: str, number: int, text: str, kind: Kind) -> Address:
    """Parse one HOST:PORT."""
    match = _HOST.fullmatch(text)
    port = int(match["port"] or _PORTS[kind]) if match else 0
    if match is None or not 0 < port < 65536:
        raise _invalid(url, f"server {number} is not HOST:PORT" if text else "a host is missing")
    return Address(match["ipv6"] or match["host"], port)


def _path(url: str, path: str, kind: Kind) -> tuple[str, int]:
    """Return the master's name, which only Sentinel needs, and the database."""
    names = [unquote(part) for part in path.split("/") if part]
    master = ""
    if kind is Kind.SENTINEL:
        if not names:
            raise _invalid(url, "it lacks the name of the master")
        master = names.pop(0)
    if kind is Kind.CLUSTER and names:
        raise _invalid(url, "a cluster has no databases")
    if len(names) > 1 or any(not (name.isascii() and name.isdigit()) for name in names):
        raise _invalid(url, "the database is not a number")
    return master, int(names[0]) if names else 0


def _options(url: str, parts: SplitResult) -> dict[str, str]:
    """Return the query of the address."""
    try:
        return dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        # From None: the text of the cause quotes what it could not parse.
        raise _invalid(url, "the part after the ? is not NAME=VALUE&NAME=VALUE") from None


def _tls(url: str, scheme: str, options: dict[str, str]) -> Tls | None:
    """Return the TLS settings; None for a plaintext connection."""
    has_tls = scheme == "rediss"
    if scheme not in ("redis", "rediss"):
        has_tls = _boolean(url, "tls", options.pop("tls", "no"))
    unknown = [name for name in options if name not in (*_FILES, "check_hostname")]
    if unknown:
        raise _invalid(url, f"the options after the ? are {', '.join((*_FILES, 'check_hostname'))} and password_file")
    if options and not has_tls:
        raise _invalid(url, f"{min(options)} needs TLS")
    if not has_tls:
        return None
    check_hostname = _boolean(url, "check_hostname", options.pop("check_hostname", "yes"))
    files = {_FILES[name]: path for name, path in options.items()}
    if "key_file" in files and "cert_file" not in files:
        raise _invalid(url, "key needs cert")
    return Tls(**files, check_hostname=check_hostname)


def _boolean(url: str, name: str, text: str) -> bool:
    if (value := _BOOLEANS.get(text.lower())) is None:
        raise _invalid(url, f"{name} must be yes or no")
    return value
