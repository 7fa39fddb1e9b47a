"""Where bearer tokens come from: a file that somebody else keeps fresh, or the token endpoint of an OAuth server.

Both are values that can be called, compared and sent to other processes: `OAuthBearer(ClientCredentials(...))`. A
secret shows in no text.
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
from ottla.text import printable, redacted

_KEPT_SHARE = 0.8
"""Of a token's lifetime: a new connection should not begin with one that is about to end."""
_LARGEST_ANSWER = 1 << 20
_TOLD = 300
"""Characters of an error's description that are passed on."""


@dataclass(frozen=True, slots=True)
class TokenFile:
    """The first line of a file, read for every new connection."""

    path: Path

    def __call__(self) -> str:
        try:
            with open(self.path, encoding="ascii") as file:
                return file.readline().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not ASCII"
            raise OttlaError(f"the token file {os.fspath(self.path)} cannot be read: {reason}") from error


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """A token for `client_id` from the token endpoint at `url` (RFC 6749, section 4.4), kept for most of its lifetime.

    `url` is https, or http on this machine. Without `ca_file` the system's certificate authorities are trusted.
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
                asked = time.monotonic()
                token, lifetime = self._fetch()
                _kept[self] = token, asked + _KEPT_SHARE * lifetime
            return token

    def _fetch(self) -> tuple[str, float]:
        fields = {"grant_type": "client_credentials", **({"scope": self.scope} if self.scope else {})}
        request = urllib.request.Request(self.url, urllib.parse.urlencode(fields).encode(), method="POST")  # noqa: S310
        request.add_header("Accept", "application/json")
        pair = f"{urllib.parse.quote_plus(self.client_id)}:{urllib.parse.quote_plus(self.client_secret)}"
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}")
        place = redacted(self.url)
        try:
            with self._opener().open(request, timeout=self.timeout) as answer:
                return _token(answer.read(_LARGEST_ANSWER))
        except urllib.error.HTTPError as error:
            with error:
                told = _description(error.read(_LARGEST_ANSWER))
            raise OttlaError(f"the token endpoint {place} answered {error.code}{told}") from error
        except urllib.error.URLError as error:
            raise OttlaError(f"the token endpoint {place} cannot be reached: {error.reason}") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise OttlaError(f"the token endpoint {place} gave no token: {type(error).__name__}: {error}") from error

    def _opener(self) -> urllib.request.OpenerDirector:
        try:
            context = ssl.create_default_context(cafile=None if self.ca_file is None else os.fspath(self.ca_file))
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"{os.fspath(self.ca_file or '')!r} has no readable certificates: {error}") from error
        return urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirect())


_lock = threading.Lock()
_kept: dict[ClientCredentials, tuple[str, float]] = {}
"""Tokens and until when they are used, by the monotonic clock."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: globals().update(_lock=threading.Lock()))


def _check_url(url: str) -> None:
    try:
        parts = urllib.parse.urlsplit(url)
        host, usable = parts.hostname or "", parts.port != 0 and "@" not in parts.netloc
    except ValueError:  # a port that is no number, an IPv6 address without its bracket
        host, usable = "", False
    if not host or not usable or parts.scheme not in ("https", "http"):
        raise ConfigError(f"the token endpoint {redacted(url)!r} is not https://HOST[:PORT]/PATH")
    if parts.scheme == "http" and not _is_here(host):
        raise ConfigError(f"the token endpoint {redacted(url)!r} is not https: the secret would be readable on the way")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token endpoint that sends a secret elsewhere is set up wrongly, or is not ours."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> NoReturn:
        fp.close()
        raise urllib.error.URLError(f"it sends on to {printable(redacted(newurl))}, which is not followed")


def _token(answer: bytes) -> tuple[str, float]:
    found = json.loads(answer)
    if not isinstance(found, dict) or not isinstance(found.get("access_token"), str):
        raise ValueError("its answer has no access_token")
    lifetime = found.get("expires_in")
    return found["access_token"], float(lifetime) if isinstance(lifetime, int | float) and lifetime > 0 else 0.0


def _description(answer: bytes) -> str:
    """What the server says of an error (RFC 6749, section 5.2)."""
    try:
        found = json.loads(answer)
        told = ": ".join(str(found[name]) for name in ("error", "error_description") if name in found)
    except (ValueError, TypeError):
        return ""
    return f": {printable(told[:_TOLD])}" if told else ""


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
