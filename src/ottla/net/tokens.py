"""Sources of bearer tokens: a file that another program keeps fresh, or the token endpoint of an OAuth server.

Both are values that can be called, compared and sent to other processes: `OAuthBearer(ClientCredentials(...))`. No
error text shows a secret.
"""

from __future__ import annotations

import base64
import http.client
import ipaddress
import json
import os
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ottla.config import Path, check_seconds
from ottla.errors import ConfigError, OttlaError
from ottla.small_files import read_line
from ottla.text import printable, redacted

_KEPT_SHARE = 0.8
"""The share of its lifetime for which a token is reused: a new connection should not start with one about to expire."""
_MAX_RESPONSE_BYTES = 1 << 20
_MAX_DESCRIPTION = 300
"""How many characters of the server's error description are passed on."""


@dataclass(frozen=True, slots=True)
class TokenFile:
    """The first line of a file, read for every new connection. Raises `OttlaError` if the file cannot be read."""

    path: Path

    def __call__(self) -> str:
        try:
            token = read_line(self.path).strip()
        except OSError as error:
            raise OttlaError(f"the token file {os.fspath(self.path)} cannot be read: {error.strerror}") from error
        if not token.isascii():
            raise OttlaError(f"the token file {os.fspath(self.path)} cannot be read: it is not ASCII")
        return token


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """A token for `client_id` from the token endpoint at `url` (RFC 6749, section 4.4), reused for most of its life.

    `url` must be https, or http on this machine. Without `ca_file` the system's certificate authorities are trusted.
    Calling it raises `OttlaError` if the endpoint gives no token.
    """

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""
    ca_file: Path | None = None
    timeout: float = 10.0

    def __post_init__(self) -> None:
        check_seconds("ClientCredentials", "timeout", self.timeout, lowest=0.001)
        if not self.client_id or not self.client_secret:
            raise ConfigError("ClientCredentials needs a client_id and a client_secret")
        _check_url(self.url)

    def __call__(self) -> str:
        with _lock:
            token, until = _kept.get(self, ("", 0.0))
            if time.monotonic() >= until:
                requested_at = time.monotonic()
                token, lifetime = self._fetch()
                _kept[self] = token, requested_at + _KEPT_SHARE * lifetime
            return token

    def _fetch(self) -> tuple[str, float]:
        fields = {"grant_type": "client_credentials", **({"scope": self.scope} if self.scope else {})}
        request = urllib.request.Request(self.url, urllib.parse.urlencode(fields).encode(), method="POST")  # noqa: S310
        request.add_header("Accept", "application/json")
        pair = f"{urllib.parse.quote_plus(self.client_id)}:{urllib.parse.quote_plus(self.client_secret)}"
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}")
        url = redacted(self.url)
        try:
            with self._opener().open(request, timeout=self.timeout) as response:
                return _token(response.read(_MAX_RESPONSE_BYTES))
        except urllib.error.HTTPError as error:
            with error:
                description = _description(error.read(_MAX_RESPONSE_BYTES))
            raise OttlaError(f"the token endpoint {url} answered {error.code}{description}") from error
        except urllib.error.URLError as error:
            raise OttlaError(f"the token endpoint {url} cannot be reached: {error.reason}") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise OttlaError(f"the token endpoint {url} gave no token: {type(error).__name__}: {error}") from error

    def _opener(self) -> urllib.request.OpenerDirector:
        try:
            context = ssl.create_default_context(cafile=None if self.ca_file is None else os.fspath(self.ca_file))
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"{os.fspath(self.ca_file or '')!r} has no readable certificates: {error}") from error
        return urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirect())


_lock = threading.Lock()
_kept: dict[ClientCredentials, tuple[str, float]] = {}
"""Tokens, and until when to reuse them, by the monotonic clock."""
if hasattr(os, "register_at_fork"):  # another thread of the parent may have held the lock
    os.register_at_fork(after_in_child=lambda: globals().update(_lock=threading.Lock()))


def _check_url(url: str) -> None:
    try:
        parts = urllib.parse.urlsplit(url)
        host, is_usable = parts.hostname or "", parts.port != 0 and "@" not in parts.netloc
    except ValueError:  # the port is not a number, or an IPv6 address lacks its bracket
        host, is_usable = "", False
    if not host or not is_usable or parts.scheme not in ("https", "http"):
        raise ConfigError(f"the token endpoint {redacted(url)!r} is not https://HOST[:PORT]/PATH")
    if parts.scheme == "http" and not _is_loopback(host):
        raise ConfigError(f"the token endpoint {redacted(url)!r} is not https: the secret would be readable on the way")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: a token endpoint that sends the secret elsewhere is misconfigured or hostile."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> NoReturn:
        fp.close()
        raise urllib.error.URLError(f"it redirects to {printable(redacted(newurl))}, which is not followed")


def _token(body: bytes) -> tuple[str, float]:
    fields = json.loads(body)
    if not isinstance(fields, dict) or not isinstance(fields.get("access_token"), str):
        raise ValueError("its answer has no access_token")
    lifetime = fields.get("expires_in")
    return fields["access_token"], float(lifetime) if isinstance(lifetime, int | float) and lifetime > 0 else 0.0


def _description(body: bytes) -> str:
    """The server's description of an error (RFC 6749, section 5.2)."""
    try:
        fields = json.loads(body)
        text = ": ".join(str(fields[name]) for name in ("error", "error_description") if name in fields)
    except (ValueError, TypeError):
        return ""
    return f": {printable(text[:_MAX_DESCRIPTION])}" if text else ""


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
