"""Posts JSON to an address. The address may hold a secret: errors name its host only.

An answer that is none, or a redirection, is a failure like any other: a redirected POST becomes a GET, which arrives
without what was posted.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from ottla.errors import ConfigError, OttlaError
from ottla.text import printable, redacted

_TIMEOUT_SECONDS = 10.0


class WebhookFailed(OttlaError):
    """A webhook did not accept what was posted."""

    def __init__(self, host: str, reason: str) -> None:
        self.host = host
        self.reason = reason
        super().__init__(f"{host} did not accept what was posted: {reason}")


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    """Makes an `HTTPError` of a redirection."""

    def redirect_request(self, *_: object, **__: object) -> None:
        """Follow none."""


_opener = urllib.request.build_opener(_NoRedirection)


def check_url(url: str) -> str:
    """Return the address.

    Raises `ConfigError` unless it begins with http:// or https://, has a host, a valid port if any, and no user, spaces
    or characters beyond ASCII.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        is_valid = (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.username is None
            and parts.port != 0  # looking at the port checks it
            and _is_sendable(url)
        )
    except ValueError:
        is_valid = False
    if not is_valid:
        raise ConfigError(
            f"webhook {redacted(url)!r}: an address that begins with http:// or https:// is accepted, with a host, and"
            " without a user, spaces or characters beyond ASCII"
        )
    return url


def _is_sendable(url: str) -> bool:
    return url.isascii() and url.isprintable() and " " not in url


def post(url: str, content: dict[str, Any], *, timeout: float = _TIMEOUT_SECONDS) -> None:
    """Post `content` as JSON. Raises `WebhookFailed` if it is not accepted in time, `ConfigError` for a bad address."""
    request = urllib.request.Request(  # noqa: S310 - the scheme is checked
        check_url(url), data=json.dumps(content).encode(), headers={"Content-Type": "application/json"}, method="POST"
    )
    try:
        with _opener.open(request, timeout=timeout) as answer:
            answer.read(1)
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it is the answer, too
        host = urllib.parse.urlsplit(url).hostname or "the webhook"
        raise WebhookFailed(host, printable(str(error) or type(error).__name__)) from error
